// The batches of a change of layout for which there is little memory: which tensors are exchanged
// before the old layout's memory of these is given back. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan.h"

namespace pliant {

// A layout that tensors come from, and the plan for these.
struct BatchOrigin {
  const tensor::Plan& plan;
  const tensor::Layout& from;
  std::vector<bool> tensors =
      {};  // of the plan's collection: whether it comes from here; empty: all

  bool has(size_t tensor) const { return tensors.empty() || tensors[tensor]; }
};

struct Batches {
  std::vector<uint32_t> of_tensor = {};  // the batch of each tensor of the plans' collection
  uint32_t count = 0;
};

// Every tensor comes from one of the origins, all of them go to the same ranks. No member ever
// holds more than `extra_bytes_max` besides the larger of what it has before and after. Fails if
// that cannot be; the message names a tensor, and how much it needs.
Result<Batches> cut_into_batches(std::span<const BatchOrigin> origins, uint64_t extra_bytes_max);

}  // namespace pliant
