#include "pliant/membership/fate.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

StepReport report(uint64_t committed, uint64_t open, uint32_t assigned_epoch = 1) {
  StepReport made;
  made.committed = committed;
  made.open = open;
  made.assigned_epoch = open == 0 ? 0 : assigned_epoch;
  made.has_state = 1;
  return made;
}

StepReport newcomer() { return {}; }

constexpr PeerId kDead{.host = 0, .slot = 3, .incarnation = 1};
constexpr PeerId kOther{.host = 0, .slot = 1, .incarnation = 2};

TEST(Fate, AJobBeginsWithTheStateOfRankZero) {
  const auto fate = decide_fate(std::vector{newcomer(), newcomer(), newcomer()});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->with_state, std::vector<Rank>{0});
  EXPECT_EQ(fate->committed, 0u);
  EXPECT_EQ(fate->sync_before, 1u);
  EXPECT_TRUE(fate->behind.empty());
}

TEST(Fate, AStepThatNobodyFinishedIsRunAgain) {
  const auto fate = decide_fate(std::vector{report(6, 7, 3), report(6, 7, 3)});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->committed, 6u);
  EXPECT_TRUE(fate->behind.empty());
  EXPECT_EQ(fate->open, 7u);
  EXPECT_EQ(fate->assigned_epoch, 3u);
}

TEST(Fate, AStepThatSomebodyFinishedIsFinishedByAll) {
  const auto fate =
      decide_fate(std::vector{report(6, 7), report(7, 0), report(6, 7), report(7, 8, 5)});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->committed, 7u);
  EXPECT_EQ(fate->holder, 1);
  EXPECT_EQ(fate->behind, (std::vector<Rank>{0, 2}));
  // Rank 3 is inside step 8 already: its samples stay dealt out, and newcomers wait for its end.
  EXPECT_EQ(fate->open, 8u);
  EXPECT_EQ(fate->assigned_epoch, 5u);
  EXPECT_EQ(fate->sync_before, 9u);
}

TEST(Fate, BetweenStepsNewcomersGetTheStateAtOnce) {
  const auto fate = decide_fate(std::vector{report(4, 0), newcomer(), report(4, 0)});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->with_state, (std::vector<Rank>{0, 2}));
  EXPECT_EQ(fate->open, 0u);
  EXPECT_EQ(fate->sync_before, 5u);
}

TEST(Fate, WhatADeadMemberHandedInCountsIfAllCanReachIt) {
  StepReport sees_both = report(2, 3);
  sees_both.left_behind[0] = kOther.packed();
  sees_both.left_behind[1] = kDead.packed();
  StepReport sees_one = report(2, 3);
  sees_one.left_behind[0] = kDead.packed();
  const auto fate = decide_fate(std::vector{sees_both, sees_one});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->left_behind, std::vector{kDead});
  // A member that is not inside the step has not looked.
  const auto other = decide_fate(std::vector{sees_both, report(2, 0)});
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(other->left_behind.empty());
}

StepReport redealt(StepReport report, uint32_t epoch, uint32_t redeals) {
  report.redealt_epoch = epoch;
  report.redeals = redeals;
  return report;
}

TEST(Fate, WhoMissedARedealIsToldOfItByTheFirstWhoKnows) {
  const StepReport behind = report(6, 7, 3);
  const auto fate = decide_fate(std::vector{redealt(behind, 4, 1), redealt(behind, 6, 2), behind,
                                            newcomer(), redealt(behind, 6, 2)});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->redealt_epoch, 6u);
  EXPECT_EQ(fate->redeals, 2u);
  EXPECT_EQ(fate->redealer, 1);
}

TEST(Fate, RedealsThatEverybodyKnowsAreNotTold) {
  const StepReport inside = redealt(report(6, 7, 3), 5, 1);
  const auto fate = decide_fate(std::vector{inside, newcomer(), inside});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->redealt_epoch, 5u);
  EXPECT_EQ(fate->redeals, 1u);
  EXPECT_EQ(fate->redealer, -1);
  // One that has not begun the step will need them when it does.
  const auto other = decide_fate(std::vector{report(6, 0), inside});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->redealer, 1);
}

TEST(Fate, RedealsOfAStepThatIsCommittedDoNotMatter) {
  const auto fate = decide_fate(std::vector{redealt(report(6, 7, 3), 5, 1), report(7, 0)});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->open, 0u);
  EXPECT_EQ(fate->redeals, 0u);
  EXPECT_EQ(fate->redealer, -1);
  const auto next = decide_fate(std::vector{redealt(report(6, 7, 3), 5, 1), report(7, 8, 4)});
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->open, 8u);
  EXPECT_EQ(next->redeals, 0u);
  EXPECT_EQ(next->redealer, -1);
}

TEST(Fate, AChangeOfSettingsThatSomeHaveMadeIsMadeByAll) {
  std::vector<StepReport> reports = {report(6, 7, 3), report(6, 7, 3), StepReport{}};
  reports[0].settings = 2;
  reports[1].settings = 3;
  const auto fate = decide_fate(reports);
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->settler, 1);
  // Newcomers plan by what they were started with, as everybody did before the first change.
  reports[0].settings = reports[1].settings = 0;
  const auto agreed = decide_fate(reports);
  ASSERT_TRUE(agreed.ok());
  EXPECT_EQ(agreed->settler, -1);
}

TEST(Fate, MembersOfDifferentHistoriesAreRefused) {
  const auto fate = decide_fate(std::vector{report(9, 0), report(4, 5)});
  ASSERT_FALSE(fate.ok());
  EXPECT_NE(fate.error().message.find("step 9"), std::string::npos);
}

TEST(Fate, ANewJobBeginsWithAMemberWhoseStateIsWhole) {
  StepReport spoiled;
  spoiled.has_state = StepReport::kSpoiled;
  const auto fate = decide_fate(std::vector{spoiled, StepReport{}, StepReport{}});
  ASSERT_TRUE(fate.ok());
  EXPECT_EQ(fate->with_state, std::vector<Rank>{1});
  // Half of a state is none, and nobody may go on with it.
  EXPECT_FALSE(decide_fate(std::vector{spoiled, spoiled}).ok());
}

}  // namespace
}  // namespace pliant
