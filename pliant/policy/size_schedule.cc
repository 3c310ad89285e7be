#include "pliant/policy/size_schedule.h"

#include <fmt/format.h>

namespace pliant {

SizeSchedule::SizeSchedule(std::vector<ScheduledSize> schedule) : schedule_(std::move(schedule)) {}

std::span<std::byte> SizeSchedule::state() {
  return std::as_writable_bytes(std::span<State>(&state_, 1));
}

Decision SizeSchedule::decide(const Signals& signals) {
  // A job that goes on from a checkpoint may have passed several entries: the last one holds.
  uint64_t due = state_.entries_done;
  while (due < schedule_.size() && schedule_[due].step <= signals.step) ++due;
  if (due == state_.entries_done) return {};
  state_.entries_done = due;
  const ScheduledSize& entry = schedule_[due - 1];
  if (static_cast<uint32_t>(signals.members) == entry.size) return {};
  return {
      .members = static_cast<int>(entry.size),
      .reason = fmt::format("the schedule has {} members from step {} on", entry.size, entry.step)};
}

}  // namespace pliant
