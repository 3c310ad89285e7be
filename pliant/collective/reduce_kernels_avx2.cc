// The kernels for AVX2 with F16C. See reduce_kernels.h.
//
// All other headers come before the change of target, so that no inline function of theirs is
// compiled for it and then picked by the linker for the whole program.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "pliant/collective/reduce_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define PLIANT_REDUCE_VECTOR_BYTES 32
#define PLIANT_REDUCE_KERNELS kAvx2Kernels
#include "pliant/collective/reduce_kernels_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
