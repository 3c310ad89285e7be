// What a layout is made of, as people write it: a mesh, pipeline stages, and rules that say for
// each tensor how it lies over the mesh. Plain data; layout.h makes it mean something, and checks
// it. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/tensor/box.h"
#include "pliant/tensor/mesh.h"
#include "pliant/tensor/split.h"

namespace pliant::tensor {

// One dimension of a tensor, divided over some axes of the mesh.
struct DimShard {
  uint32_t dim = 0;
  std::vector<std::string> axes = {};
  Split split = {};
  std::vector<Block> blocks = {};
  uint32_t repeat = 1;
  // Vocabularies are made larger to be divisible. The elements beyond the tensor's own exist in
  // local memory alone: they are never moved, and hold `fill` after a change of layout.
  uint64_t padded = 0;  // 0: not padded
  double fill = 0;

  bool operator==(const DimShard&) const = default;
};

// On which pipeline stages a tensor is.
struct Stage {
  enum class Kind : uint8_t {
    kLayer,         // on that of its layer, whose number is in its name
    kFirst,         // embeddings
    kLast,          // heads
    kFirstAndLast,  // embeddings that the head shares
    kNumber,
  };
  Kind kind = Kind::kLayer;
  uint32_t number = 0;  // of kNumber

  bool operator==(const Stage&) const = default;
};

// Which layers are on which stage. Layers are cut into stages * interleave runs; run r is on stage
// r modulo stages, so with interleave 1 each stage has one run of layers.
struct Pipeline {
  std::string axis = {};
  uint32_t layers = 0;
  uint32_t interleave = 1;
  std::vector<uint32_t> counts = {};  // layers of each run; empty: equal runs

  bool operator==(const Pipeline&) const = default;
};

// Experts whose number is in the name of their tensors. (Those that are a dimension are sharded.)
struct Experts {
  std::vector<std::string> axes = {};
  uint32_t count = 0;
  Split split = {};

  bool operator==(const Experts&) const = default;
};

// What each rank would have by the rest of the rule is put behind each other for all tensors of the
// group, in the order of the collection, and the result is cut into equal ranges over the axes:
// ZeRO and FSDP.
struct Flat {
  std::string group = {};  // "{layer}" in it makes a group for each layer
  std::vector<std::string> axes = {};
  uint64_t align = 1;     // each tensor begins at a multiple of so many elements
  uint64_t multiple = 1;  // the length of a range is a multiple of it
  double fill = 0;        // what the gaps and the end hold after a change of layout

  bool operator==(const Flat&) const = default;
};

// A piece said in so many words, for what no rule describes: a checkpoint of unknown origin.
struct StatedPiece {
  std::vector<Rank> ranks = {};
  Box box = {};

  bool operator==(const StatedPiece&) const = default;
};

struct Rule {
  std::vector<std::string> match = {};  // patterns; any of them
  bool otherwise = false;               // instead: whatever no other rule matches
  std::vector<DimShard> shard = {};
  std::optional<Stage> stage = {};
  std::optional<Experts> experts = {};
  std::optional<Flat> flat = {};
  std::vector<StatedPiece> pieces = {};
  bool replicated = false;  // on all ranks; said aloud, so that nothing is replicated by omission

  bool operator==(const Rule&) const = default;
};

struct LayoutSpec {
  Mesh mesh = {};
  std::optional<Pipeline> pipeline = {};
  std::vector<Rule> rules = {};

  bool operator==(const LayoutSpec&) const = default;
};

}  // namespace pliant::tensor
