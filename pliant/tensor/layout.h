// A Layout: which part of each tensor of a collection lies on which rank of a mesh, and where in
// that rank's memory. Made from rules (rules.h) and checked: every element of every tensor is on
// some rank, and on none twice.
//
// Immutable once made, and cheap to copy; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pliant/base/dtype.h"
#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/tensor/box.h"
#include "pliant/tensor/collection.h"
#include "pliant/tensor/mesh.h"
#include "pliant/tensor/rules.h"

namespace pliant::tensor {

// A box of a tensor and the ranks that have it, ascending.
struct Shard {
  Box box;
  std::vector<Rank> holders = {};
};

// All boxes of one tensor. No two are equal, and none is empty; together they cover the tensor.
struct Placement {
  std::vector<Shard> shards = {};
  // No two overlap either. Otherwise replicas are cut differently, as in flat ranges of groups with
  // different contents; those of one rank never overlap.
  bool is_partition = true;
};

// One array in a rank's memory: a tensor's local part, or the range of a flat group.
struct LocalBuffer {
  std::string name = {};  // of the tensor or of the flat group
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape = {};
  uint64_t elements = 0;
  bool is_flat = false;
  bool is_padded = false;  // some elements are of no tensor, and are to hold `fill`
  double fill = 0;
};

// A box of a tensor in a rank's memory: its element at box.begin + x is the element
// offset + sum(x[d] * strides[d]) of the buffer.
struct Piece {
  size_t tensor = 0;  // in the collection
  Box box;
  size_t buffer = 0;  // in Holding::buffers
  uint64_t offset = 0;
  Coordinates strides = {};

  // Where in the buffer the first element of a box inside this one is.
  uint64_t offset_of(const Box& inner) const {
    uint64_t at = offset;
    for (uint32_t d = 0; d < box.dims; ++d) at += (inner.begin[d] - box.begin[d]) * strides[d];
    return at;
  }
};

// What one rank has. Pieces are in the order of the collection.
struct Holding {
  std::vector<LocalBuffer> buffers = {};
  std::vector<Piece> pieces = {};

  uint64_t bytes() const;  // of all buffers
  // The pieces of one tensor.
  std::span<const Piece> pieces_of(size_t tensor) const;
  // The one that contains the box; none if no single one does.
  const Piece* find(size_t tensor, const Box& box) const;
};

class Layout {
 public:
  static constexpr size_t kStatedPiecesMax = 16384;  // of one tensor

  // Fails if some tensor has no rule or two, or does not fit its rule; the message names the tensor
  // and the field.
  static Result<Layout> make(LayoutSpec spec, std::shared_ptr<const Collection> collection);

  const LayoutSpec& spec() const;
  const Mesh& mesh() const { return spec().mesh; }
  const Collection& collection() const { return *shared_collection(); }
  const std::shared_ptr<const Collection>& shared_collection() const;

  // Tensors that lie alike share one object.
  const Placement& placement(size_t tensor) const;

  Holding holding(Rank rank) const;

 private:
  friend class LayoutMaker;
  struct Tables;
  explicit Layout(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace pliant::tensor
