// The reduce kernel: combines k inputs into one or more outputs in a single pass over memory.
//
// out[i] = finish(in_0[i] op in_1[i] op ... op in_(k-1)[i]), combined strictly left to right, so
// the bits depend on the order of the inputs alone: not on who computes, on alignment, on the
// instruction set or on how the range is cut. f16 and bf16 are combined in f32 and rounded once (to
// nearest, ties to even) when the output is written. Pure; any thread.
//
// - Integers wrap. Their mean is the wrapped sum divided, toward zero.
// - The mean of floating-point numbers is the sum divided, rounded once more.
// - NaN propagates through every operator, min and max included, and leaves as the one positive
//   quiet NaN without payload. Among equals (0 and -0), min and max keep the earlier input.
// - The caller's rounding mode and flushing of denormals do not matter (on x86-64).
#pragma once

#include <cstddef>
#include <span>

#include "pliant/collective/op.h"

namespace pliant {

// Buffers need no alignment; the kernel is fastest when all start at a multiple of 64 bytes.
struct ReduceInput {
  const std::byte* data = nullptr;
  bool partial = false;  // holds accumulator_of(dtype) instead of dtype
};

struct Reduction {
  DType dtype = DType::kF32;
  Op op = Op::kSum;
  size_t count = 0;                     // elements
  std::span<const ReduceInput> inputs;  // at least one
  std::span<std::byte* const> outputs;  // at least one; each may be exactly an input, in place
  bool output_partial = false;          // outputs hold accumulator_of(dtype), unfinished
  int mean_over = 0;  // kMean and a finished output: the number of members to divide by
  // Outputs will not be read soon: write around the cache. Ignored for an output that is an input
  // (its lines are in the cache already) and for small ones.
  bool stream = false;
};

// bool and f8 are not reducible; the caller has checked.
void reduce(const Reduction& reduction);

// Copies between buffers that do not overlap; with `stream`, writes around the cache where that is
// faster.
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, bool stream);

}  // namespace pliant
