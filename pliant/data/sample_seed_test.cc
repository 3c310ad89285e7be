#include "pliant/data/sample_seed.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

namespace pliant {
namespace {

TEST(SampleSeed, StaysWhatItWas) {
  EXPECT_EQ(sample_seed(0, 0, 0), 11476564741804448695u);
  EXPECT_EQ(sample_seed(1, 2, 3), 14288960711696168663u);
  EXPECT_EQ(sample_seed(UINT64_MAX, 7, uint64_t{1} << 47), 16590650318804224260u);
}

TEST(SampleSeed, IsAnotherForEachCombination) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (uint64_t epoch = 0; epoch < 20; ++epoch)
      for (uint64_t sample = 0; sample < 200; ++sample)
        seen.insert(sample_seed(seed, epoch, sample));
  EXPECT_EQ(seen.size(), 20u * 20u * 200u);
}

// Neighbours share no more bits than strangers: generators that are seeded weakly stay apart.
TEST(SampleSeed, OfNeighboursHasNothingInCommon) {
  double flipped = 0;
  constexpr uint64_t kPairs = 20'000;
  for (uint64_t sample = 0; sample < kPairs; ++sample)
    flipped += std::popcount(sample_seed(5, 1, sample) ^ sample_seed(5, 1, sample + 1));
  EXPECT_NEAR(flipped / kPairs, 32, 0.2);
}

}  // namespace
}  // namespace pliant
