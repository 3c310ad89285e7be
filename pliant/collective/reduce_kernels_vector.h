// What reduce_kernels_body.h is made of: vectors of PLIANT_REDUCE_VECTOR_BYTES, the operators on
// them, and the element types. Like it, compiled once per instruction set.
#pragma once

namespace pliant {
namespace {

#define PLIANT_KERNEL_INLINE inline __attribute__((always_inline))

constexpr size_t kVectorBytes = PLIANT_REDUCE_VECTOR_BYTES;
constexpr size_t kLineBytes = 64;

template <typename T, size_t kBytes>
struct VectorType {
  typedef T Type __attribute__((vector_size(kBytes)));
};
template <typename T, size_t kBytes = kVectorBytes>
using Vector = typename VectorType<T, kBytes>::Type;

// Pointers may be unaligned; a memcpy of a constant size is one unaligned instruction.
template <typename V>
PLIANT_KERNEL_INLINE V load_vector(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

template <typename V>
PLIANT_KERNEL_INLINE void store_vector(std::byte* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

// `to` is aligned to the vector.
template <typename V>
PLIANT_KERNEL_INLINE void stream_vector(std::byte* to, V value) {
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 8) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), __builtin_bit_cast(long long, value));
  } else if constexpr (sizeof(V) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), __builtin_bit_cast(__m128i, value));
#if PLIANT_REDUCE_VECTOR_BYTES == 32
  } else if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), __builtin_bit_cast(__m256i, value));
#endif
  } else {
    static_assert(sizeof(V) == 0, "no such vector");
  }
#else
  store_vector(to, value);
#endif
}

// Streamed stores become visible to other cores in any order until a fence.
PLIANT_KERNEL_INLINE void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <typename T>
struct UnsignedOf {
  using Type = T;  // floating point stays what it is
};
template <>
struct UnsignedOf<int8_t> {
  using Type = uint8_t;
};
template <>
struct UnsignedOf<int16_t> {
  using Type = uint16_t;
};
template <>
struct UnsignedOf<int32_t> {
  using Type = uint32_t;
};
template <>
struct UnsignedOf<int64_t> {
  using Type = uint64_t;
};

template <typename T>
constexpr bool kFloating = T(1) / T(2) != T(0);

// ---- operators: `a` is what came before, `b` the next input ----

struct Sum {
  template <typename T, typename V>
  static PLIANT_KERNEL_INLINE V combine(V a, V b) {
    using U = Vector<typename UnsignedOf<T>::Type>;  // unsigned, so that it wraps
    return __builtin_bit_cast(V, __builtin_bit_cast(U, a) + __builtin_bit_cast(U, b));
  }
};

struct Prod {
  template <typename T, typename V>
  static PLIANT_KERNEL_INLINE V combine(V a, V b) {
    using U = Vector<typename UnsignedOf<T>::Type>;
    return __builtin_bit_cast(V, __builtin_bit_cast(U, a) * __builtin_bit_cast(U, b));
  }
};

// NaN wins; among equals (0 and -0) the first input wins.
struct Min {
  template <typename T, typename V>
  static PLIANT_KERNEL_INLINE V combine(V a, V b) {
    const V least = b < a ? b : a;
    if constexpr (kFloating<T>) return b != b ? b : least;
    return least;
  }
};

struct Max {
  template <typename T, typename V>
  static PLIANT_KERNEL_INLINE V combine(V a, V b) {
    const V most = b > a ? b : a;
    if constexpr (kFloating<T>) return b != b ? b : most;
    return most;
  }
};

// ---- elements: how a type is kept in memory and in registers ----

template <typename T>
struct Plain {
  using Acc = T;
  using Packed = Vector<T>;
  static constexpr bool kPacked = false;
};

struct PackedFloat {
  using Acc = float;
  using Packed = Vector<uint16_t, kVectorBytes / 2>;
  using Bits = Vector<int32_t>;
  using UnsignedBits = Vector<uint32_t>;
  static constexpr bool kPacked = true;

  // The bf16 nearest to each float is the upper half of the result. The floats have been made
  // canonical, so that the carry cannot run out of a NaN.
  static PLIANT_KERNEL_INLINE UnsignedBits round_to_bf16(Vector<float> value) {
    const UnsignedBits bits = __builtin_bit_cast(UnsignedBits, value);
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

#if PLIANT_REDUCE_VECTOR_BYTES == 32
struct BFloat16 : PackedFloat {
  // One shuffle puts every element into the upper half of its float.
  static PLIANT_KERNEL_INLINE Vector<float> unpack(Packed packed) {
    const __m256i twice = _mm256_broadcastsi128_si256(__builtin_bit_cast(__m128i, packed));
    const __m256i place =
        _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                         -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    return __builtin_bit_cast(Vector<float>, _mm256_shuffle_epi8(twice, place));
  }
  static PLIANT_KERNEL_INLINE Packed pack(Vector<float> value) {
    const __m256i bits = __builtin_bit_cast(__m256i, round_to_bf16(value));
    const __m256i place =
        _mm256_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1,  //
                         2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(bits, place), 0x08);
    return __builtin_bit_cast(Packed, _mm256_castsi256_si128(halves));
  }
};

struct Float16 : PackedFloat {
  static PLIANT_KERNEL_INLINE Vector<float> unpack(Packed packed) {
    return __builtin_bit_cast(Vector<float>, _mm256_cvtph_ps(__builtin_bit_cast(__m128i, packed)));
  }
  static PLIANT_KERNEL_INLINE Packed pack(Vector<float> value) {
    return __builtin_bit_cast(
        Packed, _mm256_cvtps_ph(__builtin_bit_cast(__m256, value), _MM_FROUND_TO_NEAREST_INT));
  }
};
#else
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// Spelled as shuffles because compilers split a conversion of vectors into single elements.
PLIANT_KERNEL_INLINE Vector<int32_t> zero_extend(Vector<uint16_t, 8> packed) {
  const Vector<uint16_t, 8> zero = {};
  return __builtin_bit_cast(Vector<int32_t>,
                            __builtin_shufflevector(packed, zero, 0, 4, 1, 5, 2, 6, 3, 7));
}

PLIANT_KERNEL_INLINE Vector<uint16_t, 8> lower_halves(Vector<int32_t> bits) {
  const auto halves = __builtin_bit_cast(Vector<uint16_t>, bits);
  return __builtin_shufflevector(halves, halves, 0, 2, 4, 6);
}

struct BFloat16 : PackedFloat {
  static PLIANT_KERNEL_INLINE Vector<float> unpack(Packed packed) {
    return __builtin_bit_cast(Vector<float>, zero_extend(packed) << 16);
  }
  static PLIANT_KERNEL_INLINE Packed pack(Vector<float> value) {
    return lower_halves(__builtin_bit_cast(Bits, round_to_bf16(value) >> 16));
  }
};

struct Float16 : PackedFloat {
  static PLIANT_KERNEL_INLINE Vector<float> unpack(Packed packed) {
    const Bits bits = zero_extend(packed);
    const Bits magnitude = bits & 0x7fff;
    const Bits rebias = magnitude - magnitude + (112 << 23);  // exponent 15 becomes 127
    const Bits normal = (magnitude << 13) + rebias;
    const Bits special = normal + rebias;  // inf and NaN: the exponent becomes all ones
    const auto tiny = __builtin_convertvector(magnitude, Vector<float>) * 0x1p-24f;  // exact
    const Bits small = __builtin_bit_cast(Bits, tiny);
    const Bits finite = magnitude < 0x0400 ? small : normal;
    const Bits all = magnitude >= 0x7c00 ? special : finite;
    return __builtin_bit_cast(Vector<float>, all | ((bits & 0x8000) << 16));
  }
  static PLIANT_KERNEL_INLINE Packed pack(Vector<float> value) {
    const Bits bits = __builtin_bit_cast(Bits, value);
    const Bits magnitude = bits & 0x7fffffff;
    const Bits zero = magnitude - magnitude;
    // Below 2^-14 a f16 counts in 2^-24, as a float just above 0.5 does: let the adder round.
    const auto shifted = __builtin_bit_cast(Vector<float>, magnitude) + 0.5f;
    const Bits small = __builtin_bit_cast(Bits, shifted) - 0x3f000000;
    const Bits normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const Bits finite = magnitude < 0x38800000 ? small : normal;
    const Bits bounded = magnitude >= 0x477ff000 ? zero + 0x7c00 : finite;  // 65520 and above
    const Bits all = magnitude > 0x7f800000 ? zero + 0x7e00 : bounded;
    return lower_halves(all | ((bits >> 16) & 0x8000));
  }
};
#endif

}  // namespace
}  // namespace pliant
