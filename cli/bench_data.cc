#include "cli/bench_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "pliant/base/check.h"

namespace pliant::cli {
namespace {

// The values repeat after this many elements; a prime, so that a block that is cut or shifted by a
// power of two shows.
constexpr int kPeriod = 11;
using Period = std::array<double, kPeriod>;

int64_t value_at(const BenchData& data, int from, int to, int index) {
  const int64_t value = (int64_t{from} * 5 + int64_t{to} * 3 + index) % kPeriod;
  if (data.dtype == DType::kBool) return value % 2;
  // A product must stay in range: few factors differ from one.
  if (data.op == Op::kProd) return value == 0 ? 2 : 1;
  return value;
}

template <typename T>
void put(std::byte* to, int64_t value) {
  const T typed = static_cast<T>(value);
  std::memcpy(to, &typed, sizeof(T));
}

template <typename T>
double get(const std::byte* from) {
  T typed;
  std::memcpy(&typed, from, sizeof(T));
  return static_cast<double>(typed);
}

// Of a number from 0 to 2047, which f16 holds exactly.
uint16_t small_to_f16(int64_t value) {
  if (value == 0) return 0;
  const int exponent = static_cast<int>(std::bit_width(static_cast<uint64_t>(value))) - 1;
  return static_cast<uint16_t>(((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ff));
}

double f16_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  double value = 0;
  if (exponent == 0x1f) {
    value = mantissa == 0 ? HUGE_VAL : std::nan("");
  } else {
    value = std::ldexp(exponent == 0 ? mantissa : mantissa + 0x400, std::max(exponent, 1) - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

void encode(std::byte* to, DType dtype, int64_t value) {
  switch (dtype) {
    case DType::kI8: return put<int8_t>(to, value);
    case DType::kI16: return put<int16_t>(to, value);
    case DType::kI32: return put<int32_t>(to, value);
    case DType::kI64: return put<int64_t>(to, value);
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kBool: return put<uint8_t>(to, value);
    case DType::kU16: return put<uint16_t>(to, value);
    case DType::kU32: return put<uint32_t>(to, value);
    case DType::kU64: return put<uint64_t>(to, value);
    case DType::kF16: return put<uint16_t>(to, small_to_f16(value));
    case DType::kBF16:
      return put<uint16_t>(to, std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
    case DType::kF32: return put<float>(to, value);
    case DType::kF64: return put<double>(to, value);
  }
  PLIANT_CHECK(false, "unknown element type");
}

double decode(const std::byte* from, DType dtype) {
  switch (dtype) {
    case DType::kI8: return get<int8_t>(from);
    case DType::kI16: return get<int16_t>(from);
    case DType::kI32: return get<int32_t>(from);
    case DType::kI64: return get<int64_t>(from);
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kBool: return get<uint8_t>(from);
    case DType::kU16: return get<uint16_t>(from);
    case DType::kU32: return get<uint32_t>(from);
    case DType::kU64: return get<uint64_t>(from);
    case DType::kF16: return f16_to_double(static_cast<uint16_t>(get<uint16_t>(from)));
    case DType::kBF16: {
      const auto bits = static_cast<uint32_t>(get<uint16_t>(from));
      return static_cast<double>(std::bit_cast<float>(bits << 16));
    }
    case DType::kF32: return get<float>(from);
    case DType::kF64: return get<double>(from);
  }
  PLIANT_CHECK(false, "unknown element type");
  return 0;
}

// How far a correctly rounded result may be from the exact one, relative to it; zero for integers.
double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-10;
    case DType::kBF16: return 0x1p-7;
    case DType::kF32: return 0x1p-22;
    case DType::kF64: return 0x1p-50;
    default: return 0;
  }
}

bool is_floating(DType dtype) { return tolerance_of(dtype) > 0; }

double reduced_at(const BenchData& data, int to, int index) {
  int64_t result = value_at(data, 0, to, index);
  for (int from = 1; from < data.size; ++from) {
    const int64_t value = value_at(data, from, to, index);
    switch (data.op) {
      case Op::kSum:
      case Op::kMean: result += value; break;
      case Op::kMin: result = std::min(result, value); break;
      case Op::kMax: result = std::max(result, value); break;
      case Op::kProd: result *= value; break;
    }
  }
  if (is_floating(data.dtype))
    return static_cast<double>(result) / (data.op == Op::kMean ? data.size : 1);
  // Integers wrap before they are divided.
  std::array<std::byte, 8> wrapped{};
  encode(wrapped.data(), data.dtype, result);
  const double sum = decode(wrapped.data(), data.dtype);
  return data.op == Op::kMean ? std::trunc(sum / data.size) : sum;
}

std::optional<std::string> check(const std::byte* block, size_t count, DType dtype,
                                 const Period& expected) {
  const size_t size = size_of(dtype);
  const double tolerance = tolerance_of(dtype);
  for (size_t i = 0; i < count; ++i) {
    const double found = decode(block + i * size, dtype);
    const double wanted = expected[i % kPeriod];
    // Written so that a NaN is wrong, too.
    if (std::fabs(found - wanted) <= tolerance * std::fabs(wanted)) continue;
    return fmt::format("element {} of {} is {} instead of {}", i, count, found, wanted);
  }
  return std::nullopt;
}

}  // namespace

void BenchData::fill(std::byte* block, size_t count, int from, int to) const {
  const size_t element = size_of(dtype);
  std::array<std::byte, kPeriod * 8> period{};
  for (int i = 0; i < kPeriod; ++i)
    encode(&period[static_cast<size_t>(i) * element], dtype, value_at(*this, from, to, i));
  const size_t stride = kPeriod * element;
  const size_t bytes = count * element;
  for (size_t at = 0; at < bytes; at += stride)
    std::memcpy(block + at, period.data(), std::min(stride, bytes - at));
}

std::optional<std::string> BenchData::check_moved(const std::byte* block, size_t count, int from,
                                                  int to) const {
  Period expected{};
  for (int i = 0; i < kPeriod; ++i)
    expected[static_cast<size_t>(i)] = static_cast<double>(value_at(*this, from, to, i));
  return check(block, count, dtype, expected);
}

std::optional<std::string> BenchData::check_reduced(const std::byte* block, size_t count,
                                                    int to) const {
  Period expected{};
  for (int i = 0; i < kPeriod; ++i) expected[static_cast<size_t>(i)] = reduced_at(*this, to, i);
  return check(block, count, dtype, expected);
}

}  // namespace pliant::cli
