#include "pliant/policy/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "pliant/policy/test_draws.h"

namespace pliant {
namespace {

// The loss of sample s is (w - w* - x_s)^T A (w - w* - x_s) / 2 with A diagonal and x_s normal with
// variances v: its gradient is A (w - w* - x_s), the true gradient A (w - w*), and the trace of the
// gradient's covariance is sum a^2 v. Everything is known.
struct Quadratic {
  std::vector<double> curvature, variance, offset;  // offset: w - w*

  static Quadratic of_size(size_t size) {
    Quadratic problem;
    for (size_t i = 0; i < size; ++i) {
      problem.curvature.push_back(0.5 + 0.1 * static_cast<double>(i % 7));
      problem.variance.push_back(0.2 + 0.3 * static_cast<double>(i % 5));
      problem.offset.push_back(0.1 * static_cast<double>(i % 3) - 0.05);
    }
    return problem;
  }
  double total_variance() const {
    double sum = 0;
    for (size_t i = 0; i < curvature.size(); ++i) sum += curvature[i] * curvature[i] * variance[i];
    return sum;
  }
  double squared_norm() const {
    double sum = 0;
    for (size_t i = 0; i < curvature.size(); ++i)
      sum += curvature[i] * offset[i] * curvature[i] * offset[i];
    return sum;
  }
  // A mean of b samples is drawn at once: it is normal with b times less variance.
  std::vector<double> mean_gradient(double samples, Draws& draws) const {
    std::vector<double> gradient;
    for (size_t i = 0; i < curvature.size(); ++i)
      gradient.push_back(curvature[i] *
                         (offset[i] - draws.normal() * std::sqrt(variance[i] / samples)));
    return gradient;
  }
};

double squared(const std::vector<double>& vector) {
  double sum = 0;
  for (double element : vector) sum += element * element;
  return sum;
}

NoiseSample step_of(const Quadratic& problem, const std::vector<double>& batches, Draws& draws) {
  std::vector<GradientNorm> norms;
  std::vector<double> averaged(problem.curvature.size(), 0.0);
  double all = 0;
  for (double batch : batches) all += batch;
  for (double batch : batches) {
    if (batch == 0) {
      norms.push_back({});
      continue;
    }
    const std::vector<double> gradient = problem.mean_gradient(batch, draws);
    norms.push_back({.samples = batch, .squared_norm = squared(gradient)});
    for (size_t i = 0; i < averaged.size(); ++i) averaged[i] += gradient[i] * batch / all;
  }
  return noise_sample(norms, squared(averaged));
}

void expect_right(const std::vector<double>& batches, uint64_t seed) {
  const Quadratic problem = Quadratic::of_size(40);
  Draws draws(seed);
  NoiseScale noise(0.999);
  for (int step = 0; step < 4000; ++step) noise.add(step_of(problem, batches, draws));
  ASSERT_TRUE(noise.noise().has_value());
  const double truth = problem.total_variance() / problem.squared_norm();
  EXPECT_NEAR(noise.noise()->scale / truth, 1.0, 0.05);
  EXPECT_NEAR(noise.noise()->variance / problem.total_variance(), 1.0, 0.02);
  EXPECT_NEAR(noise.noise()->squared_norm / problem.squared_norm(), 1.0, 0.05);
  EXPECT_DOUBLE_EQ(*noise.variance(), noise.noise()->variance);
}

TEST(NoiseScale, EqualBatchesGiveTheTruth) { expect_right({32, 32, 32, 32}, 1); }
TEST(NoiseScale, TwoMembersGiveTheTruth) { expect_right({64, 64}, 2); }
TEST(NoiseScale, UnequalBatchesGiveTheTruth) { expect_right({100, 10, 3, 1}, 3); }
TEST(NoiseScale, MembersWithoutSamplesDoNotCount) { expect_right({64, 0, 16, 0}, 4); }

TEST(NoiseScale, ADirectEstimateOfTheSameGradientsAgrees) {
  // The reference here is no formula but the spread of many single samples.
  const Quadratic problem = Quadratic::of_size(10);
  Draws draws(5);
  const int count = 20000;
  std::vector<double> sum(10, 0.0);
  double squares = 0;
  for (int i = 0; i < count; ++i) {
    const std::vector<double> gradient = problem.mean_gradient(1, draws);
    squares += squared(gradient);
    for (size_t j = 0; j < 10; ++j) sum[j] += gradient[j] / count;
  }
  const double direct = (squares / count - squared(sum)) / squared(sum);
  NoiseScale noise(0.999);
  for (int step = 0; step < 4000; ++step) noise.add(step_of(problem, {256, 128, 64, 192}, draws));
  EXPECT_NEAR(noise.noise()->scale / direct, 1.0, 0.05);
}

TEST(NoiseScale, FollowsAGradientThatShrinks) {
  Quadratic problem = Quadratic::of_size(40);
  Draws draws(6);
  NoiseScale noise(0.98);
  for (int step = 0; step < 3000; ++step) {
    for (double& offset : problem.offset) offset *= 0.9995;
    noise.add(step_of(problem, {6400, 3200, 9600, 6400}, draws));
  }
  // The mean lags 50 steps behind, in which the squared norm fell by 5 %.
  const double truth = problem.total_variance() / problem.squared_norm();
  EXPECT_NEAR(noise.noise()->scale / (0.95 * truth), 1.0, 0.15);
}

TEST(NoiseScale, OneMemberIsUnknownNotADivisionByZero) {
  NoiseScale noise;
  EXPECT_FALSE(noise.noise().has_value());
  const GradientNorm alone{.samples = 8, .squared_norm = 4};
  for (int step = 0; step < 10; ++step) noise.add(noise_sample({&alone, 1}, 4));
  EXPECT_FALSE(noise.noise().has_value());
  EXPECT_FALSE(noise.variance().has_value());
  noise.add(NoiseSample{});
  EXPECT_FALSE(noise.noise().has_value());
}

TEST(NoiseScale, WhatWasKnownStaysKnownWhileOneMemberIsAlone) {
  NoiseScale noise;
  const std::vector<GradientNorm> two = {{4, 3.0}, {4, 3.0}};
  noise.add(noise_sample(two, 2.0));  // S = (24 - 16) / 1, |G|^2 = 2 - 8 / 8
  const auto before = noise.noise();
  ASSERT_TRUE(before.has_value());
  EXPECT_DOUBLE_EQ(before->variance, 8.0);
  EXPECT_DOUBLE_EQ(before->squared_norm, 1.0);
  EXPECT_DOUBLE_EQ(before->scale, 8.0);
  noise.add(noise_sample({two.data(), 1}, 3.0));
  EXPECT_EQ(noise.noise(), before);
  noise.reset();
  EXPECT_FALSE(noise.noise().has_value());
}

TEST(NoiseScale, NoiseThatHidesTheGradientIsUnknown) {
  NoiseScale noise;
  const std::vector<GradientNorm> opposite = {{4, 1.0}, {4, 1.0}};
  noise.add(noise_sample(opposite, 0.0));  // the members' gradients cancel each other
  EXPECT_FALSE(noise.noise().has_value());
  ASSERT_TRUE(noise.variance().has_value());
  EXPECT_DOUBLE_EQ(*noise.variance(), 8.0);
}

TEST(NoiseScale, EqualGradientsHaveNoNoise) {
  NoiseScale noise;
  const std::vector<GradientNorm> equal = {{3, 0.1}, {5, 0.1}, {7, 0.1}};
  noise.add(noise_sample(equal, 0.1));
  ASSERT_TRUE(noise.noise().has_value());
  EXPECT_NEAR(noise.noise()->scale, 0.0, 1e-12);
  EXPECT_GE(noise.noise()->scale, 0.0);
}

TEST(NoiseScale, AnOverflowDoesNotSpoilTheMeans) {
  NoiseScale noise;
  const std::vector<GradientNorm> good = {{4, 3.0}, {4, 3.0}};
  noise.add(noise_sample(good, 2.0));
  const auto before = noise.noise();
  const std::vector<GradientNorm> bad = {{4, std::numeric_limits<double>::infinity()}, {4, 1.0}};
  noise.add(noise_sample(bad, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(noise.noise(), before);
}

}  // namespace
}  // namespace pliant
