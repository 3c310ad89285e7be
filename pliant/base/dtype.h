// Element types. The numbers are part of the wire format and of the C ABI. Values; any thread.
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
  kF8E4M3,  // both kinds of f8 are moved, never reduced
  kF8E5M2,
};
inline constexpr int kDTypes = 15;

size_t size_of(DType dtype);

const char* to_string(DType dtype);  // "f32"
Result<DType> parse_dtype(std::string_view text);

}  // namespace pliant
