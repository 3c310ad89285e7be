#include "pliant/tensor/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace pliant::tensor {
namespace {

using Words = std::array<uint32_t, 4>;

// The vectors that the authors of the generator publish with it.
TEST(Philox, GivesThePublishedNumbers) {
  EXPECT_EQ(philox({}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({{ones, ones}, {ones, ones, ones, ones}}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({{0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CountsWithACarry) {
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(following({{}, {ones, ones, 3, 0}}).counter, (Words{0, 0, 4, 0}));
}

// Whatever ranks there are after a change, no two of them draw the same, a rank that stays draws
// what it would have drawn, and nothing depends on who was there before.
TEST(Philox, EveryRankStepAndStreamHasNumbersOfItsOwn) {
  std::set<Words> seen;
  size_t count = 0;
  for (const char* stream : {"dropout", "shuffle"}) {
    for (uint32_t rank = 0; rank < 64; ++rank) {
      for (uint32_t step = 0; step < 16; ++step) {
        PhiloxState state = derive_random(7, stream, rank, step);
        EXPECT_EQ(state, derive_random(7, stream, rank, step));
        for (int i = 0; i < 4; ++i, ++count) {
          seen.insert(philox(state));
          state = following(state);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), count);
  EXPECT_NE(derive_random(7, "dropout", 0, 0), derive_random(8, "dropout", 0, 0));
}

}  // namespace
}  // namespace pliant::tensor
