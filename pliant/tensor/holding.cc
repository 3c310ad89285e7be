// What one rank of a layout has, and where in its memory.
#include <algorithm>
#include <map>
#include <utility>

#include "pliant/base/check.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/layout_tables.h"

namespace pliant::tensor {
namespace {

uint64_t offset_in(const Coordinates& at, const Coordinates& strides, uint32_t dims) {
  uint64_t offset = 0;
  for (uint32_t d = 0; d < dims; ++d) offset += at[d] * strides[d];
  return offset;
}

// The value of padding that is not in a flat group.
double fill_of(const Rule& rule) {
  for (const DimShard& shard : rule.shard)
    if (shard.padded != 0) return shard.fill;
  return 0;
}

// Builds a holding tensor by tensor.
class Holder {
 public:
  Holder(const TensorInfo& info, size_t tensor, Rank rank, Holding& holding)
      : info_(info), tensor_(tensor), rank_(rank), holding_(holding) {}

  // The tensor's local part is an array of its own.
  void add_plain(const PlacedTensor& placed) {
    const std::vector<uint64_t> shape = placed.arrangement->local_shape(rank_);
    const Coordinates strides = strides_of(shape);
    std::vector<LocalBox> boxes;
    placed.arrangement->append_local(rank_, boxes);
    const uint64_t elements = volume(whole(shape));
    uint64_t filled = 0;
    for (const LocalBox& box : boxes) {
      add(box.box, holding_.buffers.size(), offset_in(box.local, strides, box.box.dims), strides);
      filled += volume(box.box);
    }
    holding_.buffers.push_back({.name = info_.name,
                                .dtype = info_.dtype,
                                .shape = shape,
                                .elements = elements,
                                .is_padded = filled != elements,
                                .fill = fill_of(*placed.rule)});
  }

  // Each piece is an array of its own.
  void add_stated(const PlacedTensor& placed) {
    for (const Shard& shard : placed.placement->shards) {
      if (!std::ranges::binary_search(shard.holders, rank_)) continue;
      std::vector<uint64_t> shape;
      for (uint32_t d = 0; d < shard.box.dims; ++d) shape.push_back(shard.box.extent(d));
      add(shard.box, holding_.buffers.size(), 0, strides_of(shape));
      holding_.buffers.push_back({.name = info_.name,
                                  .dtype = info_.dtype,
                                  .shape = shape,
                                  .elements = volume(shard.box)});
    }
  }

  // What of the tensor falls into this rank's range of the group; the number of elements.
  uint64_t add_range(const PlacedTensor& placed, const FlatGroup& group, size_t buffer) {
    const Rank first = group.first_beside(rank_);
    const auto start = std::ranges::lower_bound(placed.starts, first, {}, &FlatStart::rank);
    PLIANT_CHECK(start != placed.starts.end() && start->rank == first, "a start for each rank");
    const std::vector<uint64_t> shape = placed.arrangement->local_shape(rank_);
    const uint64_t range = group.range[static_cast<size_t>(first)];
    const uint64_t range_begin = group.axes.index_of(rank_) * range;
    const uint64_t end = start->offset + volume(whole(shape));
    const uint64_t from = std::max(start->offset, range_begin);
    const uint64_t to = std::min(end, range_begin + range);
    if (from >= to) return 0;
    std::vector<LocalBox> boxes;
    append_local_range(*placed.arrangement, rank_, from - start->offset, to - start->offset, boxes);
    const Coordinates strides = strides_of(shape);
    uint64_t filled = 0;
    for (const LocalBox& box : boxes) {
      const uint64_t at = start->offset + offset_in(box.local, strides, box.box.dims);
      add(box.box, buffer, at - range_begin, strides);
      filled += volume(box.box);
    }
    return filled;
  }

 private:
  void add(const Box& box, size_t buffer, uint64_t offset, const Coordinates& strides) {
    holding_.pieces.push_back(
        {.tensor = tensor_, .box = box, .buffer = buffer, .offset = offset, .strides = strides});
  }

  const TensorInfo& info_;
  const size_t tensor_;
  const Rank rank_;
  Holding& holding_;
};

}  // namespace

uint64_t Holding::bytes() const {
  uint64_t sum = 0;
  for (const LocalBuffer& buffer : buffers) sum += buffer.elements * size_of(buffer.dtype);
  return sum;
}

std::span<const Piece> Holding::pieces_of(size_t tensor) const {
  const auto found = std::ranges::equal_range(pieces, tensor, {}, &Piece::tensor);
  return {found.begin(), found.end()};
}

const Piece* Holding::find(size_t tensor, const Box& box) const {
  for (const Piece& piece : pieces_of(tensor))
    if (piece.box.dims == box.dims && contains(piece.box, box)) return &piece;
  return nullptr;
}

Holding Layout::holding(Rank rank) const {
  PLIANT_CHECK(rank >= 0 && static_cast<uint32_t>(rank) < mesh().size(), "no such rank");
  Holding holding;
  std::map<size_t, size_t> buffer_of_group;
  std::map<size_t, uint64_t> filled;
  for (size_t i = 0; i < tables_->tensors.size(); ++i) {
    const PlacedTensor& placed = tables_->tensors[i];
    Holder holder(collection()[i], i, rank, holding);
    if (!placed.arrangement) {
      holder.add_stated(placed);
    } else if (!placed.arrangement->holds(rank)) {
      continue;
    } else if (placed.group == kNoGroup) {
      holder.add_plain(placed);
    } else {
      const FlatGroup& group = tables_->groups[placed.group];
      const auto [buffer, is_new] = buffer_of_group.emplace(placed.group, holding.buffers.size());
      const uint64_t range = group.range[static_cast<size_t>(group.first_beside(rank))];
      if (is_new)
        holding.buffers.push_back({.name = group.name,
                                   .dtype = group.dtype,
                                   .shape = {range},
                                   .elements = range,
                                   .is_flat = true,
                                   .fill = group.flat->fill});
      filled[buffer->second] += holder.add_range(placed, group, buffer->second);
    }
  }
  for (const auto& [buffer, elements] : filled)
    holding.buffers[buffer].is_padded = elements != holding.buffers[buffer].elements;
  return holding;
}

}  // namespace pliant::tensor
