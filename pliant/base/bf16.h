// The upper half of an f32 as a number of its own. Pure; any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace pliant {

// The nearest, ties to even.
inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // The carry must not run out of a NaN.
  return static_cast<uint16_t>(value != value ? 0x7fc0U : rounded);
}

inline float from_bf16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

}  // namespace pliant
