#include "pliant/tensor/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pliant/base/check.h"

namespace pliant::tensor {
namespace {

// The part [begin, end) of the row at `at`, whose first `dim` coordinates are fixed.
void append_row_range(std::span<const uint64_t> shape, uint32_t dim, uint64_t begin, uint64_t end,
                      const Box& at, std::vector<Box>& boxes) {
  const auto dims = static_cast<uint32_t>(shape.size());
  if (begin >= end) return;
  uint64_t inner = 1;
  for (uint32_t d = dim + 1; d < dims; ++d) inner *= shape[d];
  const auto rows = [&](uint64_t first, uint64_t last) {
    Box box = at;
    box.begin[dim] = first;
    box.end[dim] = last;
    return box;
  };
  const auto part_of_row = [&](uint64_t row, uint64_t from, uint64_t to) {
    append_row_range(shape, dim + 1, from, to, rows(row, row + 1), boxes);
  };
  const uint64_t first = begin / inner;
  const uint64_t last = end / inner;  // the rows before it end within the range
  const uint64_t head = begin % inner;
  const uint64_t tail = end % inner;
  if (first == last) return part_of_row(first, head, tail);
  if (head != 0) part_of_row(first, head, inner);
  const uint64_t full = head == 0 ? first : first + 1;
  if (full < last) boxes.push_back(rows(full, last));
  if (tail != 0) part_of_row(last, 0, tail);
}

}  // namespace

Box whole(std::span<const uint64_t> shape) {
  PLIANT_CHECK(shape.size() <= kDimsMax, "a box has a limited number of dimensions");
  Box box;
  box.dims = static_cast<uint32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), box.end.begin());
  return box;
}

uint64_t volume(const Box& box) {
  uint64_t product = 1;
  for (uint32_t d = 0; d < box.dims; ++d) {
    if (box.begin[d] >= box.end[d]) return 0;
    product *= box.extent(d);
  }
  return product;
}

bool is_empty(const Box& box) {
  for (uint32_t d = 0; d < box.dims; ++d)
    if (box.begin[d] >= box.end[d]) return true;
  return false;
}

bool overlap(const Box& a, const Box& b) {
  for (uint32_t d = 0; d < a.dims; ++d)
    if (std::max(a.begin[d], b.begin[d]) >= std::min(a.end[d], b.end[d])) return false;
  return true;
}

bool contains(const Box& outer, const Box& inner) {
  for (uint32_t d = 0; d < outer.dims; ++d)
    if (inner.begin[d] < outer.begin[d] || inner.end[d] > outer.end[d]) return false;
  return true;
}

Box intersect(const Box& a, const Box& b) {
  PLIANT_CHECK(a.dims == b.dims, "boxes of different tensors");
  Box box;
  box.dims = a.dims;
  for (uint32_t d = 0; d < a.dims; ++d) {
    box.begin[d] = std::max(a.begin[d], b.begin[d]);
    box.end[d] = std::max(box.begin[d], std::min(a.end[d], b.end[d]));
  }
  return box;
}

void subtract(const Box& a, const Box& b, std::vector<Box>& rest) {
  if (is_empty(a)) return;
  if (!overlap(a, b)) {
    rest.push_back(a);
    return;
  }
  // Slice by slice: what lies before and behind b in this dimension, then on with what is between.
  Box between = a;
  for (uint32_t d = 0; d < a.dims; ++d) {
    if (between.begin[d] < b.begin[d]) {
      Box before = between;
      before.end[d] = b.begin[d];
      rest.push_back(before);
      between.begin[d] = b.begin[d];
    }
    if (between.end[d] > b.end[d]) {
      Box behind = between;
      behind.begin[d] = b.end[d];
      rest.push_back(behind);
      between.end[d] = b.end[d];
    }
  }
}

Result<std::vector<Box>> uncovered(const Box& all, std::span<const Box> boxes) {
  // Boxes of many dimensions that overlap each other can leave very many parts.
  constexpr size_t kPartsMax = size_t{1} << 16;
  std::vector<Box> left;
  if (!is_empty(all)) left.push_back(all);
  std::vector<Box> next;
  for (const Box& box : boxes) {
    if (left.empty()) break;
    next.clear();
    for (const Box& part : left) subtract(part, box, next);
    std::swap(left, next);
    if (left.size() > kPartsMax)
      return invalid("the pieces overlap each other in too many ways; cut them along common lines");
  }
  return left;
}

void append_flat_range(std::span<const uint64_t> shape, uint64_t begin, uint64_t end,
                       std::vector<Box>& boxes) {
  const Box all = whole(shape);
  end = std::min(end, volume(all));
  if (begin >= end) return;
  if (all.dims == 0) {
    boxes.push_back(all);
    return;
  }
  append_row_range(shape, 0, begin, end, all, boxes);
}

std::vector<uint64_t> extents_of(const Box& box) {
  std::vector<uint64_t> extents(box.dims);
  for (uint32_t d = 0; d < box.dims; ++d) extents[d] = box.extent(d);
  return extents;
}

Coordinates packed_strides(const Box& box) {
  Coordinates strides = {};
  uint64_t stride = 1;
  for (uint32_t d = box.dims; d-- > 0; stride *= box.extent(d)) strides[d] = stride;
  return strides;
}

Coordinates strides_of(std::span<const uint64_t> shape) {
  PLIANT_CHECK(shape.size() <= kDimsMax, "a tensor has a limited number of dimensions");
  Coordinates strides = {};
  uint64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

std::string to_string(const Box& box) {
  std::string text;
  for (uint32_t d = 0; d < box.dims; ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.begin[d], box.end[d]);
  return "[" + text + "]";
}

std::string shape_text(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace pliant::tensor
