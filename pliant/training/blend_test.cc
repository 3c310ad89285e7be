#include "pliant/training/blend.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "pliant/collective/reduce_reference.h"

namespace pliant {
namespace {

template <typename T>
std::vector<T> numbers(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> between(-2, 2);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(between(random));
  return values;
}

template <typename T>
void expect_rule(DType dtype) {
  for (const size_t count : {0UL, 1UL, 7UL, 1000UL}) {
    std::vector<T> values = numbers<T>(count, 1);
    const std::vector<T> before = values;
    const std::vector<T> others = numbers<T>(count, 2);
    blend({.dtype = dtype,
           .values = values.data(),
           .others = others.data(),
           .count = count,
           .weight = 0.3,
           .divisor = 3});
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(values[i], static_cast<T>(0.7) * before[i] + static_cast<T>(0.3) * (others[i] / 3));
  }
}

TEST(Blend, FollowsTheRuleInTheTypeOfTheElements) {
  expect_rule<float>(DType::kF32);
  expect_rule<double>(DType::kF64);
}

TEST(Blend, HalvesAreComputedInFloatAndRoundedOnce) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto format = dtype == DType::kF16 ? reduce_reference::kHalf : reduce_reference::kBrain;
    std::vector<uint16_t> values, others;
    for (const float value : numbers<float>(3000, 3))
      values.push_back(reduce_reference::encode(value, format));
    for (const float value : numbers<float>(3000, 4))
      others.push_back(reduce_reference::encode(value, format));
    const std::vector<uint16_t> before = values;
    blend({.dtype = dtype,
           .values = values.data(),
           .others = others.data(),
           .count = values.size(),
           .weight = 0.5,
           .divisor = 1});
    for (size_t i = 0; i < values.size(); ++i) {
      const float wanted = 0.5F * reduce_reference::decode(before[i], format) +
                           0.5F * reduce_reference::decode(others[i], format);
      ASSERT_EQ(values[i], reduce_reference::encode(wanted, format));
    }
  }
}

TEST(Blend, OnlyFloatingPointTypesOfAtLeastTwoBytes) {
  EXPECT_TRUE(can_blend(DType::kBF16));
  EXPECT_FALSE(can_blend(DType::kI64));
  EXPECT_FALSE(can_blend(DType::kF8E4M3));
}

TEST(Divide, InPlaceAndNot) {
  std::vector<double> values = {3, 4.5, -9};
  divide(DType::kF64, values.data(), values.data(), values.size(), 3);
  EXPECT_EQ(values, (std::vector<double>{1, 1.5, -3}));
  std::vector<double> copy(3);
  divide(DType::kF64, copy.data(), values.data(), values.size(), 1);
  EXPECT_EQ(copy, values);
  std::vector<int64_t> steps = {21, -21};
  divide(DType::kI64, steps.data(), steps.data(), steps.size(), 3);
  EXPECT_EQ(steps, (std::vector<int64_t>{7, -7}));
}

}  // namespace
}  // namespace pliant
