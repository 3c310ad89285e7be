#include "pliant/policy/size_schedule.h"

#include <gtest/gtest.h>

#include "pliant/policy/test_signals.h"

namespace pliant {
namespace {

SizeSchedule schedule_of(std::string_view text) {
  return SizeSchedule(parse_size_schedule(text).value());
}

Signals at(uint64_t step, int members) {
  Signals signals;
  signals.step = step;
  signals.members = members;
  return signals;
}

TEST(SizeSchedule, DecidesEachEntryOnceWithItsReason) {
  SizeSchedule policy = schedule_of("2@0,4@100,1@200");
  EXPECT_TRUE(policy.before_train(at(0, 2)).empty());  // it has two already
  for (uint64_t step = 1; step < 100; ++step) EXPECT_TRUE(policy.after_step(at(step, 2)).empty());
  const Decision grown = policy.after_step(at(100, 2));
  EXPECT_EQ(grown.members, 4);
  EXPECT_EQ(grown.reason, "the schedule has 4 members from step 100 on");
  EXPECT_TRUE(policy.after_step(at(101, 2)).empty()) << "the newcomers are on their way";
  EXPECT_TRUE(policy.after_step(at(150, 3)).empty()) << "a loss is not its business";
  EXPECT_EQ(policy.after_step(at(200, 4)).members, 1);
}

TEST(SizeSchedule, AJobThatGoesOnTakesTheLastEntryItPassed) {
  SizeSchedule policy = schedule_of("2@0,4@100,8@200");
  EXPECT_EQ(policy.before_train(at(250, 2)).members, 8);
  EXPECT_TRUE(policy.after_step(at(251, 2)).empty());
}

TEST(SizeSchedule, ANewcomerKnowsWhatWasDecided) {
  SizeSchedule policy = schedule_of("2@0,4@100");
  SizeSchedule newcomer = schedule_of("2@0,4@100");
  (void)policy.after_step(at(100, 2));
  hand_over(policy, newcomer);
  EXPECT_TRUE(newcomer.after_step(at(101, 2)).empty());
}

}  // namespace
}  // namespace pliant
