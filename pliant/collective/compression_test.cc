#include "pliant/collective/compression.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "pliant/collective/reduce_reference.h"

namespace pliant {
namespace {

using Floats = std::vector<float>;

// Many magnitudes, both signs, zeroes.
Floats numbers(size_t count, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = random() % 17 == 0 ? 0.0F : normal(random) * scale;
  return values;
}

TEST(Bf16, RoundsLikeTheReference) {
  std::mt19937 random(1);
  Floats values;
  for (int i = 0; i < 100000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (const float value : {0.0F, -0.0F, 1.0F, 3.0e38F, std::numeric_limits<float>::infinity()})
    values.push_back(value);
  const Floats none(values.size(), 0.0F);
  std::vector<uint16_t> sent(values.size());
  compress_bf16(values, none, sent.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t wanted = reduce_reference::encode(values[i] + 0.0F, reduce_reference::kBrain);
    ASSERT_EQ(sent[i], wanted) << values[i];
  }
}

TEST(Bf16, SentPlusResidualIsTheInputToTheBit) {
  const Floats values = numbers(5000, 2);
  Floats residual = numbers(5000, 3, 0.01F);
  const Floats before = residual;
  std::vector<uint16_t> sent(values.size());
  Floats expanded(values.size());
  compress_bf16(values, residual, sent.data());
  settle_bf16(values, sent.data(), residual);
  expand_bf16(sent, expanded.data());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(expanded[i] + residual[i], values[i] + before[i]);
    ASSERT_LE(std::fabs(residual[i]), std::fabs(expanded[i]) / 256);
  }
}

TEST(Bf16, WhatIsNotFiniteIsSentAndLeavesNoResidual) {
  const Floats values = {std::nanf(""), std::numeric_limits<float>::infinity(), 1};
  Floats residual(3, 0.5F);
  std::vector<uint16_t> sent(3);
  Floats expanded(3);
  compress_bf16(values, residual, sent.data());
  settle_bf16(values, sent.data(), residual);
  expand_bf16(sent, expanded.data());
  EXPECT_TRUE(std::isnan(expanded[0]));
  EXPECT_TRUE(std::isinf(expanded[1]));
  EXPECT_EQ(residual, Floats({0, 0, 0}));
}

// Of one element, by the words of the header.
int reference_level(float x, float quantum, int levels) {
  if (!std::isfinite(x)) return 0;
  const double steps = std::nearbyint(static_cast<double>(x) / static_cast<double>(quantum));
  return static_cast<int>(std::clamp<double>(steps, -levels, levels));
}

class Int8 : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Counts, Int8, testing::Values(1, 7, 1023, 1024, 1025, 5000));

TEST_P(Int8, EqualsTheReference) {
  const size_t count = GetParam();
  const Floats values = numbers(count, 4);
  Floats residual = numbers(count, 5, 0.1F);
  const Floats before = residual;
  Floats quanta(blocks_of(count));
  for (size_t block = 0; block < quanta.size(); ++block)
    quanta[block] = std::ldexp(1.0F, -6 + static_cast<int>(block % 3));
  for (const int members : {1, 2, 3, 8, 64, 127}) {
    residual = before;
    const int levels = levels_of(members);
    std::vector<int8_t> sent(count + quanta.size());
    compress_int8(values, residual, quanta, levels, sent.data());
    settle_int8(values, sent.data(), quanta, residual);
    for (size_t i = 0; i < count; ++i) {
      const float quantum = quanta[i / kQuantumBlock];
      ASSERT_EQ(sent[i], reference_level(values[i] + before[i], quantum, levels));
      // The property that error feedback rests on.
      ASSERT_EQ(static_cast<float>(sent[i]) * quantum + residual[i], values[i] + before[i]);
      ASSERT_LE(std::abs(sent[i]) * members, 127);
    }
    for (size_t block = 0; block < quanta.size(); ++block) {
      ASSERT_GE(sent[count + block], 0);
      ASSERT_LE(sent[count + block] * members, 127);
    }
  }
}

TEST(Int8, WhatIsNotFiniteIsNotSent) {
  const Floats values = {std::nanf(""), std::numeric_limits<float>::infinity(), 3};
  Floats residual(3, 0.0F);
  const Floats quanta = {1};
  std::vector<int8_t> sent(4);
  compress_int8(values, residual, quanta, 60, sent.data());
  settle_int8(values, sent.data(), quanta, residual);
  EXPECT_EQ(sent[0], 0);
  EXPECT_EQ(sent[1], 0);
  EXPECT_EQ(sent[2], 3);
  EXPECT_EQ(residual, Floats({0, 0, 0}));
}

TEST(Int8, TheSumIsExpandedByQuantumAndDivisor) {
  std::vector<int8_t> sums(1500 + 2);
  for (size_t i = 0; i < 1500; ++i) sums[i] = static_cast<int8_t>(static_cast<int>(i % 255) - 127);
  const Floats quanta = {0.5F, 0.125F};
  Floats to(1500);
  expand_int8(sums.data(), quanta, 3, to);
  for (size_t i = 0; i < to.size(); ++i)
    ASSERT_EQ(to[i], static_cast<float>(sums[i]) * quanta[i / kQuantumBlock] / 3);
}

TEST(Quanta, TheFirstTakeTheMeanPeak) {
  const Floats values = {1, -5, 2};
  const Floats residual = {0, 0, 0};
  float peak = 0;
  peaks_of(values, residual, &peak);
  EXPECT_EQ(peak, 5);
  Floats quanta(3);
  // Two members: 63 levels, so 5 / 63 becomes 1 / 8, and 8 * 63 / 63 = 8 exactly.
  EXPECT_TRUE(first_quanta(Floats{10, 0, 16 * 63}, 2, quanta));
  EXPECT_EQ(quanta, Floats({0.125F, 8, 8}));
  EXPECT_FALSE(first_quanta(Floats{0, 0, 0}, 2, quanta));
}

TEST(Quanta, FollowTheNeedOfTheMembers) {
  // Four members have 31 levels each: 124 says that all need twice the range or more.
  Floats quanta(6, 1.0F);
  const int8_t needs[] = {124, 80, 62, 30, 10, 0};
  next_quanta(needs, 4, quanta);
  EXPECT_EQ(quanta, Floats({4, 2, 1, 1, 0.5F, 1}));
}

// What compression is for: after many steps the sum of all that was sent is that of the inputs, up
// to what is on the way.
TEST(Quanta, NothingIsLostOverManySteps) {
  constexpr size_t kCount = 2000;
  constexpr int kMembers = 3;
  Floats quanta(blocks_of(kCount));
  std::vector<Floats> residual(kMembers, Floats(kCount, 0.0F));
  std::vector<double> given(kCount, 0), received(kCount, 0);
  ASSERT_TRUE(first_quanta(Floats{0.001F, 0.0F}, kMembers, quanta));  // far too small
  for (uint32_t step = 0; step < 200; ++step) {
    std::vector<int> sums(kCount + quanta.size(), 0);
    for (int member = 0; member < kMembers; ++member) {
      const Floats values = numbers(kCount, 1000 * step + static_cast<uint32_t>(member));
      std::vector<int8_t> sent(sums.size());
      Floats& mine = residual[static_cast<size_t>(member)];
      compress_int8(values, mine, quanta, levels_of(kMembers), sent.data());
      settle_int8(values, sent.data(), quanta, mine);
      for (size_t i = 0; i < kCount; ++i) given[i] += static_cast<double>(values[i]);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += sent[i];
    }
    std::vector<int8_t> small(sums.begin(), sums.end());
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(small[i], sums[i]);
    Floats sum(kCount);
    expand_int8(small.data(), quanta, 1, sum);
    for (size_t i = 0; i < kCount; ++i) received[i] += static_cast<double>(sum[i]);
    next_quanta(small.data() + kCount, kMembers, quanta);
  }
  for (size_t i = 0; i < kCount; ++i) {
    double open = 0;
    for (const Floats& mine : residual) open += static_cast<double>(mine[i]);
    ASSERT_NEAR(given[i], received[i] + open, 1e-3);
    ASSERT_LT(std::fabs(open), 1) << "the quanta have grown to what is needed";
  }
}

}  // namespace
}  // namespace pliant
