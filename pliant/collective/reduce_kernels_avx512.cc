// The kernels for AVX-512. See reduce_kernels.h.
//
// Vectors stay at 32 bytes: on the Zen 4 where this was measured, 64-byte loads were a quarter
// slower from DRAM and no faster from the cache. What AVX-512 brings is its masks and its
// instructions for 64-bit and narrow integers.
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
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#endif

#define PLIANT_REDUCE_VECTOR_BYTES 32
#define PLIANT_REDUCE_KERNELS kAvx512Kernels
#include "pliant/collective/reduce_kernels_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
