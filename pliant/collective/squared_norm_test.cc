#include "pliant/collective/squared_norm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pliant {
namespace {

// The order that the header promises, written plainly.
double reference(const std::vector<double>& values) {
  double sums[16] = {};
  for (size_t i = 0; i < values.size(); ++i) {
    const double square = values[i] * values[i];
    sums[i % 16] += square;
  }
  double four[4];
  for (size_t i = 0; i < 4; ++i) four[i] = (sums[i] + sums[4 + i]) + (sums[8 + i] + sums[12 + i]);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

double from_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  if (exponent == 31) return fraction == 0 ? HUGE_VAL : std::nan("");
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
}

TEST(SquaredNorm, AddsInOneOrder) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 3);
  for (const size_t count : {0, 1, 15, 16, 17, 1000, 4099}) {
    std::vector<double> doubles(count);
    std::vector<float> floats(count);
    std::vector<uint16_t> brains(count);
    std::vector<double> of_floats(count), of_brains(count);
    for (size_t i = 0; i < count; ++i) {
      doubles[i] = normal(random);
      floats[i] = static_cast<float>(doubles[i]);
      of_floats[i] = static_cast<double>(floats[i]);
      brains[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(floats[i]) >> 16);
      of_brains[i] = static_cast<double>(std::bit_cast<float>(uint32_t{brains[i]} << 16));
    }
    EXPECT_EQ(squared_norm(doubles.data(), count, DType::kF64), reference(doubles)) << count;
    EXPECT_EQ(squared_norm(floats.data(), count, DType::kF32), reference(of_floats)) << count;
    EXPECT_EQ(squared_norm(brains.data(), count, DType::kBF16), reference(of_brains)) << count;
  }
}

TEST(SquaredNorm, TakesEveryHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double value = from_half(half);
    const double square = squared_norm(&half, 1, DType::kF16);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(square)) << bits;
    } else {
      EXPECT_EQ(square, value * value) << bits;
    }
  }
}

TEST(SquaredNorm, ShowsWhatIsNotFinite) {
  std::vector<float> values(100, 1.0f);
  EXPECT_EQ(squared_norm(values.data(), values.size(), DType::kF32), 100.0);
  values[99] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(squared_norm(values.data(), values.size(), DType::kF32)));
  values[99] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(std::isfinite(squared_norm(values.data(), values.size(), DType::kF32)));
  EXPECT_FALSE(has_squared_norm(DType::kI32));
}

#if defined(__x86_64__)
TEST(SquaredNorm, DoesNotFollowTheCallersModeOfRounding) {
  const std::vector<float> tiny(32, 1e-40f);
  const double square = squared_norm(tiny.data(), tiny.size(), DType::kF32);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // denormals are zero
  const double in_that_mode = squared_norm(tiny.data(), tiny.size(), DType::kF32);
  _mm_setcsr(before);
  EXPECT_GT(square, 0);
  EXPECT_EQ(square, in_that_mode);
}
#endif

}  // namespace
}  // namespace pliant
