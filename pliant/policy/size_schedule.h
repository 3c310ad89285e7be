// The policy `size_schedule`: so many members from such a step on, as "2@0,4@100" says. It decides
// each entry once; what losses do in between is the coordinator's business. Owned by the member
// that runs it; its thread alone calls it.
#pragma once

#include <vector>

#include "pliant/membership/schedule.h"
#include "pliant/policy/policy.h"

namespace pliant {

class SizeSchedule final : public Policy {
 public:
  explicit SizeSchedule(std::vector<ScheduledSize> schedule);

  std::string_view name() const override { return "size_schedule"; }
  std::span<std::byte> state() override;
  Decision before_train(const Signals& signals) override { return decide(signals); }
  Decision after_step(const Signals& signals) override { return decide(signals); }

 private:
  struct State {
    uint64_t entries_done = 0;
  };

  Decision decide(const Signals& signals);

  const std::vector<ScheduledSize> schedule_;
  State state_;
};

}  // namespace pliant
