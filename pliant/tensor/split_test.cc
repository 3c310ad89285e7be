#include "pliant/tensor/split.h"

#include <gtest/gtest.h>

namespace pliant::tensor {
namespace {

using Bounds = std::vector<uint64_t>;

std::string fault(const DimDivision& division, uint64_t extent, uint32_t parts) {
  const auto made = divide(division, extent, parts);
  return made ? "" : made.error().message;
}

TEST(Split, Conventions) {
  EXPECT_EQ(*cut_into({}, 8, 4), (Bounds{0, 2, 4, 6, 8}));
  EXPECT_EQ(*cut_into({.kind = Split::Kind::kCeil}, 5, 4), (Bounds{0, 2, 4, 5, 5}));
  EXPECT_EQ(*cut_into({.kind = Split::Kind::kBalanced}, 5, 4), (Bounds{0, 2, 3, 4, 5}));
  EXPECT_EQ(*cut_into({.kind = Split::Kind::kBalanced, .unit = 64}, 64 * 5, 2),
            (Bounds{0, 192, 320}));
  EXPECT_EQ(*cut_into({.kind = Split::Kind::kSizes, .sizes = {3, 0, 2}}, 5, 3),
            (Bounds{0, 3, 3, 5}));
  EXPECT_EQ(*cut_into({}, 0, 4), (Bounds{0, 0, 0, 0, 0}));
}

TEST(Split, SaysWhatDoesNotFit) {
  EXPECT_NE(cut_into({}, 5, 4).error().message.find("cannot be divided evenly by 4"),
            std::string::npos);
  EXPECT_NE(cut_into({.unit = 3}, 8, 2).error().message.find("unit of 3"), std::string::npos);
  const Split sizes{.kind = Split::Kind::kSizes, .sizes = {2, 2}};
  EXPECT_NE(cut_into(sizes, 5, 2).error().message.find("4 of 5"), std::string::npos);
  EXPECT_NE(cut_into(sizes, 3, 2).error().message.find("more than the 3"), std::string::npos);
  EXPECT_NE(cut_into(sizes, 4, 3).error().message.find("2 sizes are given for 3"),
            std::string::npos);
  EXPECT_FALSE(cut_into({.kind = Split::Kind::kSizes, .sizes = {UINT64_MAX, 2}}, 1, 2).ok());
}

TEST(Divide, PaddingIsLocalAndHasNoSource) {
  const auto parts = divide({.padded = 12}, 10, 3);
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ((*parts)[2], (DimPart{{{8, 10, 0}}, 4}));
  const auto more = divide({.padded = 12}, 4, 3);
  EXPECT_EQ((*more)[1], (DimPart{{}, 4}));
  EXPECT_NE(fault({.padded = 8}, 10, 2).find("10 already"), std::string::npos);
}

TEST(Divide, BlocksAreEachDivided) {
  const auto parts = divide({.blocks = {{"gate", 4}, {"up", 4}}}, 8, 2);
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ((*parts)[1], (DimPart{{{2, 4, 0}, {6, 8, 2}}, 4}));
}

// Two key heads over four ranks: each is on two of them.
TEST(Divide, UnitsThatAreFewerThanRanksAreShared) {
  const auto parts = divide({.blocks = {{"query", 8, 4}, {"key", 4, 2}}}, 12, 4);
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ((*parts)[0], (DimPart{{{0, 2, 0}, {8, 10, 2}}, 4}));
  EXPECT_EQ((*parts)[1], (DimPart{{{2, 4, 0}, {8, 10, 2}}, 4}));
  EXPECT_EQ((*parts)[2], (DimPart{{{4, 6, 0}, {10, 12, 2}}, 4}));
  EXPECT_NE(fault({.blocks = {{"key", 6, 3}}}, 6, 4).find("block 'key': 4 ranks cannot share 3"),
            std::string::npos);
}

TEST(Divide, BlocksRepeat) {
  const auto parts = divide({.blocks = {{"", 2}}, .repeat = 3}, 6, 2);
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ((*parts)[1], (DimPart{{{1, 2, 0}, {3, 4, 1}, {5, 6, 2}}, 3}));
}

TEST(Divide, BlocksMustCoverTheDimension) {
  EXPECT_NE(fault({.blocks = {{"a", 4}, {"b", 3}}}, 8, 1)
                .find("cover 7 elements, but the dimension "
                      "has 8"),
            std::string::npos);
  EXPECT_NE(fault({.blocks = {{"a", 9}}}, 8, 1), "");
  EXPECT_NE(fault({.blocks = {{"a", 8}}, .padded = 16}, 8, 1).find("padded"), std::string::npos);
  EXPECT_NE(fault({.blocks = {{"a", 8, 3}}}, 8, 1).find("3 equal units"), std::string::npos);
  EXPECT_NE(fault({.blocks = {{"a", 1}}, .repeat = 4'000'000'000}, 4'000'000'000, 2).find("blocks"),
            std::string::npos);
}

}  // namespace
}  // namespace pliant::tensor
