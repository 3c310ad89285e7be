// What reduce() must compute, for tests: one element at a time, with the half types converted by
// arithmetic instead of bits. It shares no code with the kernels. Pure; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "pliant/base/check.h"
#include "pliant/collective/reduce.h"

namespace pliant::reduce_reference {

struct Format {
  int mantissa_bits;
  int exponent_bits;
};
inline constexpr Format kHalf = {10, 5};
inline constexpr Format kBrain = {7, 8};

inline float decode(uint16_t bits, Format format) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    value = mantissa != 0 ? std::nan("") : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  } else {
    value =
        std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - bias - format.mantissa_bits);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

inline uint16_t encode(float value, Format format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int infinity = ((1 << format.exponent_bits) - 1) << format.mantissa_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1 << (format.mantissa_bits - 1));
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // The number of steps of this exponent, rounded to nearest even; a carry enters the exponent.
  const double steps = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const int bits = ((exponent + bias - 1) << format.mantissa_bits) + static_cast<int>(steps);
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

template <typename T>
T reference_combine(Op op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == Op::kSum || op == Op::kMean) return a + b;
    if (op == Op::kProd) return a * b;
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  } else {
    // 64 bits modulo 2^64, then cut, is the same as wrapping in T.
    const auto wide_a = static_cast<uint64_t>(a);
    const auto wide_b = static_cast<uint64_t>(b);
    if (op == Op::kSum || op == Op::kMean) return static_cast<T>(wide_a + wide_b);
    if (op == Op::kProd) return static_cast<T>(wide_a * wide_b);
  }
  if (op == Op::kMin) return b < a ? b : a;
  return b > a ? b : a;
}

template <typename T>
T reference_finish(const Reduction& reduction, T value) {
  if (reduction.op == Op::kMean && !reduction.output_partial) {
    if constexpr (std::is_floating_point_v<T>) {
      value = value / static_cast<T>(reduction.mean_over);
    } else if constexpr (std::is_signed_v<T>) {
      value = static_cast<T>(static_cast<int64_t>(value) / reduction.mean_over);
    } else {
      value =
          static_cast<T>(static_cast<uint64_t>(value) / static_cast<uint64_t>(reduction.mean_over));
    }
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
  }
  return value;
}

template <typename T>
T read(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* raw = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), raw, raw + sizeof(T));
}

template <typename T>
std::vector<std::byte> reference_as(const Reduction& reduction) {
  std::vector<std::byte> result;
  for (size_t i = 0; i < reduction.count; ++i) {
    T acc = read<T>(reduction.inputs[0].data, i);
    for (size_t k = 1; k < reduction.inputs.size(); ++k) {
      acc = reference_combine<T>(reduction.op, acc, read<T>(reduction.inputs[k].data, i));
    }
    append(result, reference_finish<T>(reduction, acc));
  }
  return result;
}

inline std::vector<std::byte> reference_half(const Reduction& reduction, Format format) {
  const auto take = [&](size_t k, size_t i) {
    const ReduceInput& input = reduction.inputs[k];
    return input.partial ? read<float>(input.data, i)
                         : decode(read<uint16_t>(input.data, i), format);
  };
  std::vector<std::byte> result;
  for (size_t i = 0; i < reduction.count; ++i) {
    float acc = take(0, i);
    for (size_t k = 1; k < reduction.inputs.size(); ++k) {
      acc = reference_combine<float>(reduction.op, acc, take(k, i));
    }
    acc = reference_finish<float>(reduction, acc);
    if (reduction.output_partial) {
      append(result, acc);
    } else {
      append(result, encode(acc, format));
    }
  }
  return result;
}

// The bytes that every output must hold.
inline std::vector<std::byte> reference(const Reduction& reduction) {
  switch (reduction.dtype) {
    case DType::kI8: return reference_as<int8_t>(reduction);
    case DType::kI16: return reference_as<int16_t>(reduction);
    case DType::kI32: return reference_as<int32_t>(reduction);
    case DType::kI64: return reference_as<int64_t>(reduction);
    case DType::kU8: return reference_as<uint8_t>(reduction);
    case DType::kU16: return reference_as<uint16_t>(reduction);
    case DType::kU32: return reference_as<uint32_t>(reduction);
    case DType::kU64: return reference_as<uint64_t>(reduction);
    case DType::kF16: return reference_half(reduction, kHalf);
    case DType::kBF16: return reference_half(reduction, kBrain);
    case DType::kF32: return reference_as<float>(reduction);
    case DType::kF64: return reference_as<double>(reduction);
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kF8E5M2: break;
  }
  PLIANT_CHECK(false, "bool and f8 are not reducible");
}

}  // namespace pliant::reduce_reference
