// The policy `add_while_faster`: KungFu's rule for the size of a job, for comparison with
// best_size. Every `window` steps it compares the throughput R(n) of the second half of the window
// with that of the size before: below (1 + alpha / n) R(n-1) it removes the last member and stops
// for ever, otherwise it adds one. Owned by the member that runs it; its thread alone calls it.
//
// Its limits are why best_size exists: it climbs by ones, cannot tell noise from gain, knows no
// price, and never looks again.
#pragma once

#include "pliant/policy/policy.h"

namespace pliant {

struct AddWhileFasterOptions {
  int members_max = 64;
  double alpha = 0.33;
  int window = 100;
};

class AddWhileFaster final : public Policy {
 public:
  explicit AddWhileFaster(AddWhileFasterOptions options) : options_(options) {}

  std::string_view name() const override { return "add_while_faster"; }
  std::span<std::byte> state() override;
  Decision after_step(const Signals& signals) override;

 private:
  struct State {
    double rate_before = 0;  // of the size before; 0: there was none
    double rate_sum = 0;
    int64_t steps = 0;    // in this window
    int64_t members = 0;  // of this window
    int64_t is_done = 0;
  };

  const AddWhileFasterOptions options_;
  State state_;
};

}  // namespace pliant
