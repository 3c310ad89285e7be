// The kernels for any machine. See reduce_kernels.h.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "pliant/collective/reduce_kernels.h"

#define PLIANT_REDUCE_VECTOR_BYTES 16
#define PLIANT_REDUCE_KERNELS kBaselineKernels
#include "pliant/collective/reduce_kernels_body.h"
