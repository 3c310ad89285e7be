// Policies for the size of a job, judged on scaling curves against brute force and each other. The
// table with all figures is printed by bench/policy/regret.
#include <gtest/gtest.h>

#include "pliant/policy/test_curves.h"

namespace pliant {
namespace {

constexpr int kSeeds = 4;
constexpr double kTolerance = 0.01;

void judge(const std::vector<ScalingCurve>& curves) {
  Regret mean;
  for (const ScalingCurve& curve : curves) {
    const Regret ours = mean_regret(curve, best_size_for, evaluation_noises(), kSeeds);
    const Regret theirs = mean_regret(curve, add_while_faster_for, evaluation_noises(), kSeeds);
    EXPECT_LE(ours.last, theirs.last + kTolerance) << curve.name;
    EXPECT_LE(ours.whole, theirs.whole + kTolerance) << curve.name;
    EXPECT_LT(ours.last, 0.1) << curve.name;
    mean.last += ours.last / static_cast<double>(curves.size());
    mean.whole += ours.whole / static_cast<double>(curves.size());
  }
  EXPECT_LT(mean.last, 0.05);
  EXPECT_LT(mean.whole, 0.05);
}

TEST(Evaluation, BestSizeIsNearBruteForceOnSyntheticCurvesAndNeverBehindKungFusRule) {
  judge(synthetic_curves());
}

TEST(Evaluation, BestSizeIsNearBruteForceOnRecordedCurvesAndNeverBehindKungFusRule) {
  judge(recorded_curves());
}

TEST(Evaluation, BestSizeIsNearBruteForceOnCurvesThatNobodyChose) {
  const std::vector<ScalingCurve> curves = drawn_curves(40);
  Regret ours;
  Regret theirs;
  for (const ScalingCurve& curve : curves) {
    const Regret regret = mean_regret(curve, best_size_for, {0.1}, 1);
    const Regret kungfu = mean_regret(curve, add_while_faster_for, {0.1}, 1);
    ours.last += regret.last / static_cast<double>(curves.size());
    ours.whole += regret.whole / static_cast<double>(curves.size());
    theirs.whole += kungfu.whole / static_cast<double>(curves.size());
  }
  EXPECT_LT(ours.last, 0.05);
  EXPECT_LT(ours.whole, 0.05);
  EXPECT_LT(ours.whole, theirs.whole);
}

TEST(Evaluation, BestSizeFindsItsWayFromAnySize) {
  double sum = 0;
  int runs = 0;
  for (const ScalingCurve& curve : synthetic_curves()) {
    // A price is in units of the first size, so another start asks for something else.
    if (curve.price > 0) continue;
    for (const int members : {7, 32}) {
      const Regret regret =
          mean_regret(curve, best_size_for, {0.05}, 1, {.start_members = members});
      EXPECT_LT(regret.last, 0.2) << curve.name << " from " << members;
      sum += regret.last;
      ++runs;
    }
  }
  EXPECT_LT(sum / runs, 0.05);
}

TEST(Evaluation, TheSameSeedGivesTheSameRun) {
  const ScalingCurve curve = synthetic_curves()[2];
  const auto run = [&curve] {
    const auto policy = best_size_for(curve);
    return SimulatedJob(curve, {.noise = 0.1, .seed = 7}).simulate(*policy);
  };
  EXPECT_EQ(run().mean_value, run().mean_value);
}

}  // namespace
}  // namespace pliant
