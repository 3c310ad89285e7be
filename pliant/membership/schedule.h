// The sizes that a job is to have from certain steps on, as users write them. Values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"

namespace pliant {

struct ScheduledSize {
  uint32_t size = 0;
  uint64_t step = 0;  // from the commit of this step on
  bool operator==(const ScheduledSize&) const = default;
};

// Reads "2@0,4@100,8@200": sizes of at least 1, steps that grow.
Result<std::vector<ScheduledSize>> parse_size_schedule(std::string_view text);

}  // namespace pliant
