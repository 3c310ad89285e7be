// A user's own policy, as docs/POLICIES.md has it.
#include "pliant/policy/policy.h"

#include <gtest/gtest.h>

#include "pliant/policy/test_signals.h"

namespace {

class GrowWhenNoisy final : public pliant::Policy {
  std::string_view name() const override { return "grow_when_noisy"; }
  std::span<std::byte> state() override { return std::as_writable_bytes(std::span(&steps_, 1)); }
  pliant::Decision after_step(const pliant::Signals& now) override {
    const bool is_noisy = now.noise && now.noise->scale > 2.0 * double(now.batch);
    steps_ = is_noisy ? steps_ + 1 : 0;
    if (steps_ < 50) return {};
    steps_ = 0;
    return {.members = now.members + 1,
            .reason = "the noise scale was twice the batch for 50 steps"};
  }
  int64_t steps_ = 0;
};

TEST(Policy, AUsersOwnDecidesAndANewcomerGoesOnWhereTheOthersAre) {
  GrowWhenNoisy own;
  GrowWhenNoisy newcomer;
  pliant::Policy& policy = own;
  pliant::Signals signals = pliant::step_signals(1, 4);
  signals.noise = pliant::GradientNoise{.scale = 1000, .variance = 1000, .squared_norm = 1};
  for (int step = 1; step < 50; ++step) EXPECT_TRUE(policy.after_step(signals).empty()) << step;
  pliant::hand_over(own, newcomer);
  EXPECT_EQ(policy.after_step(signals).members, 5);
  EXPECT_EQ(static_cast<pliant::Policy&>(newcomer).after_step(signals).members, 5);
}

TEST(Policy, HooksDecideNothingUnlessTheyAreWritten) {
  GrowWhenNoisy own;
  pliant::Policy& policy = own;
  const pliant::Signals signals;
  EXPECT_TRUE(policy.before_train(signals).empty());
  EXPECT_TRUE(policy.before_epoch(signals).empty());
  EXPECT_TRUE(policy.before_step(signals).empty());
  EXPECT_TRUE(policy.after_epoch(signals).empty());
  EXPECT_TRUE(policy.after_train(signals).empty());
}

}  // namespace
