// Arithmetic on whole models: drawing one towards another, and dividing by a number of members or
// samples. Pure; any thread.
//
// In the arithmetic of the element type; f16 and bf16 are computed in f32 and rounded once.
#pragma once

#include <cstddef>

#include "pliant/base/dtype.h"

namespace pliant {

struct Blend {
  DType dtype = DType::kF32;  // a floating-point type of at least 16 bits
  void* values = nullptr;     // v, overwritten
  const void* others = nullptr;
  size_t count = 0;
  double weight = 0.5;  // a
  int divisor = 1;      // n
};

bool can_blend(DType dtype);
// v <- (1 - a) v + a (others / n)
void blend(const Blend& blend);

// values <- others / divisor, of any type that can be summed; both may be the same. Integers round
// toward zero.
void divide(DType dtype, void* values, const void* others, size_t count, int divisor);

}  // namespace pliant
