#include "pliant/policy/batch_by_noise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "pliant/policy/test_signals.h"

namespace pliant {
namespace {

Signals with_noise(double scale) {
  Signals signals = step_signals(1, 4);
  signals.batch = 128;
  if (scale > 0)
    signals.noise = GradientNoise{.scale = scale, .variance = scale, .squared_norm = 1};
  return signals;
}

// The first decision within so many steps.
Decision first_decision(Policy& policy, double scale, int steps) {
  for (int step = 0; step < steps; ++step)
    if (Decision decision = policy.after_step(with_noise(scale)); !decision.empty())
      return decision;
  return {};
}

TEST(BatchByNoise, DoublesWhenTheNoiseStaysAboveTheBatch) {
  BatchByNoise policy({.patience = 5});
  EXPECT_TRUE(first_decision(policy, 300, 4).empty());
  const Decision decision = first_decision(policy, 300, 1);
  EXPECT_EQ(decision.global_batch, 256u);
  EXPECT_DOUBLE_EQ(*decision.learning_rate_factor, std::sqrt(2.0));
  EXPECT_EQ(decision.reason,
            "the noise scale has been 300 for 5 steps, 2.3 times the batch of 128: batch 256, "
            "learning rate 1.414 times the first");
  EXPECT_TRUE(first_decision(policy, 300, 100).empty()) << "256 suits a noise scale of 300";
}

TEST(BatchByNoise, FollowsTheNoiseUpAndDownWithinItsLimits) {
  BatchByNoise policy(
      {.batch_min = 64, .batch_max = 600, .patience = 3, .rule = LearningRateRule::kLinear});
  EXPECT_EQ(first_decision(policy, 1e6, 3).global_batch, 256u);
  const Decision decision = first_decision(policy, 1e6, 3);
  EXPECT_EQ(decision.global_batch, 512u);
  EXPECT_DOUBLE_EQ(*decision.learning_rate_factor, 4.0);
  EXPECT_TRUE(first_decision(policy, 1e6, 50).empty()) << "1024 is over the limit";
  EXPECT_EQ(first_decision(policy, 1, 3).global_batch, 256u);
  EXPECT_EQ(first_decision(policy, 1, 3).global_batch, 128u);
  const Decision least = first_decision(policy, 1, 3);
  EXPECT_EQ(least.global_batch, 64u);
  EXPECT_DOUBLE_EQ(*least.learning_rate_factor, 0.5);
  EXPECT_TRUE(first_decision(policy, 1, 50).empty());
}

TEST(BatchByNoise, DoesNotFollowNoiseThatSwingsAroundALimit) {
  BatchByNoise policy({.patience = 3});
  for (int step = 0; step < 200; ++step)
    EXPECT_TRUE(policy.after_step(with_noise(step % 3 == 0 ? 200 : 300)).empty()) << step;
  EXPECT_EQ(first_decision(policy, 300, 3).global_batch, 256u);
  for (int step = 0; step < 200; ++step)
    EXPECT_TRUE(policy.after_step(with_noise(step % 2 == 0 ? 140 : 500)).empty()) << step;
}

TEST(BatchByNoise, UnknownNoiseDecidesNothingAndForgetsNothing) {
  BatchByNoise policy({.patience = 4});
  EXPECT_TRUE(first_decision(policy, 300, 3).empty());
  EXPECT_TRUE(first_decision(policy, 0, 50).empty());
  EXPECT_EQ(first_decision(policy, 300, 1).global_batch, 256u);
}

TEST(BatchByNoise, EveryMemberKeepsASample) {
  BatchByNoise policy({.patience = 1});
  Signals signals = with_noise(0.001);
  signals.members = 128;
  EXPECT_TRUE(policy.after_step(signals).empty());
  signals.members = 64;
  EXPECT_EQ(policy.after_step(signals).global_batch, 64u);
}

TEST(BatchByNoise, ANewcomerDecidesLikeTheOthers) {
  BatchByNoise policy({.patience = 6});
  BatchByNoise newcomer({.patience = 6});
  (void)first_decision(policy, 300, 5);
  hand_over(policy, newcomer);
  EXPECT_EQ(newcomer.after_step(with_noise(300)), policy.after_step(with_noise(300)));
}

}  // namespace
}  // namespace pliant
