// DeepSpeed's universal checkpoints: a folder `zero` with a folder for each parameter, and in it a
// file of torch.save for each state of the optimizer (fp32.pt, exp_avg.pt, exp_avg_sq.pt, step.pt).
#pragma once

#include <string>

#include "pliant/base/result.h"
#include "pliant/store/stored_tensor.h"

namespace pliant::store {

// Tensors are called PARAMETER.STATE. What is no tensor in zero/optimizer_state.pt and in the
// mp_rank_* files becomes values under the names of these files; the weights in the latter are
// copies of what zero/ has in full precision, and are left out.
Result<CheckpointContents> open_universal(const std::string& folder);

// The tensors and values of one file of torch.save, under a name of their own.
Status add_torch_file(const std::string& path, const std::string& name,
                      CheckpointContents& contents);

}  // namespace pliant::store
