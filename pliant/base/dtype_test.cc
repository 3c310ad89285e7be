#include "pliant/base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace pliant {
namespace {

TEST(DTypeTest, EveryNameParsesBackToItsType) {
  std::set<std::string> names;
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    names.insert(to_string(dtype));
    auto parsed = parse_dtype(to_string(dtype));
    ASSERT_TRUE(parsed.ok()) << to_string(dtype);
    EXPECT_EQ(*parsed, dtype);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kDTypes));
}

TEST(DTypeTest, UnknownNamesAreInvalidAndTheMessageListsTheKnownOnes) {
  for (const char* text : {"", "f8", "F32", "f32 ", "float"}) {
    auto parsed = parse_dtype(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.code(), Code::kInvalid);
    EXPECT_NE(parsed.error().message.find("bf16"), std::string::npos);
  }
}

// The numbers travel on the wire and through the C ABI, so they may never move.
TEST(DTypeTest, NumbersAndSizesAreFixed) {
  EXPECT_EQ(static_cast<int>(DType::kI8), 0);
  EXPECT_EQ(static_cast<int>(DType::kU8), 4);
  EXPECT_EQ(static_cast<int>(DType::kBool), 8);
  EXPECT_EQ(static_cast<int>(DType::kF16), 9);
  EXPECT_EQ(static_cast<int>(DType::kF64), 12);
  EXPECT_EQ(static_cast<int>(DType::kF8E4M3), 13);
  EXPECT_EQ(static_cast<int>(DType::kF8E5M2), 14);
  EXPECT_EQ(size_of(DType::kBool), 1u);
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kF32), 4u);
  EXPECT_EQ(size_of(DType::kU64), 8u);
  EXPECT_EQ(size_of(DType::kF8E4M3), 1u);
  EXPECT_EQ(size_of(DType::kF8E5M2), 1u);
}

}  // namespace
}  // namespace pliant
