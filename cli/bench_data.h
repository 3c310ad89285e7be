// Tensors whose results are known: what the ranks put in to check a measured collective, and what
// must come out. All values are small integers, so that they are exact in every type. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "pliant/collective/op.h"

namespace pliant::cli {

struct BenchData {
  DType dtype = DType::kF32;
  Op op = Op::kSum;
  int size = 1;  // ranks

  // Fills the block that rank `from` has for rank `to` (0 where an operation knows no receiver).
  void fill(std::byte* block, size_t count, int from, int to) const;

  // What is wrong with a block, or nothing: it must be what `from` had for `to` ...
  std::optional<std::string> check_moved(const std::byte* block, size_t count, int from,
                                         int to) const;
  // ... or what all ranks had for `to`, reduced.
  std::optional<std::string> check_reduced(const std::byte* block, size_t count, int to) const;
};

}  // namespace pliant::cli
