// The simulator's only source of chance: the same numbers from the same seed on every machine. A
// value; one thread.
#pragma once

#include <cstdint>

#include "pliant/base/time.h"

namespace pliant::sim {

class Prng final {
 public:
  explicit Prng(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    return mix(state_);
  }
  // From 0 to before `end`.
  uint64_t below(uint64_t end) { return end <= 1 ? 0 : next() % end; }
  // Both ends included.
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool chance(uint64_t percent) { return below(100) < percent; }
  Duration duration(Duration low, Duration high) {
    return low +
           Duration(static_cast<int64_t>(below(static_cast<uint64_t>((high - low).count()) + 1)));
  }

  // Spreads a number over all bits.
  static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace pliant::sim
