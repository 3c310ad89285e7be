// A Box: a half-open range of a tensor in each of its dimensions. The only box of a tensor without
// dimensions has volume one. Values; any thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/result.h"

namespace pliant::tensor {

// More dimensions than any training state has; small enough for a box to need no memory of its own.
inline constexpr uint32_t kDimsMax = 8;

using Coordinates = std::array<uint64_t, kDimsMax>;

struct Box {
  uint32_t dims = 0;
  Coordinates begin = {};  // zero beyond `dims`
  Coordinates end = {};

  auto operator<=>(const Box&) const = default;
  uint64_t extent(uint32_t dim) const { return end[dim] - begin[dim]; }
};

// The box of everything in a tensor of that shape, which has at most kDimsMax dimensions.
Box whole(std::span<const uint64_t> shape);

// The number of elements; zero if some dimension is empty or inverted.
uint64_t volume(const Box& box);

bool is_empty(const Box& box);
bool overlap(const Box& a, const Box& b);
bool contains(const Box& outer, const Box& inner);

// What both have; empty if nothing. Both are of the same number of dimensions, here and below.
Box intersect(const Box& a, const Box& b);

// Appends what is in `a` and not in `b`, as disjoint boxes.
void subtract(const Box& a, const Box& b, std::vector<Box>& rest);

// What none of the boxes covers, as disjoint boxes; an error if that falls into very many.
Result<std::vector<Box>> uncovered(const Box& all, std::span<const Box> boxes);

// Appends the fewest boxes that hold the elements [begin, end) of a tensor of that shape in
// row-major order, in that order: at most 2 * dims - 1.
void append_flat_range(std::span<const uint64_t> shape, uint64_t begin, uint64_t end,
                       std::vector<Box>& boxes);

// Row-major: how many elements apart neighbours in each dimension are.
Coordinates strides_of(std::span<const uint64_t> shape);

// The shape of an array that holds a box and nothing else, and its strides.
std::vector<uint64_t> extents_of(const Box& box);
Coordinates packed_strides(const Box& box);

// "[0:4, 8:16]"
std::string to_string(const Box& box);
// "[4, 16]"
std::string shape_text(std::span<const uint64_t> shape);

}  // namespace pliant::tensor
