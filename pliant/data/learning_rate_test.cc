#include "pliant/data/learning_rate.h"

#include <gtest/gtest.h>

#include <vector>

namespace pliant {
namespace {

TEST(LearningRate, FollowsItsRule) {
  EXPECT_EQ(learning_rate_factor(LearningRateRule::kNone, 512, 64), 1);
  EXPECT_EQ(learning_rate_factor(LearningRateRule::kLinear, 512, 64), 8);
  EXPECT_EQ(learning_rate_factor(LearningRateRule::kLinear, 16, 64), 0.25);
  EXPECT_EQ(learning_rate_factor(LearningRateRule::kSquareRoot, 256, 64), 2);
  EXPECT_EQ(learning_rate_factor(LearningRateRule::kSquareRoot, 64, 64), 1);
}

TEST(LearningRate, RulesHaveNames) {
  for (const char* name : {"none", "linear", "sqrt"}) {
    const auto rule = parse_learning_rate_rule(name);
    ASSERT_TRUE(rule.ok());
    EXPECT_STREQ(to_string(*rule), name);
  }
  const auto wrong = parse_learning_rate_rule("cubic");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("'cubic'"), std::string::npos);
}

std::vector<double> factors(const LearningRateOptions& options,
                            const std::vector<uint64_t>& batches, LearningRateState state = {}) {
  std::vector<double> found;
  uint64_t step = 1;
  for (const uint64_t batch : batches)
    found.push_back(learning_rate_factor(options, state, step++, batch));
  return found;
}

TEST(LearningRate, GrowsOverTheWarmUpAndFallsAtOnce) {
  const LearningRateOptions options{LearningRateRule::kLinear, 10, 4};
  EXPECT_EQ(factors(options, {10, 10, 30, 30, 30, 30, 30, 30, 20, 20}),
            (std::vector<double>{1, 1, 1, 1.5, 2, 2.5, 3, 3, 2, 2}));
}

TEST(LearningRate, ChangesOnItsWay) {
  const LearningRateOptions options{LearningRateRule::kLinear, 10, 4};
  // From 2, where it was, to 4.
  EXPECT_EQ(factors(options, {10, 30, 30, 40, 40, 40, 40, 40}),
            (std::vector<double>{1, 1, 1.5, 2, 2.5, 3, 3.5, 4}));
  // Half way up, a smaller batch, which still means more than the rate is now.
  EXPECT_EQ(factors(options, {10, 50, 50, 20, 20}), (std::vector<double>{1, 1, 2, 2, 2}));
}

TEST(LearningRate, WarmsUpTheFirstBatchOfAJob) {
  EXPECT_EQ(factors({LearningRateRule::kLinear, 10, 2}, {30, 30, 30, 30}),
            (std::vector<double>{1, 2, 3, 3}));
  EXPECT_EQ(factors({LearningRateRule::kLinear, 10, 0}, {30, 10, 30}),
            (std::vector<double>{3, 1, 3}));
}

// A step that is asked for twice, or by a newcomer that was given the state, has one factor.
TEST(LearningRate, IsTheSameForAllWithTheSameState) {
  const LearningRateOptions options{LearningRateRule::kSquareRoot, 16, 10};
  LearningRateState state;
  for (uint64_t step = 1; step < 40; ++step) {
    const uint64_t batch = 16 << (step / 8 % 3);
    LearningRateState newcomer = state;
    const double factor = learning_rate_factor(options, state, step, batch);
    EXPECT_EQ(learning_rate_factor(options, newcomer, step, batch), factor);
    EXPECT_EQ(learning_rate_factor(options, state, step, batch), factor);
  }
}

}  // namespace
}  // namespace pliant
