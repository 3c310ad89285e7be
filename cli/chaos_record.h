// What a worker of `pliant chaos` writes down after each commit, and the model that it trains:
// small enough to be replayed by one process from the records alone. Values; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "pliant/base/time.h"

namespace pliant::cli {

inline constexpr uint64_t kChaosSamples = 10'000;  // of an epoch, unless said otherwise
inline constexpr size_t kStateElements = 256;      // of the trained state

// The clock of the records; the same for all processes of a machine.
inline int64_t nanoseconds() { return now().time_since_epoch().count(); }

// One commit, as bytes in the worker's own file.
struct ChaosRecord {
  uint64_t step = 0;
  uint32_t epoch = 0;
  uint32_t contributors = 0;
  uint64_t samples = 0;
  uint64_t sample_sum = 0;  // of mix_sample() over the samples; wraps
  uint64_t state = 0;       // checksum of the state after the step was applied
  int64_t committed_ns = 0;
  int64_t agree_ns = 0;  // of the change of the view that the step went through; 0: none
  int64_t redo_ns = 0;
  int64_t transfer_ns = 0;
  uint64_t begun_ns = 0;
};

inline uint64_t mix_sample(uint64_t sample) {
  uint64_t value = (sample + 1) * 0x9e3779b97f4a7c15ULL;
  value = (value ^ value >> 31) * 0xbf58476d1ce4e5b9ULL;
  return value ^ value >> 29;
}

// Gradient j of a sample is mix_sample() * (2j + 1), so that of many is their sum times (2j + 1):
// all in arithmetic that wraps, hence exact in any order.
inline constexpr uint64_t gradient_factor(uint64_t element) { return 2 * element + 1; }

// Applies a step whose samples have this sum. Any lost, doubled or reordered step shows.
inline void apply_step(std::span<uint64_t> state, uint64_t sample_sum) {
  for (uint64_t j = 0; j < state.size(); ++j)
    state[j] = state[j] * 3 + sample_sum * gradient_factor(j);
}

}  // namespace pliant::cli
