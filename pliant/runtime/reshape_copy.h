// How boxes of tensors are moved in memory: cut into slices of bounded size, which are what one
// thread copies, one message carries and one checksum is of; and copied run by run, whatever their
// strides are. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pliant/base/checksum.h"
#include "pliant/tensor/box.h"
#include "pliant/tensor/layout.h"

namespace pliant {

// Large enough for a link and small enough for a few to be in flight.
inline constexpr size_t kSliceBytes = size_t{4} << 20;

// The slices of a box: a partition into boxes of at most kSliceBytes, in row-major order. Equal on
// both sides of a move.
class Slices {
 public:
  Slices(const tensor::Box& box, size_t element_bytes);

  size_t size() const { return outer_ * parts_; }
  tensor::Box operator[](size_t index) const;

 private:
  const tensor::Box box_;
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
  tensor::Coordinates strides = {};
};
using Source = Strided<const std::byte>;
using Target = Strided<std::byte>;

// A box inside a piece of a rank's memory, whose buffer begins at `buffer`.
template <typename Byte>
Strided<Byte> part_of(const tensor::Piece& piece, Byte* buffer, const tensor::Box& box,
                      size_t element_bytes) {
  return {buffer + piece.offset_of(box) * element_bytes, piece.strides};
}

// The box, packed without gaps.
tensor::Coordinates packed_strides(const tensor::Box& box);

// Copies a box.
void copy_box(const tensor::Box& box, size_t element_bytes, const Target& to, const Source& from);
// Copies it, and returns checksum64() of its packed elements.
uint64_t copy_and_sum(const tensor::Box& box, size_t element_bytes, const Target& to,
                      const Source& from, RunningChecksum::Store store);
uint64_t sum_box(const tensor::Box& box, size_t element_bytes, const Source& from);

// True if its elements lie one behind the other.
bool is_packed(const tensor::Box& box, const tensor::Coordinates& strides);

}  // namespace pliant
