// A Permutation: a shuffled order of the numbers below n, computed and never stored. Any member can
// look up any place of it at once, however large the dataset is. Pure; a value; any thread.
//
// It is a Feistel network over the next even number of bits. A number that it maps beyond n is
// mapped again until it falls below n, which keeps it one-to-one; n is more than a quarter of what
// the bits can hold, so fewer than four turns are needed on average (more for n up to 16, where the
// bits are never fewer than six).
//
// The order is part of what a job has committed: it is the same on every machine, and a change of
// it would make the cursor of a running job mean other samples. permutation_test.cc pins it.
#pragma once

#include <array>
#include <cstdint>

namespace pliant {

class Permutation {
 public:
  static constexpr uint64_t kSizeMax = uint64_t{1} << 48;

  // Of the numbers below `size`, which is 1 to kSizeMax. Another seed or epoch: another order.
  Permutation(uint64_t size, uint64_t seed, uint64_t epoch);

  uint64_t size() const { return size_; }
  // The number at a place; place < size().
  uint64_t at(uint64_t place) const;
  // The place of a number; number < size().
  uint64_t at_inverse(uint64_t number) const;

 private:
  // Four rounds make a network look random when its halves are wide; those of small datasets have a
  // few bits, which need more. Halves of less than three bits reach some orders more often than
  // others after any number of rounds.
  static constexpr int kRounds = 8;
  static constexpr int kHalfBitsMin = 3;

  uint64_t turn(int round, uint64_t half) const;
  uint64_t forward(uint64_t value) const;
  uint64_t backward(uint64_t value) const;

  uint64_t size_;
  int half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace pliant
