// The batches of a change of layout for which there is little memory: which tensors are exchanged
// before the old layout's memory of these is given back. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan.h"

namespace pliant {

struct Batches {
  std::vector<uint32_t> of_tensor = {};  // the batch of each tensor of the plan's collection
  uint32_t count = 0;
};

// No member ever holds more than `extra_bytes_max` besides the larger of its two layouts. Fails if
// that cannot be; the message names a tensor, and how much it needs.
Result<Batches> cut_into_batches(const tensor::Plan& plan, const tensor::Layout& from,
                                 uint64_t extra_bytes_max);

}  // namespace pliant
