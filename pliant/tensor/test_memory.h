// For tests: the memory of all ranks of a layout, and the plainest possible execution of a plan
// over it, element by element. One thread.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan.h"

namespace pliant::tensor {

using Data = std::vector<std::byte>;

inline constexpr std::byte kUnwritten{0xee};

// The bytes of one element, different for different elements of any tensor.
inline Data element_bytes(const TensorInfo& tensor, uint64_t index) {
  uint64_t value = hash64(tensor.name, index + 1);
  if (tensor.dtype == DType::kBool) value &= 1;
  Data bytes(size_of(tensor.dtype));
  std::memcpy(bytes.data(), &value, bytes.size());
  return bytes;
}

// Calls `use` with each position of a box, relative to its beginning, in row-major order.
inline void for_each_element(const Box& box, const std::function<void(const Coordinates&)>& use) {
  if (is_empty(box)) return;
  Coordinates at = {};
  while (true) {
    use(at);
    uint32_t d = box.dims;
    while (d > 0 && ++at[d - 1] == box.extent(d - 1)) at[--d] = 0;
    if (d == 0) return;
  }
}

inline uint64_t dot(const Coordinates& at, const Coordinates& strides, uint32_t dims) {
  uint64_t sum = 0;
  for (uint32_t d = 0; d < dims; ++d) sum += at[d] * strides[d];
  return sum;
}

// The number of an element in the whole tensor.
inline uint64_t global_index(const TensorInfo& tensor, const Box& box, const Coordinates& at) {
  const Coordinates strides = strides_of(tensor.shape);
  return dot(box.begin, strides, box.dims) + dot(at, strides, box.dims);
}

class Memory {
 public:
  explicit Memory(const Layout& layout) : layout_(layout) {
    for (Rank rank = 0; rank < static_cast<Rank>(layout.mesh().size()); ++rank) {
      holdings_.push_back(layout.holding(rank));
      auto& buffers = data_.emplace_back();
      for (const LocalBuffer& buffer : holdings_.back().buffers)
        buffers.emplace_back(buffer.elements * size_of(buffer.dtype), kUnwritten);
    }
  }

  // Gives every element of every replica its value.
  void fill() {
    for (size_t rank = 0; rank < holdings_.size(); ++rank) {
      for (const Piece& piece : holdings_[rank].pieces) {
        const TensorInfo& tensor = layout_.collection()[piece.tensor];
        for_each_element(piece.box, [&](const Coordinates& at) {
          write(rank, piece, at, element_bytes(tensor, global_index(tensor, piece.box, at)));
        });
      }
    }
  }

  // How often each element of each rank's memory has been written must be: once, or never if it is
  // padding.
  void expect_whole() const {
    for (size_t rank = 0; rank < holdings_.size(); ++rank) {
      std::vector<std::vector<int>> seen;
      for (const LocalBuffer& buffer : holdings_[rank].buffers) seen.emplace_back(buffer.elements);
      for (const Piece& piece : holdings_[rank].pieces) {
        const TensorInfo& tensor = layout_.collection()[piece.tensor];
        for_each_element(piece.box, [&](const Coordinates& at) {
          const uint64_t place = piece.offset + dot(at, piece.strides, piece.box.dims);
          ASSERT_LT(place, seen[piece.buffer].size());
          ++seen[piece.buffer][place];
          ASSERT_EQ(read(rank, piece, at),
                    element_bytes(tensor, global_index(tensor, piece.box, at)))
              << tensor.name << " on rank " << rank;
        });
      }
      for (size_t b = 0; b < seen.size(); ++b) {
        const LocalBuffer& buffer = holdings_[rank].buffers[b];
        bool has_padding = false;
        for (size_t i = 0; i < seen[b].size(); ++i) {
          ASSERT_LE(seen[b][i], 1) << buffer.name << " on rank " << rank;
          has_padding = has_padding || seen[b][i] == 0;
          if (seen[b][i] == 0) {
            ASSERT_EQ(data_[rank][b][i * size_of(buffer.dtype)], kUnwritten) << buffer.name;
          }
        }
        ASSERT_EQ(has_padding, buffer.is_padded) << buffer.name << " on rank " << rank;
      }
    }
  }

  // Takes what a plan brings; nothing is written twice.
  void execute(const Plan& plan, const Memory& from) {
    Written written;
    for (const Holding& holding : holdings_) {
      written.emplace_back();
      for (const LocalBuffer& buffer : holding.buffers)
        written.back().emplace_back(buffer.elements);
    }
    for (const Move& move : plan.moves) {
      copy(plan, move, from, written);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const Move& move : plan.relays) {
      copy(plan, move, *this, written);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  // The bytes that a new rank needs and its process does not have, element by element.
  uint64_t missing_bytes(const Plan& plan, const Memory& from) const {
    uint64_t sum = 0;
    for (size_t rank = 0; rank < holdings_.size(); ++rank) {
      for (const Piece& piece : holdings_[rank].pieces) {
        const TensorInfo& tensor = layout_.collection()[piece.tensor];
        const size_t old_tensor = *from.layout_.collection().find(tensor.name);
        for_each_element(piece.box, [&](const Coordinates& at) {
          Box one = piece.box;
          for (uint32_t d = 0; d < one.dims; ++d) {
            one.begin[d] += at[d];
            one.end[d] = one.begin[d] + 1;
          }
          const Rank member = plan.members[rank];
          const bool has = member != kNewcomer && from.holdings_[static_cast<size_t>(member)].find(
                                                      old_tensor, one) != nullptr;
          if (!has) sum += size_of(tensor.dtype);
        });
      }
    }
    return sum;
  }

  const Holding& holding(Rank rank) const { return holdings_[static_cast<size_t>(rank)]; }
  bool operator==(const Memory& other) const { return data_ == other.data_; }

 private:
  using Written = std::vector<std::vector<std::vector<bool>>>;  // rank, buffer, element

  void copy(const Plan& plan, const Move& move, const Memory& from, Written& written) {
    const Box& box = plan.boxes[move.box];
    const auto to_rank = static_cast<size_t>(move.to);
    const auto from_rank = static_cast<size_t>(move.from);
    const Piece* target = holdings_[to_rank].find(move.tensor, box);
    const TensorInfo& tensor = layout_.collection()[move.tensor];
    const auto old_tensor = from.layout_.collection().find(tensor.name);
    ASSERT_TRUE(old_tensor);
    const Piece* source = from.holdings_[from_rank].find(*old_tensor, box);
    ASSERT_TRUE(source != nullptr && target != nullptr) << tensor.name << to_string(box);
    const size_t bytes = size_of(tensor.dtype);
    for_each_element(box, [&](const Coordinates& at) {
      const uint64_t there = source->offset_of(box) + dot(at, source->strides, box.dims);
      const uint64_t here = target->offset_of(box) + dot(at, target->strides, box.dims);
      ASSERT_FALSE(written[to_rank][target->buffer][here]) << tensor.name << to_string(box);
      written[to_rank][target->buffer][here] = true;
      std::memcpy(&data_[to_rank][target->buffer][here * bytes],
                  &from.data_[from_rank][source->buffer][there * bytes], bytes);
    });
  }

  void write(size_t rank, const Piece& piece, const Coordinates& at, const Data& bytes) {
    const uint64_t place = piece.offset + dot(at, piece.strides, piece.box.dims);
    std::memcpy(&data_[rank][piece.buffer][place * bytes.size()], bytes.data(), bytes.size());
  }
  Data read(size_t rank, const Piece& piece, const Coordinates& at) const {
    const size_t bytes = size_of(layout_.collection()[piece.tensor].dtype);
    const uint64_t place = piece.offset + dot(at, piece.strides, piece.box.dims);
    const auto begin = data_[rank][piece.buffer].begin() + static_cast<ptrdiff_t>(place * bytes);
    return {begin, begin + static_cast<ptrdiff_t>(bytes)};
  }

  const Layout& layout_;
  std::vector<Holding> holdings_;
  std::vector<std::vector<Data>> data_;
};

// Moves a state from one layout to the other and back, and checks everything on the way.
inline void expect_round_trip(const Layout& a, const Layout& b, const PlanOptions& there = {},
                              const PlanOptions& back = {}) {
  const auto plan_there = make_plan(a, b, there);
  ASSERT_TRUE(plan_there.ok()) << plan_there.error().message;
  ASSERT_TRUE(plan_there->is_complete());
  const auto plan_back = make_plan(b, a, back);
  ASSERT_TRUE(plan_back.ok()) << plan_back.error().message;
  Memory at_first(a);
  at_first.fill();
  Memory between(b);
  ASSERT_NO_FATAL_FAILURE(between.execute(*plan_there, at_first));
  ASSERT_NO_FATAL_FAILURE(between.expect_whole());
  ASSERT_EQ(plan_there->totals.bytes_moved, plan_there->totals.bytes_lower_bound);
  ASSERT_EQ(plan_there->totals.bytes_moved, between.missing_bytes(*plan_there, at_first));
  ASSERT_EQ(plan_there->totals.bytes_total,
            plan_there->totals.bytes_moved + plan_there->totals.bytes_in_place);
  Memory at_last(a);
  ASSERT_NO_FATAL_FAILURE(at_last.execute(*plan_back, between));
  ASSERT_TRUE(at_first == at_last);
}

}  // namespace pliant::tensor
