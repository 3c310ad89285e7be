#include "pliant/collective/op.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace pliant {
namespace {

TEST(OpTest, EveryOperatorParsesBack) {
  std::set<std::string> names;
  for (int i = 0; i < kOps; ++i) {
    const auto op = static_cast<Op>(i);
    names.insert(to_string(op));
    auto parsed = parse_op(to_string(op));
    ASSERT_TRUE(parsed.ok()) << to_string(op);
    EXPECT_EQ(*parsed, op);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kOps));
}

TEST(OpTest, UnknownNamesAreInvalidAndTheMessageListsTheKnownOnes) {
  auto op = parse_op("avg");
  ASSERT_FALSE(op.ok());
  EXPECT_NE(op.error().message.find("mean"), std::string::npos);
}

// The numbers travel on the wire and through the C ABI, so they may never move.
TEST(OpTest, NumbersAreFixed) {
  EXPECT_EQ(static_cast<int>(Op::kSum), 0);
  EXPECT_EQ(static_cast<int>(Op::kProd), 4);
}

TEST(OpTest, OnlyHalfTypesHaveAWiderAccumulator) {
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
    EXPECT_EQ(accumulator_of(dtype), half ? DType::kF32 : dtype);
  }
}

TEST(OpTest, BoolAndF8AreMovedNotReduced) {
  std::set<std::string> moved;
  for (int i = 0; i < kDTypes; ++i)
    if (!is_reducible(static_cast<DType>(i))) moved.insert(to_string(static_cast<DType>(i)));
  EXPECT_EQ(moved, (std::set<std::string>{"bool", "f8_e4m3", "f8_e5m2"}));
}

}  // namespace
}  // namespace pliant
