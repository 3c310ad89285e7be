#include "pliant/policy/straggler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace pliant {
namespace {

std::vector<MemberSignals> step_of(const std::vector<double>& seconds) {
  std::vector<MemberSignals> by_rank;
  for (size_t rank = 0; rank < seconds.size(); ++rank)
    by_rank.push_back(
        {.peer = {0, static_cast<uint16_t>(rank), 1}, .compute_seconds = seconds[rank]});
  return by_rank;
}

TEST(Straggler, IsNamedAfterSeveralSlowStepsWithItsSlowdown) {
  StragglerDetector detector;
  for (int step = 1; step < 5; ++step)
    EXPECT_FALSE(detector.add(step_of({1, 1.1, 3, 0.9}))) << step;
  const auto straggler = detector.add(step_of({1, 1.1, 3, 0.9}));
  ASSERT_TRUE(straggler.has_value());
  EXPECT_EQ(straggler->rank, 2);
  EXPECT_EQ(straggler->peer, (PeerId{0, 2, 1}));
  EXPECT_NEAR(straggler->slowdown, 3.0, 1e-9);
}

TEST(Straggler, OneHiccupNamesNobody) {
  StragglerDetector detector;
  for (int step = 0; step < 100; ++step)
    EXPECT_FALSE(detector.add(step_of({1, 1, step % 3 == 0 ? 9.0 : 1.0, 1}))) << step;
}

TEST(Straggler, OneQuickStepClearsNobodyButSeveralDo) {
  StragglerDetector detector;
  for (int step = 0; step < 5; ++step) (void)detector.add(step_of({1, 2, 1}));
  EXPECT_TRUE(detector.add(step_of({1, 1, 1})));
  EXPECT_TRUE(detector.add(step_of({1, 2, 1})));
  for (int step = 0; step < 4; ++step) EXPECT_TRUE(detector.add(step_of({1, 1, 1}))) << step;
  EXPECT_FALSE(detector.add(step_of({1, 1, 1})));
  EXPECT_FALSE(detector.add(step_of({1, 2, 1})));
}

TEST(Straggler, OfTwoMembersTheSlowerIsMeasuredAgainstTheOther) {
  StragglerDetector detector;
  std::optional<Straggler> straggler;
  for (int step = 0; step < 5; ++step) straggler = detector.add(step_of({1, 4}));
  ASSERT_TRUE(straggler.has_value());
  EXPECT_EQ(straggler->rank, 1);
  EXPECT_NEAR(straggler->slowdown, 4.0, 1e-9);
}

TEST(Straggler, OfSeveralTheSlowestIsNamed) {
  StragglerDetector detector;
  std::optional<Straggler> straggler;
  for (int step = 0; step < 6; ++step) straggler = detector.add(step_of({1, 2, 1, 8, 1, 1}));
  ASSERT_TRUE(straggler.has_value());
  EXPECT_EQ(straggler->rank, 3);
}

TEST(Straggler, FollowsThePeerNotTheRank) {
  StragglerDetector detector;
  for (int step = 0; step < 4; ++step) (void)detector.add(step_of({1, 1, 2, 1}));
  std::vector<MemberSignals> shrunk = step_of({1, 1, 2, 1});
  shrunk.erase(shrunk.begin());  // rank 0 left; the slow one is rank 1 now
  const auto straggler = detector.add(shrunk);
  ASSERT_TRUE(straggler.has_value());
  EXPECT_EQ(straggler->rank, 1);
  EXPECT_EQ(straggler->peer, (PeerId{0, 2, 1}));
}

TEST(Straggler, AReplacementOnTheSamePlaceStartsAnew) {
  StragglerDetector detector;
  for (int step = 0; step < 5; ++step) (void)detector.add(step_of({1, 1, 2, 1}));
  std::vector<MemberSignals> replaced = step_of({1, 1, 2, 1});
  replaced[2].peer.incarnation = 2;
  EXPECT_FALSE(detector.add(replaced));
}

TEST(Straggler, AloneOrWithoutTimesThereIsNone) {
  StragglerDetector detector;
  for (int step = 0; step < 10; ++step) {
    EXPECT_FALSE(detector.add(step_of({5})));
    EXPECT_FALSE(detector.add(step_of({0, 0, 0})));
    EXPECT_FALSE(detector.add({}));
  }
}

TEST(Straggler, ManySuspectsDoNotHideANamedOne) {
  StragglerDetector detector;
  std::vector<double> seconds(40, 1.0);
  seconds[7] = 3;
  for (int step = 0; step < 5; ++step) (void)detector.add(step_of(seconds));
  for (int step = 0; step < 40; ++step) {
    std::vector<double> jittery = seconds;
    for (int i = 0; i < 15; ++i) jittery[static_cast<size_t>((step * 5 + i * 2) % 40)] = 2;
    jittery[7] = 3;
    const auto straggler = detector.add(step_of(jittery));
    ASSERT_TRUE(straggler.has_value()) << step;
    EXPECT_EQ(straggler->rank, 7) << step;
  }
}

TEST(Straggler, ACopyOfItsBytesGoesOnAlike) {
  StragglerDetector detector;
  for (int step = 0; step < 4; ++step) (void)detector.add(step_of({1, 1, 2, 1}));
  StragglerDetector newcomer;
  std::memcpy(static_cast<void*>(&newcomer), &detector, sizeof detector);
  EXPECT_EQ(newcomer.add(step_of({1, 1, 2, 1})), detector.add(step_of({1, 1, 2, 1})));
}

}  // namespace
}  // namespace pliant
