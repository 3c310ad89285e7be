// Which file of a resharded checkpoint has which pieces: each rank of a layout has files of its
// own, with what it holds in memory; what several ranks hold is in the files of the first of them.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/store/checkpoint_writer.h"
#include "pliant/tensor/collection.h"
#include "pliant/tensor/layout.h"

namespace pliant::store {

inline constexpr const char* kLayoutFileName = "layout.json";

// A box of a tensor and the rank in whose files it is.
struct OwnedBox {
  Rank rank = 0;
  Box box;

  bool operator==(const OwnedBox&) const = default;
};

// Boxes that have every element of the tensor once, by rank: each is in the memory of its rank.
std::vector<OwnedBox> owned_boxes(const tensor::Placement& placement,
                                  const std::vector<uint64_t>& shape);

// "shard-00003-model-00001-of-00002.safetensors": the first of two files of rank 2, as torch calls
// them.
std::string rank_file_name(Rank rank, size_t number, size_t files);

// The files of all ranks that have something to write. None has two pieces of one tensor, because
// torch's reader knows pieces by the names of their tensors; none is larger than `shard_bytes_max`,
// unless one piece is.
Result<std::vector<PlannedFile>> plan_rank_files(const tensor::Layout& layout,
                                                 uint64_t shard_bytes_max);

// Whether both are the same tensors, in whatever order; an error names the first that is not.
Status check_same_tensors(const tensor::Collection& layout, const tensor::Collection& checkpoint);

}  // namespace pliant::store
