#include "pliant/policy/add_while_faster.h"

#include <gtest/gtest.h>

#include <vector>

#include "pliant/policy/test_signals.h"

namespace pliant {
namespace {

// The size after so many steps on a curve of throughput by size, from one member on.
int size_after(AddWhileFaster& policy, const std::vector<double>& curve, int steps) {
  int members = 1;
  for (int step = 1; step <= steps; ++step) {
    Signals signals = step_signals(static_cast<uint64_t>(step), members);
    signals.samples_per_second = curve[static_cast<size_t>(members - 1)];
    const Decision decision = policy.after_step(signals);
    if (decision.members) {
      EXPECT_FALSE(decision.reason.empty());
      members = *decision.members;
    }
  }
  return members;
}

TEST(AddWhileFaster, ClimbsByOnesToTheLimit) {
  AddWhileFaster policy({.members_max = 4});
  EXPECT_EQ(size_after(policy, {10, 20, 30, 40, 50}, 1000), 4);
  AddWhileFaster early({.members_max = 4});
  EXPECT_EQ(size_after(early, {10, 20, 30, 40, 50}, 299), 3);
}

TEST(AddWhileFaster, StopsForEverWhereTheGainIsBelowItsShare) {
  // With n members it asks for (1 + 0.33 / n) of n - 1: 11.65 of 2, then 1.11 times 16 of 3.
  AddWhileFaster policy({});
  EXPECT_EQ(size_after(policy, {10, 16, 17.7, 40, 80}, 2000), 2);
  AddWhileFaster further({});
  EXPECT_EQ(size_after(further, {10, 16, 17.8, 18, 20}, 2000), 3);
}

TEST(AddWhileFaster, ASingleMemberThatIsNotBeatenStaysAlone) {
  AddWhileFaster policy({});
  EXPECT_EQ(size_after(policy, {10, 9, 8}, 2000), 1);
}

TEST(AddWhileFaster, ANewcomerDecidesLikeTheOthers) {
  AddWhileFaster policy({.window = 10});
  AddWhileFaster newcomer({.window = 10});
  for (uint64_t step = 1; step < 10; ++step) (void)policy.after_step(step_signals(step, 1));
  hand_over(policy, newcomer);
  EXPECT_EQ(newcomer.after_step(step_signals(10, 1)).members, 2);
}

}  // namespace
}  // namespace pliant
