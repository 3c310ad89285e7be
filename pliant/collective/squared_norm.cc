#include "pliant/collective/squared_norm.h"

#include <cstdint>

#include "pliant/base/check.h"
#include "pliant/collective/default_rounding.h"

namespace pliant {
namespace {

// A plain name for what must become part of its caller, which alone says for which machine it is.
#define PLIANT_INLINE inline __attribute__((always_inline))

// Sixteen partial sums, whichever way the machine groups them: element i goes to the sum i % 16.
constexpr size_t kLanes = 16;
constexpr size_t kQuads = 4;
typedef double Doubles __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(8)));

template <typename V>
PLIANT_INLINE void load(V& value, const std::byte* from) {
  __builtin_memcpy(&value, from, sizeof(V));
}

// Four elements as doubles, without their signs in f16: every conversion is exact.
struct F64 {
  static constexpr size_t kBytes = 8;
  static PLIANT_INLINE void read(const std::byte* from, Doubles& to) { load(to, from); }
};

struct F32 {
  static constexpr size_t kBytes = 4;
  static PLIANT_INLINE void read(const std::byte* from, Doubles& to) {
    Floats values;
    load(values, from);
    to = __builtin_convertvector(values, Doubles);
  }
};

struct BF16 {
  static constexpr size_t kBytes = 2;
  static PLIANT_INLINE void read(const std::byte* from, Doubles& to) {
    Halves halves;
    load(halves, from);
    const Words bits = __builtin_convertvector(halves, Words) << 16;
    to = __builtin_convertvector(__builtin_bit_cast(Floats, bits), Doubles);
  }
};

struct F16 {
  static constexpr size_t kBytes = 2;
  static PLIANT_INLINE void read(const std::byte* from, Doubles& to) {
    Halves halves;
    load(halves, from);
    const Words half = __builtin_convertvector(halves, Words) & 0x7fff;
    const Words moved = half << 13;
    const Words normal = moved + (uint32_t{127 - 15} << 23);
    // The exponent of the smallest normal number, taken off again: what is left is the fraction.
    const Words least = Words{} + (uint32_t{127 - 14} << 23);
    const Floats subnormal =
        __builtin_bit_cast(Floats, moved + least) - __builtin_bit_cast(Floats, least);
    const Words beyond = moved | 0x7f800000u;
    const Words is_subnormal = __builtin_bit_cast(Words, half < 0x0400);
    const Words is_beyond = __builtin_bit_cast(Words, half >= 0x7c00);
    const Words bits = (is_subnormal & __builtin_bit_cast(Words, subnormal)) |
                       (is_beyond & beyond) | (~is_subnormal & ~is_beyond & normal);
    to = __builtin_convertvector(__builtin_bit_cast(Floats, bits), Doubles);
  }
};

template <typename Type>
PLIANT_INLINE void add_lanes(const std::byte* from, Doubles (&sums)[kQuads]) {
  for (size_t quad = 0; quad < kQuads; ++quad) {
    Doubles values;
    Type::read(from + quad * 4 * Type::kBytes, values);
    sums[quad] += values * values;
  }
}

template <typename Type>
PLIANT_INLINE double sum_of_squares(const std::byte* data, size_t count) {
  Doubles sums[kQuads] = {};
  const size_t whole = count / kLanes * kLanes;
  for (size_t at = 0; at < whole; at += kLanes) add_lanes<Type>(data + at * Type::kBytes, sums);
  if (whole < count) {
    alignas(64) std::byte rest[kLanes * Type::kBytes] = {};
    __builtin_memcpy(rest, data + whole * Type::kBytes, (count - whole) * Type::kBytes);
    add_lanes<Type>(rest, sums);
  }
  const Doubles four = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

PLIANT_INLINE double of_type(const std::byte* data, size_t count, DType dtype) {
  switch (dtype) {
    case DType::kF64: return sum_of_squares<F64>(data, count);
    case DType::kF32: return sum_of_squares<F32>(data, count);
    case DType::kF16: return sum_of_squares<F16>(data, count);
    default: return sum_of_squares<BF16>(data, count);
  }
}

double plain(const std::byte* data, size_t count, DType dtype) {
  return of_type(data, count, dtype);
}

#if defined(__x86_64__)
// Without fused multiplication, which would round f64 once instead of twice.
__attribute__((target("avx2"))) double with_avx2(const std::byte* data, size_t count, DType dtype) {
  return of_type(data, count, dtype);
}
#endif

}  // namespace

bool has_squared_norm(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

double squared_norm(const void* data, size_t count, DType dtype) {
  PLIANT_CHECK(has_squared_norm(dtype), "a norm is of floating-point numbers");
  const DefaultRounding rounding;
  const auto* const bytes = static_cast<const std::byte*>(data);
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return with_avx2(bytes, count, dtype);
#endif
  return plain(bytes, count, dtype);
}

}  // namespace pliant
