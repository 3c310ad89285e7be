#include "pliant/policy/best_size.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "pliant/policy/test_draws.h"
#include "pliant/policy/test_signals.h"

namespace pliant {
namespace {

// A job without noise on a curve of samples per second; it does what it is told at once, up to the
// members that there are.
class Job {
 public:
  using Speed = std::function<double(int)>;

  Job(BestSizeOptions options, Speed speed, int members)
      : policy(options), speed(std::move(speed)), members(members) {}

  Signals signals() {
    Signals signals = step_signals(++now, members);
    signals.batch = batch ? static_cast<uint64_t>(batch(members)) : 256;
    signals.step_seconds = static_cast<double>(signals.batch) / speed(members);
    signals.samples_per_second = speed(members);
    signals.change_seconds = changes > 0 ? change_seconds : 0;
    signals.members_lost = lost;
    lost = 0;
    if (noise_scale > 0)
      signals.noise = GradientNoise{.scale = noise_scale, .variance = 1, .squared_norm = 1};
    return signals;
  }
  void step() {
    const Decision decision = policy.after_step(signals());
    if (decision.empty()) return;
    EXPECT_TRUE(decision.members.has_value());
    EXPECT_FALSE(decision.reason.empty());
    reasons.push_back(decision.reason);
    asked.push_back(*decision.members);
    members = std::min(*decision.members, available);
    ++changes;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }

  BestSize policy;
  Speed speed;
  std::function<double(int)> batch;
  int members;
  int available = 1000;
  int lost = 0;
  int changes = 0;
  double change_seconds = 1;
  double noise_scale = 0;
  uint64_t now = 0;
  std::vector<int> asked;
  std::vector<std::string> reasons;
};

double peaked(int n) { return n <= 6 ? 100.0 * n : 3600.0 / n; }

TEST(BestSize, DoublesThenRefinesThenSettles) {
  Job job({.members_max = 32}, peaked, 1);
  job.steps(2000);
  EXPECT_EQ(job.members, 6);
  ASSERT_GE(job.asked.size(), 4u);
  EXPECT_EQ((std::vector<int>{job.asked.begin(), job.asked.begin() + 3}),
            (std::vector<int>{2, 4, 8}));
  EXPECT_EQ(job.reasons[0],
            "2 members are tried: 200 samples/s expected, 1 give 100, the best so far");
  const int changes = job.changes;
  job.steps(5000);
  EXPECT_EQ(job.changes, changes) << job.reasons.back();
}

TEST(BestSize, FindsDownwardsToo) {
  for (const int start : {32, 20, 7}) {
    Job job({.members_max = 32}, peaked, start);
    job.steps(4000);
    EXPECT_EQ(job.members, 6) << "from " << start;
  }
}

TEST(BestSize, StaysWithinItsLimits) {
  Job job({.members_min = 3, .members_max = 5}, peaked, 3);
  job.steps(2000);
  EXPECT_EQ(job.members, 5);
  for (int asked : job.asked) EXPECT_TRUE(asked >= 3 && asked <= 5) << asked;
  Job falling(
      {.members_min = 3, .members_max = 9}, [](int n) { return 100.0 / n; }, 6);
  falling.steps(2000);
  EXPECT_EQ(falling.members, 3);
}

TEST(BestSize, AJobOutsideOfItsLimitsIsBroughtInto) {
  const auto falling = [](int n) { return 100.0 / n; };
  Job small({.members_min = 2, .members_max = 8}, falling, 1);
  small.steps(1000);
  EXPECT_EQ(small.members, 2);
  EXPECT_EQ(small.reasons[0], "1 members are outside of the limits of 2 to 8");
  Job large(
      {.members_min = 1, .members_max = 4}, [](int n) { return 100.0 * n; }, 9);
  large.steps(1000);
  EXPECT_EQ(large.members, 4);
}

TEST(BestSize, ALookThatCannotPayIsNotTaken) {
  Job job({.members_max = 32, .resize_seconds = 60, .horizon_seconds = 30}, peaked, 1);
  job.steps(2000);
  EXPECT_EQ(job.changes, 0);
}

TEST(BestSize, AMoveThatCannotPayIsNotMade) {
  const auto falling = [](int n) { return n == 4 ? 105.0 : 100.0; };
  Job dear({.members_min = 4, .members_max = 5, .horizon_seconds = 1000}, falling, 4);
  dear.change_seconds = 100;  // 5 % of 1000 s do not pay for it
  dear.steps(2000);
  EXPECT_EQ(dear.asked, std::vector<int>{5});
  Job cheap({.members_min = 4, .members_max = 5, .horizon_seconds = 1000}, falling, 4);
  cheap.steps(2000);
  EXPECT_EQ(cheap.asked, (std::vector<int>{5, 4}));
}

TEST(BestSize, AGainThatMayBeNoiseMovesNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Draws draws(seed);
    const auto noisy = [&draws](int) { return 100.0 / (1 + 0.2 * std::max(-2.0, draws.normal())); };
    Job job({.members_min = 4, .members_max = 5, .confidence = 6}, noisy, 4);
    job.steps(2000);
    EXPECT_EQ(job.asked, std::vector<int>{5}) << "seed " << seed;
  }
}

TEST(BestSize, APriceMakesItSmaller) {
  const auto saturating = [](int n) { return 100.0 / (0.9 / n + 0.1); };
  Job free({.members_max = 32}, saturating, 1);
  free.steps(4000);
  Job priced({.members_max = 32, .price = 0.3}, saturating, 1);
  priced.steps(4000);
  EXPECT_GE(free.members, 24);
  EXPECT_GE(priced.members, 7);  // 100 / (0.9/n + 0.1) - 30 n is largest at 8.3
  EXPECT_LE(priced.members, 10);
}

TEST(BestSize, SamplesBeyondTheNoiseScaleCountLess) {
  const auto linear = [](int n) { return 100.0 * n; };
  Job job({.members_max = 32, .price = 0.1}, linear, 1);
  job.batch = [](int n) { return 32.0 * n; };
  job.noise_scale = 100;
  job.steps(4000);
  // n (100 + 32) / (100 + 32 n) - 0.1 n is largest at 8.2.
  EXPECT_GE(job.members, 6);
  EXPECT_LE(job.members, 11);
  job.noise_scale = 1e6;  // the gradients got noisier: larger batches are as good as small ones
  job.steps(4000);
  EXPECT_EQ(job.members, 32);
}

TEST(BestSize, RevocationsMakeItSmaller) {
  const auto linear = [](int n) { return 100.0 * n; };
  // n / (1 + 0.02 n) - 0.3 n is largest at 41; with ten times as many revocations at 4.1.
  Job calm({.members_max = 64, .price = 0.3, .revocations_per_hour = 7.2, .repair_seconds = 10},
           linear, 1);
  calm.steps(4000);
  Job wild({.members_max = 64, .price = 0.3, .revocations_per_hour = 72, .repair_seconds = 10},
           linear, 1);
  wild.steps(4000);
  EXPECT_GE(calm.members, 32);
  EXPECT_LE(wild.members, 6);
}

TEST(BestSize, OpensTheSearchAgainWhenTheThroughputFalls) {
  Job job(
      {.members_max = 32}, [](int n) { return 100.0 * n; }, 1);
  job.steps(3000);
  EXPECT_EQ(job.members, 32);
  job.speed = [](int n) { return n <= 4 ? 50.0 * n : 200.0 - 5 * (n - 4); };
  job.steps(3000);
  EXPECT_EQ(job.members, 4);
  bool is_told = false;
  for (const std::string& reason : job.reasons)
    is_told = is_told || reason.starts_with("the throughput is 2 % of what it was; ");
  EXPECT_TRUE(is_told) << job.reasons.back();
}

TEST(BestSize, ASingleLongPauseIsNoDrift) {
  Job job(
      {.members_max = 8}, [](int n) { return 100.0 * n; }, 1);
  job.steps(2000);
  const int changes = job.changes;
  for (int i = 0; i < 20; ++i) {
    Signals pause = job.signals();
    pause.step_seconds *= 200;
    (void)job.policy.after_step(pause);
    job.steps(199);
  }
  EXPECT_EQ(job.changes, changes);
}

TEST(BestSize, MembersThatCannotBeHadAreNotAskedForAgainAndAgain) {
  Job job(
      {.members_max = 32, .patience_seconds = 10}, [](int n) { return 100.0 * n; }, 1);
  job.available = 3;
  job.steps(3000);
  EXPECT_EQ(job.members, 3);
  EXPECT_LE(job.asked.size(), 6u);
}

TEST(BestSize, ALossIsMadeGoodIfNobodyElseDoes) {
  Job job(
      {.members_max = 8, .patience_seconds = 5}, [](int n) { return 100.0 * n; }, 1);
  job.steps(2000);
  ASSERT_EQ(job.members, 8);
  job.members = 6;
  job.lost = 2;
  job.steps(5);
  EXPECT_EQ(job.members, 6) << "the coordinator may be at it already";
  job.steps(500);
  EXPECT_EQ(job.members, 8);
}

TEST(BestSize, ANewcomerDecidesLikeTheOthers) {
  const BestSizeOptions options{.members_max = 32};
  Job job(options, peaked, 1);
  for (int part = 0; part < 40; ++part) {
    job.steps(9);
    BestSize newcomer(options);
    hand_over(job.policy, newcomer);
    BestSize other(options);
    hand_over(job.policy, other);
    const uint64_t now = job.now;
    const int members = job.members;
    for (int step = 0; step < 30; ++step) {
      const Signals signals = job.signals();
      const Decision decision = other.after_step(signals);
      EXPECT_EQ(newcomer.after_step(signals), decision);
      if (decision.members) job.members = *decision.members;
    }
    job.now = now;
    job.members = members;
  }
}

TEST(BestSize, AFullTableForgetsWhatItKnowsLeast) {
  Job job(
      {.members_max = 1000, .window = 2}, [](int n) { return 100.0 * n; }, 1);
  for (int n = 1; n <= 200; ++n) {
    job.members = n;
    for (int step = 0; step < 4 + (n == 50 ? 500 : 0); ++step)
      (void)job.policy.after_step(job.signals());
  }
  job.steps(2000);
  EXPECT_GE(job.members, 200) << "the largest was the best of those that it knows";
}

}  // namespace
}  // namespace pliant
