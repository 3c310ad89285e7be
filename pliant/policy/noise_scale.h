// The noise of gradients, from norms that the members of a step know anyway. Values that are copied
// byte by byte to newcomers (registered as elastic state); any thread, one at a time. training/
// fills it; policies read what comes out.
//
// Why these formulas. Member i has the mean gradient g_i of its b_i samples; all samples are drawn
// alike, with the true gradient G and the covariance C, S = trace C. Then
//
//   E|g_i|^2 = |G|^2 + S / b_i.
//
// Averaged by samples, g = sum_i (b_i / B) g_i with B = sum_i b_i, so
//
//   E|g|^2 = |G|^2 + S / B,
//   E sum_i (b_i / B) |g_i|^2 = |G|^2 + sum_i (b_i / B) (S / b_i) = |G|^2 + n S / B.
//
// The difference of the last two is S (n - 1) / B, whatever the b_i are, hence without bias
//
//   S = (sum_i b_i |g_i|^2 - B |g|^2) / (n - 1),    |G|^2 = |g|^2 - S / B.
//
// The numerator of S is sum_i b_i |g_i - g|^2: it cannot be negative but by rounding. With equal
// b_i these are the well-known two-batch formulas; with unequal ones those weigh members wrongly.
// The estimate of |G|^2 may be negative in a step. So both are averaged over steps, and only then
// divided: the ratio of means, because a mean of ratios is biased and may have no mean at all.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "pliant/policy/signals.h"

namespace pliant {

// What one member knows of its own gradient before it is averaged.
struct GradientNorm {
  double samples = 0;
  double squared_norm = 0;  // of the mean gradient of those samples
};

// One step, as sums over its members: what a small all-reduce gives.
struct NoiseSample {
  double members = 0;                 // that had samples
  double samples = 0;                 // B
  double weighted_squared_norms = 0;  // sum_i b_i |g_i|^2
  double averaged_squared_norm = 0;   // |g|^2, g averaged by samples
};

// Members without samples do not count.
NoiseSample noise_sample(std::span<const GradientNorm> by_member, double averaged_squared_norm);

// Means over the last steps; trivially copyable.
class NoiseScale {
 public:
  // A step counts `decay` times as much as the one after it: 0.9 looks back over some 10 steps.
  explicit NoiseScale(double decay = 0.95);

  // Steps of fewer than two members, and those with infinite or undefined norms, tell nothing and
  // change nothing.
  void add(const NoiseSample& sample);

  // Unknown before two members have made a step together, and while the noise hides the gradient
  // (the estimate of |G|^2 is not positive).
  std::optional<GradientNoise> noise() const;
  // The variance of one sample's gradient alone is known in the latter case too.
  std::optional<double> variance() const;

  void reset();

 private:
  double decay_;
  double weight_ = 0;  // of all steps so far; corrects for the start at zero
  double variance_ = 0;
  double squared_norm_ = 0;
};

}  // namespace pliant
