// Inside of reduce.h: one set of kernels per instruction set, and the choice between them.
//
// The sets differ in speed alone; the tests force each in turn and compare the bits. Every set is
// compiled from reduce_kernels_body.h in a file of its own, because a function that uses AVX must
// not be shared with code that runs where AVX is missing. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pliant/collective/reduce.h"

namespace pliant {

enum class Isa : uint8_t {
  kBaseline = 0,  // what the compiler's default target has: SSE2 on x86-64
  kAvx2,          // and F16C
  kAvx512,        // F, BW, DQ and VL
};
inline constexpr Isa kIsas[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

const char* to_string(Isa isa);
bool supported(Isa isa);
Isa best_isa();

using ReduceKernel = void (*)(const Reduction& reduction);
using CopyKernel = void (*)(std::byte* to, const std::byte* from, size_t bytes);

struct Kernels {
  ReduceKernel reduce[kDTypes][kOps] = {};  // null for what is not reducible
  CopyKernel copy_stream = nullptr;         // writes around the cache
};

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// reduce() with the given instruction set, which must be supported.
void reduce_with(Isa isa, const Reduction& reduction);

}  // namespace pliant
