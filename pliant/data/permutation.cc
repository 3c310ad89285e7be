#include "pliant/data/permutation.h"

#include <algorithm>
#include <bit>
#include <span>

#include "pliant/base/bytes.h"
#include "pliant/base/check.h"

namespace pliant {
namespace {

// Every bit of the result depends on every bit of the value.
uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9fb21c651e98df25ULL;
  value = (value ^ (value >> 29)) * 0xd6e8feb86659fd93ULL;
  return value ^ (value >> 32);
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t epoch) : size_(size) {
  PLIANT_CHECK(size >= 1 && size <= kSizeMax, "a permutation has 1 to 2^48 numbers");
  half_bits_ = std::max((static_cast<int>(std::bit_width(size - 1)) + 1) / 2, kHalfBitsMin);
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t words[] = {seed, epoch, round};
    keys_[round] = hash64(std::as_bytes(std::span(words)));
  }
}

uint64_t Permutation::turn(int round, uint64_t half) const {
  return scramble(half + keys_[static_cast<size_t>(round)]) & half_mask_;
}

uint64_t Permutation::forward(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & half_mask_;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ turn(round, right);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::backward(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & half_mask_;
  for (int round = kRounds - 1; round >= 0; --round) {
    const uint64_t previous = right ^ turn(round, left);
    right = left;
    left = previous;
  }
  return left << half_bits_ | right;
}

// Both loops end: the value that they began with is below size_ and lies on the same cycle.
uint64_t Permutation::at(uint64_t place) const {
  PLIANT_CHECK(place < size_, "a place outside the permutation");
  uint64_t value = forward(place);
  while (value >= size_) value = forward(value);
  return value;
}

uint64_t Permutation::at_inverse(uint64_t number) const {
  PLIANT_CHECK(number < size_, "a number outside the permutation");
  uint64_t value = backward(number);
  while (value >= size_) value = backward(value);
  return value;
}

}  // namespace pliant
