// Philox4x32-10, a counter-based generator of random numbers (Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", 2011): the n-th number is computed from a key and
// n, so there is no state to move. Per-rank random numbers are therefore not resharded but derived
// anew for whatever ranks there are. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace pliant::tensor {

struct PhiloxState {
  std::array<uint32_t, 2> key = {};
  std::array<uint32_t, 4> counter = {};

  bool operator==(const PhiloxState&) const = default;
};

// Four numbers from one counter.
std::array<uint32_t, 4> philox(const PhiloxState& state);

// The next counter.
PhiloxState following(PhiloxState state);

// Where the random numbers of one index of one stream begin at a step. Streams are told apart by
// name ("dropout"), and within one by an index: the rank, or what shall have numbers of its own,
// such as a coordinate along "tp" for what all data-parallel replicas must draw alike. A step has
// 2^32 counters to itself: 2^34 numbers.
PhiloxState derive_random(uint64_t seed, std::string_view stream, uint32_t index, uint32_t step);

}  // namespace pliant::tensor
