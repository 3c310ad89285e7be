// Reads all of a checkpoint and says what is in it: checksums, and numbers that are none. One
// thread; memory is bounded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/checksum.h"
#include "pliant/base/dtype.h"
#include "pliant/base/result.h"
#include "pliant/store/checkpoint.h"

namespace pliant::store {

struct NotNumbers {
  uint64_t nan = 0;
  uint64_t infinite = 0;

  bool operator==(const NotNumbers&) const = default;
};
// Counts in elements of a floating type; none in others.
NotNumbers count_not_numbers(DType dtype, Bytes elements);

struct TensorVerdict {
  uint64_t checksum = 0;  // checksum64() of its elements, so that conversions can be compared
  NotNumbers not_numbers = {};
};

struct VerifyOptions {
  bool count_not_numbers = false;
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

// By tensor; an error names the tensor, the file and the offset of what is damaged.
Result<std::vector<TensorVerdict>> verify(Checkpoint& checkpoint, const VerifyOptions& options);

}  // namespace pliant::store
