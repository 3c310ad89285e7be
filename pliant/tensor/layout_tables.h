// Inside of layout.h: what a Layout knows of each tensor and of each flat group, and how its
// placements are computed. Immutable once made; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pliant/tensor/arrangement.h"
#include "pliant/tensor/layout.h"

namespace pliant::tensor {

// A group of flat ranges. Its numbers are those of the rank whose index along the axes is 0, and
// hold for all ranks beside it.
struct FlatGroup {
  std::string name = {};
  AxisGroup axes = {};
  const Flat* flat = nullptr;
  DType dtype = DType::kF32;
  std::vector<uint64_t> used = {};   // elements, by rank
  std::vector<uint64_t> range = {};  // elements on each of the ranks beside it, by rank

  // The rank with index 0 beside this one.
  Rank first_beside(Rank rank) const { return rank - axes.offset_of(axes.index_of(rank)); }
};

// Where a tensor begins in the concatenation of its group.
struct FlatStart {
  Rank rank = 0;  // with index 0 along the axes of the group
  uint64_t offset = 0;
};

inline constexpr size_t kNoGroup = SIZE_MAX;

struct PlacedTensor {
  const Rule* rule = nullptr;
  std::shared_ptr<const Arrangement> arrangement = {};  // none if the pieces are stated
  std::shared_ptr<const Placement> placement = {};
  size_t group = kNoGroup;
  std::vector<FlatStart> starts = {};  // ascending
};

struct Layout::Tables {
  LayoutSpec spec;
  std::shared_ptr<const Collection> collection;
  std::vector<FlatGroup> groups = {};
  std::vector<PlacedTensor> tensors = {};
};

// Appends the boxes of the elements [begin, end) of the rank's local array, in row-major order.
void append_local_range(const Arrangement& arrangement, Rank rank, uint64_t begin, uint64_t end,
                        std::vector<LocalBox>& boxes);

// The dimension along which the boxes begin at most places.
uint32_t most_cut_dim(std::span<const Shard> shards);

Placement place(const Arrangement& arrangement, const Mesh& mesh);
Placement place_flat(const Arrangement& arrangement, const FlatGroup& group,
                     std::span<const FlatStart> starts, uint64_t elements);
// Fails if a piece is beyond the tensor or the mesh, if a rank has an element twice, or if nobody
// has it.
Result<Placement> place_stated(std::span<const StatedPiece> pieces, const TensorInfo& tensor,
                               const Mesh& mesh);

}  // namespace pliant::tensor
