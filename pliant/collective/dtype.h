// Element types and reduction operators. The numbers are part of the wire format and of the C ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pliant/base/result.h"

namespace pliant {

enum class DType : uint8_t {
  kI8 = 0,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kBool,  // moved, never reduced
  kF16,
  kBF16,
  kF32,
  kF64,
};
inline constexpr int kDTypes = 13;

enum class Op : uint8_t {
  kSum = 0,
  kMean,  // the sum over the number of members; integers round toward zero
  kMin,
  kMax,
  kProd,
};
inline constexpr int kOps = 5;

size_t size_of(DType dtype);
// The type in which partial results of a reduction are kept and sent: f32 for f16 and bf16, so that
// a sum is rounded once however many members it has; the type itself otherwise.
DType accumulator_of(DType dtype);

const char* to_string(DType dtype);  // "f32"
const char* to_string(Op op);        // "sum"
Result<DType> parse_dtype(std::string_view text);
Result<Op> parse_op(std::string_view text);

}  // namespace pliant
