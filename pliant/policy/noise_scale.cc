#include "pliant/policy/noise_scale.h"

#include <cmath>
#include <type_traits>

#include "pliant/base/check.h"

namespace pliant {

static_assert(std::is_trivially_copyable_v<NoiseScale>, "it is copied to newcomers as bytes");

NoiseSample noise_sample(std::span<const GradientNorm> by_member, double averaged_squared_norm) {
  NoiseSample sample{.averaged_squared_norm = averaged_squared_norm};
  for (const GradientNorm& member : by_member) {
    if (!(member.samples > 0)) continue;
    sample.members += 1;
    sample.samples += member.samples;
    sample.weighted_squared_norms += member.samples * member.squared_norm;
  }
  return sample;
}

NoiseScale::NoiseScale(double decay) : decay_(decay) {
  PLIANT_CHECK(decay >= 0 && decay < 1, "a decay is at least 0 and less than 1");
}

void NoiseScale::add(const NoiseSample& sample) {
  if (!(sample.members >= 2) || !(sample.samples > 0)) return;
  const double variance =
      (sample.weighted_squared_norms - sample.samples * sample.averaged_squared_norm) /
      (sample.members - 1);
  const double squared_norm = sample.averaged_squared_norm - variance / sample.samples;
  // A gradient that overflowed would spoil the means for ever.
  if (!std::isfinite(variance) || !std::isfinite(squared_norm)) return;
  weight_ = decay_ * weight_ + (1 - decay_);
  variance_ = decay_ * variance_ + (1 - decay_) * variance;
  squared_norm_ = decay_ * squared_norm_ + (1 - decay_) * squared_norm;
}

std::optional<double> NoiseScale::variance() const {
  if (!(weight_ > 0)) return std::nullopt;
  // Equal gradients may give a little less than nothing by rounding.
  return std::max(0.0, variance_ / weight_);
}

std::optional<GradientNoise> NoiseScale::noise() const {
  const std::optional<double> variance = this->variance();
  if (!variance || !(squared_norm_ > 0)) return std::nullopt;
  const double squared_norm = squared_norm_ / weight_;
  const double scale = *variance / squared_norm;
  if (!std::isfinite(scale)) return std::nullopt;
  return GradientNoise{.scale = scale, .variance = *variance, .squared_norm = squared_norm};
}

void NoiseScale::reset() { *this = NoiseScale(decay_); }

}  // namespace pliant
