// The sum of the squares of a tensor, in double precision. Pure; any thread.
//
// The order of the additions is fixed by the number of elements alone, never by the instruction
// set: members that have the same bits get the same bits, on whatever machines they run.
#pragma once

#include <cstddef>

#include "pliant/base/dtype.h"

namespace pliant {

// True for f16, bf16, f32 and f64, of which there is a squared norm.
bool has_squared_norm(DType dtype);

// Not finite if an element is not, or if the sum is beyond what a double holds.
double squared_norm(const void* data, size_t count, DType dtype);

}  // namespace pliant
