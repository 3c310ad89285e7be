#include "pliant/policy/add_while_faster.h"

#include <fmt/format.h>

namespace pliant {

std::span<std::byte> AddWhileFaster::state() {
  return std::as_writable_bytes(std::span<State>(&state_, 1));
}

Decision AddWhileFaster::after_step(const Signals& signals) {
  if (state_.is_done != 0) return {};
  if (signals.members != state_.members) {
    state_.members = signals.members;
    state_.steps = 0;
    state_.rate_sum = 0;
  }
  ++state_.steps;
  const int half = options_.window / 2;
  if (state_.steps > options_.window - half) state_.rate_sum += signals.samples_per_second;
  if (state_.steps < options_.window) return {};

  const double rate = state_.rate_sum / half;
  const double needed = (1 + options_.alpha / signals.members) * state_.rate_before;
  const double before = state_.rate_before;
  state_.steps = 0;
  state_.rate_sum = 0;
  if (before > 0 && rate < needed) {
    state_.is_done = 1;
    if (signals.members == 1) return {};
    return {.members = signals.members - 1,
            .reason = fmt::format("{} members make {:.4g} samples/s, less than {:.4g}: one fewer, "
                                  "for good",
                                  signals.members, rate, needed)};
  }
  if (signals.members >= options_.members_max) {
    state_.is_done = 1;
    return {};
  }
  state_.rate_before = rate;
  return {.members = signals.members + 1,
          .reason = fmt::format("{} members make {:.4g} samples/s, at least {:.4g}: one more",
                                signals.members, rate, needed)};
}

}  // namespace pliant
