// How boxes of tensors are moved in memory: cut into slices of bounded size, and copied run by run,
// whatever their strides are. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pliant/base/checksum.h"
#include "pliant/tensor/box.h"
#include "pliant/tensor/layout.h"

namespace pliant::tensor {

// The slices of a box: a partition into boxes of at most so many elements, each of which is one run
// of the box in row-major order, in that order. A box that is empty is a slice of itself.
class Slices {
 public:
  Slices(const Box& box, uint64_t elements_max);

  size_t size() const { return outer_ * parts_; }
  Box operator[](size_t index) const;

 private:
  const Box box_;
  uint32_t dim_ = 0;  // the one that is cut into runs of `rows_`; those before it into single rows
  uint64_t rows_ = 1;
  size_t parts_ = 1;  // of dim_
  size_t outer_ = 1;  // rows of the dimensions before it
};

// A box in memory: `data` is its first element, and neighbours in dimension d are strides[d]
// elements apart.
template <typename Byte>
struct Strided {
  Byte* data = nullptr;
  Coordinates strides = {};
};
using BoxSource = Strided<const std::byte>;
using BoxTarget = Strided<std::byte>;

// A box inside a piece of a rank's memory, whose buffer begins at `buffer`.
template <typename Byte>
Strided<Byte> part_of(const Piece& piece, Byte* buffer, const Box& box, size_t element_bytes) {
  return {buffer + piece.offset_of(box) * element_bytes, piece.strides};
}

// Copies a box.
void copy_box(const Box& box, size_t element_bytes, const BoxTarget& to, const BoxSource& from);
// Copies it, and returns checksum64() of its packed elements.
uint64_t copy_and_sum(const Box& box, size_t element_bytes, const BoxTarget& to,
                      const BoxSource& from, RunningChecksum::Store store);
uint64_t sum_box(const Box& box, size_t element_bytes, const BoxSource& from);

// True if its elements lie one behind the other.
bool is_packed(const Box& box, const Coordinates& strides);

}  // namespace pliant::tensor
