// A Policy decides how a job goes on, from its signals alone: how many members, which batch, which
// way of keeping models together, which topology of the collectives.
//
// A policy is pure: the same calls give the same decisions on every member, so it reads no clock,
// draws no random numbers and keeps what it remembers in its state(), which newcomers are given.
// Each member runs its own copy; training/adaptation.h carries the decisions out and logs each
// once.
//
// Written by users in a few lines:
//
//   class GrowWhenNoisy final : public Policy {
//     std::string_view name() const override { return "grow_when_noisy"; }
//     Decision after_step(const Signals& now) override {
//       if (!now.noise || now.noise->scale < 2.0 * double(now.batch)) return {};
//       return {.members = now.members + 1, .reason = "the noise scale is twice the batch"};
//     }
//   };
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pliant/policy/signals.h"

namespace pliant {

// What is to change; nothing by default.
struct Decision {
  std::optional<int> members = {};
  std::optional<uint64_t> global_batch = {};
  std::optional<double> learning_rate_factor = {};  // of the rate that the job began with
  std::optional<Synchronisation> synchronisation = {};
  std::optional<std::string> topology = {};  // as Session::set_strategy() takes it
  bool measure_links = false;                // before the next step; the links are in its signals
  bool stop = false;                         // the training is complete
  std::string reason = {};                   // why, for people; needed with any of the above

  bool operator==(const Decision&) const = default;
  bool empty() const { return *this == Decision{}; }
};

class Policy {
 public:
  virtual ~Policy() = default;

  // For messages: "best_size".
  virtual std::string_view name() const = 0;
  // All that it remembers from call to call: memory that is copied byte by byte to newcomers, of a
  // size that never changes. A policy that remembers nothing has none.
  virtual std::span<std::byte> state() { return {}; }

  // Before the first step that this job makes, before and after each epoch of the data, before and
  // after each step. Signals are those of the last committed step.
  virtual Decision before_train(const Signals&) { return {}; }
  virtual Decision before_epoch(const Signals&) { return {}; }
  virtual Decision before_step(const Signals&) { return {}; }
  virtual Decision after_step(const Signals&) { return {}; }
  virtual Decision after_epoch(const Signals&) { return {}; }
  virtual Decision after_train(const Signals&) { return {}; }
};

}  // namespace pliant
