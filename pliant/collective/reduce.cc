#include "pliant/collective/reduce.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "pliant/base/check.h"
#include "pliant/collective/default_rounding.h"
#include "pliant/collective/reduce_kernels.h"

namespace pliant {
namespace {

// Below this, the fence that ends a streamed write (about 0.15 us) costs more than it saves.
constexpr size_t kStreamBytesMin = size_t{16} << 10;
// A copy this long pushes its own beginning out of the cache, and memcpy then reads every line of
// the target before it writes it: measured at 8 MiB and above, streaming is 1.5 to 2 times faster.
constexpr size_t kOutlastsCacheBytes = size_t{8} << 20;

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512Kernels;
  if (isa == Isa::kAvx2) return kAvx2Kernels;
#endif
  PLIANT_CHECK(isa == Isa::kBaseline, "this machine has one set of kernels");
  return kBaselineKernels;
}

const Kernels& best_kernels() {
  static const Kernels& best = kernels_of(best_isa());
  return best;
}

void run(const Kernels& kernels, const Reduction& reduction) {
  PLIANT_CHECK(!reduction.inputs.empty() && !reduction.outputs.empty(), "nothing to reduce");
  const auto dtype = static_cast<size_t>(reduction.dtype);
  const auto op = static_cast<size_t>(reduction.op);
  PLIANT_CHECK(dtype < size_t{kDTypes} && op < size_t{kOps}, "no such reduction");
  const ReduceKernel kernel = kernels.reduce[dtype][op];
  PLIANT_CHECK(kernel != nullptr, "bool and f8 are not reducible");
  PLIANT_CHECK(reduction.op != Op::kMean || reduction.output_partial || reduction.mean_over > 0,
               "a mean needs the number of members");
  const DefaultRounding rounding;
  kernel(reduction);
}

}  // namespace

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "baseline";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "?";
}

bool supported(Isa isa) {
  if (isa == Isa::kBaseline) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

Isa best_isa() {
  Isa best = Isa::kBaseline;
  for (Isa isa : kIsas) {
    if (supported(isa)) best = isa;
  }
  return best;
}

void reduce_with(Isa isa, const Reduction& reduction) {
  PLIANT_CHECK(supported(isa), "this machine lacks the instruction set");
  run(kernels_of(isa), reduction);
}

void reduce(const Reduction& reduction) {
  if (!reduction.stream || reduction.count * size_of(reduction.dtype) >= kStreamBytesMin) {
    return run(best_kernels(), reduction);
  }
  Reduction small = reduction;
  small.stream = false;
  run(best_kernels(), small);
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, bool stream) {
  if (bytes >= (stream ? kStreamBytesMin : kOutlastsCacheBytes)) {
    return best_kernels().copy_stream(to, from, bytes);
  }
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace pliant
