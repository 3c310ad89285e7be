#include "pliant/policy/scaling_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "pliant/policy/test_draws.h"

namespace pliant {
namespace {

SizeStatistics seen(int64_t members, double seconds, double batch, double noise = 0,
                    uint64_t seed = 1) {
  SizeStatistics size{.members = members};
  Draws draws(seed + static_cast<uint64_t>(members));
  for (int step = 0; step < 50; ++step) size.add(seconds * (1 + noise * draws.normal()), batch);
  return size;
}

TEST(SizeStatistics, MeanAndErrorAreThoseOfTheSteps) {
  SizeStatistics size{.members = 2};
  EXPECT_DOUBLE_EQ(size.relative_error(), 1.0);
  for (double seconds : {1.0, 3.0, 1.0, 3.0}) size.add(seconds, 8);
  EXPECT_DOUBLE_EQ(size.seconds, 2.0);
  EXPECT_DOUBLE_EQ(size.batch, 8.0);
  EXPECT_NEAR(size.relative_error(), std::sqrt(4.0 / 3 / 4) / 2, 1e-12);
}

TEST(SizeStatistics, ALongPauseCountsAsFourStepsAndOldStepsFade) {
  SizeStatistics size{.members = 2};
  for (int step = 0; step < 100; ++step) size.add(step == 50 ? 1000.0 : 1.0, 8);
  EXPECT_NEAR(size.seconds, 1.03, 1e-9);
  for (int step = 0; step < 5000; ++step) size.add(2.0, 8);
  EXPECT_NEAR(size.seconds, 2.0, 0.001);
}

TEST(StepTimeModel, FindsTheTermsOfAnExactCurve) {
  const StepTimeModel truth{
      .compute_seconds = 0.002, .transfer_seconds = 0.05, .latency_seconds = 0.003};
  for (const bool is_scaled : {false, true}) {
    std::vector<SizeStatistics> sizes;
    for (int64_t members : {1, 2, 4, 8}) {
      const double batch = is_scaled ? 64.0 * static_cast<double>(members) : 256.0;
      sizes.push_back(
          seen(members, truth.step_seconds(static_cast<double>(members), batch), batch));
    }
    const StepTimeModel model = fit_step_time(sizes);
    EXPECT_NEAR(model.compute_seconds, truth.compute_seconds, 1e-6);
    EXPECT_NEAR(model.transfer_seconds, truth.transfer_seconds, 1e-5);
    EXPECT_NEAR(model.latency_seconds, truth.latency_seconds, 1e-6);
    const double batch = is_scaled ? 64.0 * 32 : 256.0;
    EXPECT_NEAR(estimate_step(sizes, model, 32).seconds, truth.step_seconds(32, batch), 1e-4);
    EXPECT_NEAR(estimate_step(sizes, model, 32).batch, batch, 1e-6);
  }
}

TEST(StepTimeModel, OneSizeIsBelievedToScaleAndNoneIsNothing) {
  const std::vector<SizeStatistics> one = {seen(2, 1.0, 64)};
  const StepTimeModel model = fit_step_time(one);
  EXPECT_NEAR(model.compute_seconds, 1.0 / 32, 1e-9);
  EXPECT_DOUBLE_EQ(model.transfer_seconds, 0);
  EXPECT_DOUBLE_EQ(fit_step_time({}).step_seconds(4, 64), 0);
}

TEST(StepTimeModel, NoTermIsNegativeWhateverTheNoise) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<SizeStatistics> sizes;
    Draws draws(seed);
    for (int64_t members : {1, 2, 3, 5, 8})
      sizes.push_back(seen(members, 0.01 + draws.uniform(), 64, 0.2, seed));
    const StepTimeModel model = fit_step_time(sizes);
    EXPECT_GE(model.compute_seconds, 0);
    EXPECT_GE(model.transfer_seconds, 0);
    EXPECT_GE(model.latency_seconds, 0);
    EXPECT_GT(model.step_seconds(4, 64), 0);
  }
}

TEST(EstimateStep, MeasurementsStandAndTheirNeighboursFollowThem) {
  // A ring would give no such step: size 8 is twice as slow as the model says.
  std::vector<SizeStatistics> sizes = {seen(1, 1.0, 64), seen(2, 0.5, 64), seen(4, 0.25, 64),
                                       seen(8, 0.4, 64)};
  const StepTimeModel model = fit_step_time(sizes);
  EXPECT_DOUBLE_EQ(estimate_step(sizes, model, 8).seconds, sizes[3].seconds);
  EXPECT_TRUE(estimate_step(sizes, model, 8).is_measured);
  const StepEstimate between = estimate_step(sizes, model, 6);
  EXPECT_FALSE(between.is_measured);
  EXPECT_GT(between.relative_error, estimate_step(sizes, model, 8).relative_error);
  EXPECT_GT(between.seconds, 0.15);
  EXPECT_LT(between.seconds, 0.45);
  EXPECT_GT(estimate_step(sizes, model, 16).relative_error,
            estimate_step(sizes, model, 9).relative_error);
}

}  // namespace
}  // namespace pliant
