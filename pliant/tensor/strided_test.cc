#include "pliant/tensor/strided.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace pliant::tensor {
namespace {

Box box_of(const std::vector<uint64_t>& begin, const std::vector<uint64_t>& extents) {
  Box box;
  box.dims = static_cast<uint32_t>(begin.size());
  for (uint32_t d = 0; d < box.dims; ++d) {
    box.begin[d] = begin[d];
    box.end[d] = begin[d] + extents[d];
  }
  return box;
}

constexpr uint64_t kElementsMax = uint64_t{1} << 20;

void expect_partition(const Box& box, uint64_t elements_max = kElementsMax) {
  const Slices slices(box, elements_max);
  uint64_t sum = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Box slice = slices[i];
    EXPECT_TRUE(contains(box, slice)) << to_string(slice);
    EXPECT_GT(volume(slice), 0u);
    EXPECT_LE(volume(slice), elements_max) << to_string(slice);
    sum += volume(slice);
    if (i > 0) {
      EXPECT_FALSE(overlap(slices[i - 1], slice)) << to_string(slice);
      EXPECT_LT(slices[i - 1].begin, slice.begin);
    }
  }
  EXPECT_EQ(sum, volume(box)) << to_string(box);
}

TEST(Slices, ArePartitionsOfBoundedSize) {
  expect_partition(box_of({}, {}));
  expect_partition(box_of({5}, {1}));
  expect_partition(box_of({3}, {50'000'000}));
  expect_partition(box_of({7, 1, 2}, {100, 3, 5}));
  expect_partition(box_of({7, 1, 2}, {3, 1000, 70'000}));
  expect_partition(box_of({0, 0}, {3, 3'000'000}));
  expect_partition(box_of({1, 1, 1, 1}, {2, 1, 2, 4'000'001}));
  for (uint64_t elements_max = 1; elements_max < 30; ++elements_max)
    expect_partition(box_of({4, 0, 1}, {3, 2, 5}), elements_max);
}

TEST(Slices, WhatFitsIsOne) {
  EXPECT_EQ(Slices(box_of({}, {}), 1).size(), 1u);
  EXPECT_EQ(Slices(box_of({0, 0}, {1024, 1024}), kElementsMax).size(), 1u);
  EXPECT_EQ(Slices(box_of({0, 0}, {1025, 1024}), kElementsMax).size(), 2u);
}

// Any box of any array into any other: compared with the plainest loop.
TEST(CopyBox, EveryElementArrivesAndNothingElseChanges) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto dims = static_cast<uint32_t>(random() % 5);
    const size_t element = size_t{1} << random() % 4;
    std::vector<uint64_t> extents, from_shape, to_shape;
    Coordinates from_begin = {}, to_begin = {};
    for (uint32_t d = 0; d < dims; ++d) {
      extents.push_back(1 + random() % 9);
      from_begin[d] = random() % 3;
      to_begin[d] = random() % 3;
      from_shape.push_back(extents[d] + from_begin[d] + random() % 3);
      to_shape.push_back(extents[d] + to_begin[d] + random() % 3);
    }
    const Box box = box_of(std::vector<uint64_t>(dims), extents);
    const Coordinates from_strides = strides_of(from_shape);
    const Coordinates to_strides = strides_of(to_shape);
    uint64_t from_at = 0, to_at = 0;
    for (uint32_t d = 0; d < dims; ++d) {
      from_at += from_begin[d] * from_strides[d];
      to_at += to_begin[d] * to_strides[d];
    }
    std::vector<std::byte> from(volume(whole(from_shape)) * element);
    for (std::byte& byte : from) byte = static_cast<std::byte>(random());
    const std::vector<std::byte> blank(volume(whole(to_shape)) * element, std::byte{0xee});
    std::vector<std::byte> expected = blank;
    std::vector<std::byte> packed;
    Coordinates at = {};
    for (uint64_t i = 0; i < volume(box); ++i) {
      uint64_t rest = i, source = from_at, target = to_at;
      for (uint32_t d = dims; d-- > 0; rest /= extents[d]) {
        at[d] = rest % extents[d];
        source += at[d] * from_strides[d];
        target += at[d] * to_strides[d];
      }
      std::memcpy(expected.data() + target * element, from.data() + source * element, element);
      const auto* bytes = from.data() + source * element;
      packed.insert(packed.end(), bytes, bytes + element);
    }
    const BoxSource source{from.data() + from_at * element, from_strides};
    std::vector<std::byte> to = blank;
    copy_box(box, element, {to.data() + to_at * element, to_strides}, source);
    EXPECT_EQ(to, expected);
    EXPECT_EQ(sum_box(box, element, source), checksum64(packed));
    for (const auto store : {RunningChecksum::Store::kCached, RunningChecksum::Store::kStreamed}) {
      to = blank;
      const BoxTarget target{to.data() + to_at * element, to_strides};
      EXPECT_EQ(copy_and_sum(box, element, target, source, store), checksum64(packed));
      EXPECT_EQ(to, expected);
    }
    std::vector<std::byte> dense(packed.size());
    copy_box(box, element, {dense.data(), packed_strides(box)}, source);
    EXPECT_EQ(dense, packed);
    EXPECT_TRUE(is_packed(box, packed_strides(box)));
  }
}

}  // namespace
}  // namespace pliant::tensor
