// What a sampler is asked to do. All members of a job have the same options; the batch alone may
// change between two steps, and newcomers take that of the members. A value; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"

namespace pliant {

struct SamplerOptions {
  // Far beyond what a job can reach, and low enough that no sum of epochs overflows.
  static constexpr uint64_t kEpochsMax = uint64_t{1} << 48;

  uint64_t samples = 0;       // in the dataset; 1 to Permutation::kSizeMax
  uint64_t global_batch = 0;  // samples of one step, all members together; at least 1
  // Instead of a global batch: samples of one step for each member, so that the batch grows and
  // shrinks with the members (data/learning_rate.h says what to do about it).
  uint64_t batch_per_member = 0;
  uint64_t seed = 0;
  uint64_t epochs = 1;  // 0: for ever
  bool shuffle = true;  // otherwise the order of an epoch is that of the dataset
  // What members were to do that are lost in a step is done in the same step by the others (see
  // redeal.h, Step::more), so that it has its global batch; otherwise by a later step.
  bool constant_batch = false;

  bool operator==(const SamplerOptions&) const = default;
  // The samples of a step of this many members, if the epoch has as many left.
  uint64_t batch_of(uint64_t members) const;
};

// kInvalid if there is no sampler with these options.
Status check(const SamplerOptions& options);

// What a worker has otherwise than the members that it joins, to stand after "this worker cannot
// join: "; empty if it fits. The size of the batch is no difference: it is the members' to choose.
std::string difference(const SamplerOptions& mine, const SamplerOptions& theirs);

// For newcomers. The decoder refuses whatever check() does.
std::vector<std::byte> encode(const SamplerOptions& options);
Result<SamplerOptions> decode_sampler_options(Bytes bytes);

}  // namespace pliant
