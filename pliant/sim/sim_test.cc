// The simulator itself: that it repeats itself exactly, that what it found stays found, and that
// it can fail.
#include <gtest/gtest.h>

#include "pliant/sim/campaign.h"
#include "pliant/sim/fiber.h"
#include "pliant/sim/scale.h"

namespace pliant::sim {
namespace {

TEST(Fiber, GivesWayAndGoesOnWhereItWas) {
  std::vector<int> order;
  Fiber* self = nullptr;
  Fiber fiber([&] {
    order.push_back(1);
    self->give_way();
    order.push_back(3);
  });
  self = &fiber;
  fiber.resume();
  order.push_back(2);
  EXPECT_FALSE(fiber.finished());
  fiber.resume();
  EXPECT_TRUE(fiber.finished());
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

TEST(Timeline, EventsOfOneMomentHappenInTheOrderInWhichTheyWerePlanned) {
  Timeline timeline;
  std::vector<int> order;
  timeline.after(std::chrono::seconds(2), [&] { order.push_back(3); });
  timeline.after(std::chrono::seconds(1), [&] { order.push_back(1); });
  timeline.after(std::chrono::seconds(1), [&] { order.push_back(2); });
  while (timeline.step()) {
  }
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

TEST(History, TheSameSeedGivesTheSameHistory) {
  for (const uint64_t seed : {1, 7, 11, 23, 42}) {
    const HistoryResult first = History({.seed = seed}).run();
    const HistoryResult second = History({.seed = seed}).run();
    EXPECT_EQ(first, second) << "seed " << seed;
    EXPECT_GT(first.commits, 0u);
  }
}

TEST(History, WithoutFaultsThereIsOneView) {
  const HistoryResult history = History({.seed = 5, .members = 4, .calm = true}).run();
  EXPECT_TRUE(history.violations.empty());
  EXPECT_EQ(history.epochs, 1u);
  EXPECT_EQ(history.commits, 4 * history.steps);
}

TEST(History, AKillBeforeAnyDeliveryIsSurvived) {
  const HistoryResult calm = History({.seed = 3, .members = 3, .calm = true}).run();
  ASSERT_GT(calm.deliveries, 100u);
  for (uint64_t at = 1; at <= 100; ++at) {
    const HistoryResult history = History({.seed = 3, .members = 3, .kill_at = at}).run();
    EXPECT_TRUE(history.violations.empty()) << "delivery " << at;
    EXPECT_EQ(history.faults.count("kill") + history.faults.count("kill_unseen"), 1u);
  }
}

// Each of these histories has broken a promise once. What was wrong:
//   217, 725, 6312  a link broke or a peer was late, and the coordinator forgot: all timed out
//   721, 2736 an operation whose messages were not taken timed out without naming anybody
//   1099, 1381 the last member with the state died while it gave it to another, who went on with
//   half 863, 1776 a view was logged and not sent: its new member was refused when it joined again
//   725       a lost worker that left in order made the job smaller after the coordinator's restart
TEST(History, WhatWasFoundStaysFound) {
  for (const uint64_t seed : {217, 721, 725, 863, 1099, 1381, 1776, 2583, 2736, 6312})
    for (const bool constant : {false, true}) {
      const HistoryResult history = History({.seed = seed, .constant_batch = constant}).run();
      for (const Violation& violation : history.violations)
        ADD_FAILURE() << "seed " << seed << ": " << violation.text;
    }
}

// On one host a missed result is not sent again but found where it stands.
TEST(History, AKillBeforeAnyDeliveryHandsResultsOn) {
  uint64_t handed_on = 0;
  for (uint64_t seed = 1; seed <= 15; seed += 2)
    for (uint64_t at = 1; at <= 60; at += 3) {
      const HistoryResult history = History({.seed = seed, .members = 4, .kill_at = at}).run();
      for (const Violation& violation : history.violations)
        ADD_FAILURE() << "seed " << seed << ", delivery " << at << ": " << violation.text;
      handed_on += history.handed_on;
    }
  EXPECT_GT(handed_on, 0u);
}

// The judge demands the whole batch of every step; here that steps were completed by survivors.
TEST(History, AKillBeforeAnyDeliveryKeepsTheBatch) {
  uint64_t redealt = 0;
  for (uint64_t at = 1; at <= 100; ++at) {
    const HistoryResult history =
        History({.seed = 3, .members = 3, .constant_batch = true, .kill_at = at}).run();
    for (const Violation& violation : history.violations)
      ADD_FAILURE() << "delivery " << at << ": " << violation.text;
    redealt += history.redealt;
  }
  EXPECT_GT(redealt, 0u);
  EXPECT_EQ(History({.seed = 3, .members = 3, .constant_batch = false, .kill_at = 9}).run().redealt,
            0u);
}

// A checker that cannot fail proves nothing.
class EveryDefect : public testing::TestWithParam<Defect> {};

TEST_P(EveryDefect, IsFoundWithinTwoThousandSeeds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // That the checkers find defects is no matter of memory or threads: the release build shows it,
  // in a tenth of the time. One defect writes into memory that was freed, which would end the test.
  GTEST_SKIP();
#endif
  const CampaignResult result = run_campaign(
      {.first_seed = 1, .last_seed = 2000, .defect = GetParam(), .stop_at_first = true}, {});
  ASSERT_FALSE(result.failed_seeds.empty()) << to_string(GetParam());
  EXPECT_EQ(test_defect(), Defect::kNone);
  // The command that is printed shows it again.
  const std::string command = result.failures.front().command;
  EXPECT_NE(command.find("--defect"), std::string::npos);
  const CampaignResult again = run_campaign({.first_seed = result.failed_seeds.front(),
                                             .last_seed = result.failed_seeds.front(),
                                             .defect = GetParam()},
                                            {});
  EXPECT_EQ(again.failed_seeds, result.failed_seeds);
  EXPECT_EQ(again.failures.front().history, result.failures.front().history);
}

INSTANTIATE_TEST_SUITE_P(Sim, EveryDefect,
                         testing::ValuesIn(all_defects().begin(), all_defects().end()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(Defect, NamesAreReadBack) {
  for (const Defect defect : all_defects()) EXPECT_EQ(parse_defect(to_string(defect)), defect);
  EXPECT_EQ(parse_defect("no_such"), std::nullopt);
  EXPECT_GE(all_defects().size(), 8u);
}

TEST(Scale, AViewChangeTellsEveryMemberOnce) {
  const ScaleResult result = run_scale({.members = 400, .failures = 40, .seed = 1});
  EXPECT_EQ(result.changes, 40u);
  EXPECT_GT(result.messages_per_change, 350);
  EXPECT_LT(result.messages_per_change, 400);
}

TEST(Scale, TheBytesOfAChangeGrowWithTheMembersAndNotWithTheirSquare) {
  const ScaleResult small = run_scale({.members = 200, .failures = 20, .seed = 1});
  const ScaleResult large = run_scale({.members = 1600, .failures = 160, .seed = 1});
  ASSERT_EQ(large.changes, 160u);
  ASSERT_EQ(large.joins, 8u);
  EXPECT_LT(large.bytes_per_message, 1.1 * small.bytes_per_message);
  EXPECT_LT(large.bytes_per_change, 9 * small.bytes_per_change);
  EXPECT_LT(large.bytes_per_join, 9 * small.bytes_per_join);
  EXPECT_LT(large.log_bytes_per_change, 9 * small.log_bytes_per_change);
}

}  // namespace
}  // namespace pliant::sim
