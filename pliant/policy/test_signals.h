// What tests of policies share: signals to feed them with, and a newcomer that is given the memory
// of another. Values; one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "pliant/policy/policy.h"

namespace pliant {

// A step of so many members that took a second, of which each waited `wait_seconds`.
inline Signals step_signals(uint64_t step, int members, double wait_seconds = 0.1) {
  Signals signals;
  signals.step = step;
  signals.members = members;
  signals.batch = static_cast<uint64_t>(32 * members);
  signals.reduced_bytes = 1 << 20;
  signals.step_seconds = 1.0;
  signals.samples_per_second = static_cast<double>(signals.batch);
  signals.compute_seconds = 1.0 - wait_seconds;
  signals.wait_seconds = wait_seconds;
  signals.topology = "auto";
  for (int rank = 0; rank < members; ++rank)
    signals.by_rank.push_back({.peer = {0, static_cast<uint16_t>(rank), 1},
                               .compute_seconds = signals.compute_seconds,
                               .wait_seconds = wait_seconds});
  return signals;
}

// As the training layer does it: bytes, between policies that were made alike.
inline void hand_over(Policy& from, Policy& to) {
  ASSERT_EQ(from.state().size(), to.state().size());
  std::ranges::copy(from.state(), to.state().begin());
}

}  // namespace pliant
