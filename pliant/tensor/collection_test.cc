#include "pliant/tensor/collection.h"

#include <gtest/gtest.h>

namespace pliant::tensor {
namespace {

std::string fault(std::vector<TensorInfo> tensors) {
  const auto made = Collection::make(std::move(tensors));
  return made ? "" : made.error().message;
}

TEST(Collection, KeepsItsOrderAndFindsByName) {
  const auto made = Collection::make({{"w", DType::kBF16, {4, 8}}, {"step", DType::kI64}});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->size(), 2u);
  EXPECT_EQ((*made)[1].name, "step");
  EXPECT_EQ(made->find("w"), 0u);
  EXPECT_FALSE(made->find("v"));
  EXPECT_EQ(made->bytes(), 64u + 8u);
  EXPECT_EQ(to_string((*made)[0]), "bf16 [4, 8]");
  EXPECT_EQ(to_string((*made)[1]), "i64 []");
}

TEST(Collection, EmptyTensorsHaveNoBytes) {
  const auto made = Collection::make({{"none", DType::kF32, {0, 8}}});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->bytes(), 0u);
}

TEST(Collection, RefusesBadTensorsByName) {
  EXPECT_NE(fault({{"", DType::kF32}}).find("no name"), std::string::npos);
  EXPECT_NE(fault({{"a\nb", DType::kF32}}).find("control"), std::string::npos);
  EXPECT_NE(fault({{std::string(600, 'x'), DType::kF32}}).find("512"), std::string::npos);
  EXPECT_NE(fault({{"a", DType::kF32}, {"b", DType::kF32}, {"a", DType::kF64}})
                .find("'a' is there twice, as number 0 and number 2"),
            std::string::npos);
  EXPECT_NE(fault({{"deep", DType::kF32, std::vector<uint64_t>(9, 1)}}).find("'deep' has 9"),
            std::string::npos);
}

TEST(Collection, SizesCannotOverflow) {
  const uint64_t large = uint64_t{1} << 40;
  EXPECT_NE(fault({{"w", DType::kF32, {large, large}}}).find("'w'"), std::string::npos);
  EXPECT_NE(fault({{"w", DType::kF32, {0, UINT64_MAX}}}).find("'w'"), std::string::npos);
  EXPECT_NE(fault({{"w", DType::kI8, {UINT64_MAX, UINT64_MAX}}}).find("'w'"), std::string::npos);
  const uint64_t most = uint64_t{1} << 60;
  EXPECT_EQ(fault({{"w", DType::kI8, {most}}}), "");
  EXPECT_NE(fault({{"v", DType::kI8, {most}}, {"w", DType::kI8, {1}}}).find("together"),
            std::string::npos);
}

}  // namespace
}  // namespace pliant::tensor
