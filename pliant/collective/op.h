// Reduction operators, and which element types they take. The numbers are part of the wire format
// and of the C ABI. Values; any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "pliant/base/dtype.h"
#include "pliant/base/result.h"

namespace pliant {

enum class Op : uint8_t {
  kSum = 0,
  kMean,  // the sum over the number of members; integers round toward zero
  kMin,
  kMax,
  kProd,
};
inline constexpr int kOps = 5;

// Whether elements of the type can be reduced; bool and f8 are only moved.
bool is_reducible(DType dtype);

// The type in which partial results of a reduction are kept and sent: f32 for f16 and bf16, so that
// a sum is rounded once however many members it has; the type itself otherwise.
DType accumulator_of(DType dtype);

const char* to_string(Op op);  // "sum"
Result<Op> parse_op(std::string_view text);

}  // namespace pliant
