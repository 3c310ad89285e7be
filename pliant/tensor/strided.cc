#include "pliant/tensor/strided.h"

#include <algorithm>
#include <cstring>

namespace pliant::tensor {
namespace {

// Calls `use(to, from, bytes)` with the longest runs that are contiguous on both sides, in
// row-major order; they are offsets in elements.
template <typename Use>
void for_each_run(const Box& box, const Coordinates& to, const Coordinates& from, Use use) {
  uint64_t run = 1;
  uint32_t dims = box.dims;
  while (dims > 0 && (box.extent(dims - 1) == 1 || (to[dims - 1] == run && from[dims - 1] == run)))
    run *= box.extent(--dims);
  Coordinates at = {};
  uint64_t to_at = 0;
  uint64_t from_at = 0;
  while (true) {
    use(to_at, from_at, run);
    uint32_t d = dims;
    while (d > 0) {
      --d;
      to_at += to[d];
      from_at += from[d];
      if (++at[d] < box.extent(d)) break;
      to_at -= to[d] * at[d];
      from_at -= from[d] * at[d];
      at[d] = 0;
      if (d == 0) return;
    }
    if (dims == 0) return;
  }
}

// A transposed array has runs of one element, for which a call would cost more than the copy.
void copy(std::byte* to, const std::byte* from, size_t bytes) {
  switch (bytes) {
    case 1: std::memcpy(to, from, 1); break;
    case 2: std::memcpy(to, from, 2); break;
    case 4: std::memcpy(to, from, 4); break;
    case 8: std::memcpy(to, from, 8); break;
    default: std::memcpy(to, from, bytes);
  }
}

}  // namespace

Slices::Slices(const Box& box, uint64_t elements_max) : box_(box) {
  uint64_t row = 1;
  uint32_t whole_dims = box.dims;  // those from here on are not cut
  while (whole_dims > 0 && row * box.extent(whole_dims - 1) <= elements_max)
    row *= box.extent(--whole_dims);
  if (whole_dims == 0) {
    if (box.dims > 0) rows_ = box.extent(0);
    return;
  }
  dim_ = whole_dims - 1;
  rows_ = std::max<uint64_t>(1, elements_max / row);
  parts_ = static_cast<size_t>((box.extent(dim_) + rows_ - 1) / rows_);
  for (uint32_t d = 0; d < dim_; ++d) outer_ *= static_cast<size_t>(box.extent(d));
}

Box Slices::operator[](size_t index) const {
  Box slice = box_;
  if (box_.dims == 0) return slice;
  const uint64_t part = index % parts_;
  slice.begin[dim_] = box_.begin[dim_] + part * rows_;
  slice.end[dim_] = std::min(box_.end[dim_], slice.begin[dim_] + rows_);
  uint64_t row = index / parts_;
  for (uint32_t d = dim_; d-- > 0; row /= box_.extent(d)) {
    slice.begin[d] = box_.begin[d] + row % box_.extent(d);
    slice.end[d] = slice.begin[d] + 1;
  }
  return slice;
}

bool is_packed(const Box& box, const Coordinates& strides) {
  uint64_t stride = 1;
  for (uint32_t d = box.dims; d-- > 0; stride *= box.extent(d))
    if (box.extent(d) != 1 && strides[d] != stride) return false;
  return true;
}

void copy_box(const Box& box, size_t element_bytes, const BoxTarget& to, const BoxSource& from) {
  for_each_run(box, to.strides, from.strides, [&](uint64_t at, uint64_t other, uint64_t run) {
    copy(to.data + at * element_bytes, from.data + other * element_bytes, run * element_bytes);
  });
}

uint64_t copy_and_sum(const Box& box, size_t element_bytes, const BoxTarget& to,
                      const BoxSource& from, RunningChecksum::Store store) {
  RunningChecksum checksum;
  for_each_run(box, to.strides, from.strides, [&](uint64_t at, uint64_t other, uint64_t run) {
    checksum.copy(to.data + at * element_bytes, from.data + other * element_bytes,
                  run * element_bytes, store);
  });
  return checksum.finish();
}

uint64_t sum_box(const Box& box, size_t element_bytes, const BoxSource& from) {
  RunningChecksum checksum;
  for_each_run(box, from.strides, from.strides, [&](uint64_t, uint64_t at, uint64_t run) {
    checksum.add(from.data + at * element_bytes, run * element_bytes);
  });
  return checksum.finish();
}

}  // namespace pliant::tensor
