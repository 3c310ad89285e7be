#include "pliant/tensor/box.h"

#include <gtest/gtest.h>

#include <numeric>

#include "pliant/tensor/test_layouts.h"

namespace pliant::tensor {
namespace {

Box box_of(std::vector<uint64_t> begin, std::vector<uint64_t> end) {
  Box box;
  box.dims = static_cast<uint32_t>(begin.size());
  std::ranges::copy(begin, box.begin.begin());
  std::ranges::copy(end, box.end.begin());
  return box;
}

TEST(Box, ATensorWithoutDimensionsHasOneElement) {
  const Box scalar = whole({});
  EXPECT_EQ(volume(scalar), 1u);
  EXPECT_FALSE(is_empty(scalar));
  EXPECT_TRUE(overlap(scalar, scalar));
  EXPECT_EQ(intersect(scalar, scalar), scalar);
  std::vector<Box> rest;
  subtract(scalar, scalar, rest);
  EXPECT_TRUE(rest.empty());
  append_flat_range({}, 0, 1, rest);
  EXPECT_EQ(rest, std::vector<Box>{scalar});
  EXPECT_EQ(to_string(scalar), "[]");
}

TEST(Box, IntersectsAndContains) {
  const Box a = box_of({0, 0}, {4, 4});
  const Box b = box_of({2, 3}, {6, 8});
  EXPECT_EQ(intersect(a, b), box_of({2, 3}, {4, 4}));
  EXPECT_EQ(volume(intersect(a, b)), 2u);
  EXPECT_TRUE(overlap(a, b));
  const Box beside = box_of({4, 0}, {5, 4});
  EXPECT_FALSE(overlap(a, beside));
  EXPECT_TRUE(is_empty(intersect(a, beside)));
  EXPECT_EQ(volume(intersect(a, beside)), 0u);
  EXPECT_TRUE(contains(a, box_of({1, 1}, {4, 2})));
  EXPECT_FALSE(contains(a, b));
  EXPECT_EQ(to_string(b), "[2:6, 3:8]");
}

TEST(Box, SubtractionLeavesDisjointBoxesOfTheRightSize) {
  Chance chance(3);
  for (int round = 0; round < 2000; ++round) {
    const auto random_box = [&] {
      Box box;
      box.dims = 3;
      for (uint32_t d = 0; d < 3; ++d) {
        box.begin[d] = chance.below(5);
        box.end[d] = box.begin[d] + chance.between(1, 4);
      }
      return box;
    };
    const Box a = random_box();
    const Box b = random_box();
    std::vector<Box> rest;
    subtract(a, b, rest);
    uint64_t sum = 0;
    for (size_t i = 0; i < rest.size(); ++i) {
      ASSERT_TRUE(contains(a, rest[i]));
      ASSERT_FALSE(overlap(rest[i], b));
      for (size_t j = 0; j < i; ++j) ASSERT_FALSE(overlap(rest[i], rest[j]));
      sum += volume(rest[i]);
    }
    ASSERT_EQ(sum, volume(a) - volume(intersect(a, b)));
  }
}

TEST(Box, AFlatRangeIsCoveredInOrderByFewBoxes) {
  const std::vector<uint64_t> shape = {3, 4, 5};
  const Coordinates strides = strides_of(shape);
  EXPECT_EQ(strides[0], 20u);
  EXPECT_EQ(strides[2], 1u);
  for (uint64_t begin = 0; begin <= 60; ++begin) {
    for (uint64_t end = begin; end <= 60; ++end) {
      std::vector<Box> boxes;
      append_flat_range(shape, begin, end, boxes);
      ASSERT_LE(boxes.size(), 5u);
      uint64_t next = begin;
      for (const Box& box : boxes) {
        uint64_t first = 0;
        for (uint32_t d = 0; d < 3; ++d) first += box.begin[d] * strides[d];
        ASSERT_EQ(first, next) << begin << ":" << end << " " << to_string(box);
        // Contiguous: nothing but the first dimension that is not one wide may be partial.
        uint64_t last = 0;
        for (uint32_t d = 0; d < 3; ++d) last += (box.end[d] - 1) * strides[d];
        ASSERT_EQ(last - first + 1, volume(box));
        next += volume(box);
      }
      ASSERT_EQ(next, end);
    }
  }
}

TEST(Box, WhatNoBoxCoversIsNamed) {
  const Box all = box_of({0, 0}, {4, 4});
  const std::vector<Box> most = {box_of({0, 0}, {4, 3}), box_of({0, 3}, {3, 4})};
  const auto left = uncovered(all, most);
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(*left, std::vector<Box>{box_of({3, 3}, {4, 4})});
  EXPECT_TRUE(uncovered(all, std::vector<Box>{all, all})->empty());
  EXPECT_TRUE(uncovered(whole(std::vector<uint64_t>{0, 3}), {})->empty());
}

}  // namespace
}  // namespace pliant::tensor
