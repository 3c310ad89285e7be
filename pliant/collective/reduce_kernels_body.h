// The kernels themselves, compiled once per instruction set: see reduce_kernels.h. Included by
// those files alone, after every other header.
//
// Nothing here may reassociate or contract: a kernel only adds, or only multiplies, or only
// compares, and divides once at the end, so there is no a * b + c for a compiler to fuse. A NaN
// leaves in one canonical form, because which payload survives a + b depends on how the compiler
// orders the operands.
#pragma once

#include "pliant/collective/reduce_kernels_vector.h"

#if defined(__FAST_MATH__)
#error "The reduce kernels promise the same bits everywhere; do not build them with -ffast-math."
#endif

namespace pliant {
namespace {

// Enough vectors in flight to hide the latency of a load, few enough to stay in registers.
constexpr size_t kBlockBytes = kVectorBytes == 16 ? 128 : 256;
constexpr size_t kBlockVectors = kBlockBytes / kVectorBytes;

// ---- what happens to a combined vector before it is written ----

template <typename T>
class Finish {
 public:
  explicit Finish(const Reduction& reduction)
      : divide_(reduction.op == Op::kMean && !reduction.output_partial),
        divisor_(divide_ ? reduction.mean_over : 1) {
    if constexpr (kFloating<T>) {
      // A power of two has an exact reciprocal, and multiplying by it rounds like dividing.
      const bool exact = (divisor_ & (divisor_ - 1)) == 0;
      scale_ = divide_ && exact;
      factor_ = scale_ ? T(1) / static_cast<T>(divisor_) : static_cast<T>(divisor_);
    }
  }

  template <size_t... kI>
  PLIANT_KERNEL_INLINE void apply(Vector<T> (&acc)[sizeof...(kI)],
                                  std::index_sequence<kI...>) const {
    if constexpr (kFloating<T>) {
      if (scale_) {
        ((acc[kI] = acc[kI] * factor_), ...);
      } else if (divide_) {
        ((acc[kI] = acc[kI] / factor_), ...);
      }
      ((acc[kI] = canonical(acc[kI])), ...);
    } else if (divide_) {
      ((acc[kI] = quotient(acc[kI])), ...);
    }
  }

 private:
  static PLIANT_KERNEL_INLINE Vector<T> canonical(Vector<T> value) {
    const Vector<T> nan = Vector<T>{} + static_cast<T>(__builtin_nan(""));
    return value != value ? nan : value;
  }

  // There is no vector instruction for it; 64 bits, because the divisor need not fit in T.
  PLIANT_KERNEL_INLINE Vector<T> quotient(Vector<T> value) const {
    constexpr bool kSigned = T(-1) < T(0);
    for (size_t i = 0; i < kVectorBytes / sizeof(T); ++i) {
      if constexpr (kSigned) {
        value[i] = static_cast<T>(static_cast<int64_t>(value[i]) / divisor_);
      } else {
        value[i] =
            static_cast<T>(static_cast<uint64_t>(value[i]) / static_cast<uint64_t>(divisor_));
      }
    }
    return value;
  }

  bool divide_;
  bool scale_ = false;
  int64_t divisor_;
  T factor_ = T(1);
};

// ---- the pass over memory ----

// One reduction, with what the inner loops need held in registers. kFixed is the number of inputs,
// or 0 when it is known at run time alone.
template <typename Element, typename Operator, size_t kFixed>
class Pass {
 public:
  using Acc = typename Element::Acc;
  using Vec = Vector<Acc>;
  using Packed = typename Element::Packed;
  static constexpr size_t kLanes = kVectorBytes / sizeof(Acc);
  static constexpr size_t kBlock = kLanes * kBlockVectors;
  using OneVector = std::make_index_sequence<1>;
  using Block = std::make_index_sequence<kBlockVectors>;

  PLIANT_KERNEL_INLINE explicit Pass(const Reduction& reduction)
      : inputs_(reduction.inputs.data()),
        input_count_(kFixed != 0 ? kFixed : reduction.inputs.size()),
        outputs_(reduction.outputs.data()),
        output_count_(reduction.outputs.size()),
        pack_(Element::kPacked && !reduction.output_partial),
        finish_(reduction) {}

  PLIANT_KERNEL_INLINE void run(const Reduction& reduction) {
    size_t at = 0;
    if (reduction.stream) {
      at = head(reduction.count);
      edge(*this, 0, at);
      choose_streams(at);
    }
    for (; at + kBlock <= reduction.count; at += kBlock) step(at, Block());
    if (streams_ != 0) stream_fence();
    streams_ = 0;
    if (at < reduction.count) edge(*this, at, reduction.count);
  }

 private:
  size_t output_bytes() const { return pack_ ? sizeof(uint16_t) : sizeof(Acc); }

  // The elements before the first cache line that starts in the first output.
  size_t head(size_t count) const {
    const auto address = reinterpret_cast<uintptr_t>(outputs_[0]);
    const size_t bytes = (kLineBytes - address % kLineBytes) % kLineBytes;
    if (bytes % output_bytes() != 0) return 0;
    const size_t elements = bytes / output_bytes();
    return elements < count ? elements : count;
  }

  // An output is streamed if its lines fall on our blocks and were not just read: a line that is
  // in the cache anyway is cheaper to write there.
  void choose_streams(size_t at) {
    const size_t known = output_count_ < 64 ? output_count_ : 64;
    for (size_t i = 0; i < known; ++i) {
      const auto address = reinterpret_cast<uintptr_t>(outputs_[i] + at * output_bytes());
      if (address % kLineBytes == 0 && !is_input(outputs_[i])) streams_ |= uint64_t{1} << i;
    }
  }

  bool is_input(const std::byte* output) const {
    for (size_t i = 0; i < input_count_; ++i) {
      if (inputs_[i].data == output) return true;
    }
    return false;
  }

  // Elements [at, at + sizeof...(kI) * kLanes).
  template <size_t... kI>
  PLIANT_KERNEL_INLINE void step(size_t at, std::index_sequence<kI...> all) const {
    Vec acc[sizeof...(kI)];
    load<true>(acc, inputs_[0], at, all);
    if constexpr (kFixed != 0) {
      step_fixed(acc, at, all, std::make_index_sequence<kFixed - 1>());
    } else {
      for (size_t i = 1; i < input_count_; ++i) load<false>(acc, inputs_[i], at, all);
    }
    finish_.apply(acc, all);
    if constexpr (Element::kPacked) {
      if (pack_) {
        Packed packed[] = {Element::pack(acc[kI])...};
        return store(packed, at * sizeof(uint16_t), all);
      }
    }
    store(acc, at * sizeof(Acc), all);
  }

  template <size_t... kI, size_t... kInput>
  PLIANT_KERNEL_INLINE void step_fixed(Vec (&acc)[sizeof...(kI)], size_t at,
                                       std::index_sequence<kI...> all,
                                       std::index_sequence<kInput...>) const {
    (load<false>(acc, inputs_[kInput + 1], at, all), ...);
  }

  template <bool kFirst, size_t... kI>
  static PLIANT_KERNEL_INLINE void load(Vec (&acc)[sizeof...(kI)], const ReduceInput& input,
                                        size_t at, std::index_sequence<kI...>) {
    if constexpr (Element::kPacked) {
      if (!input.partial) {
        const std::byte* from = input.data + at * sizeof(uint16_t);
        ((acc[kI] = take<kFirst>(acc[kI],
                                 Element::unpack(load_vector<Packed>(from + kI * sizeof(Packed))))),
         ...);
        return;
      }
    }
    const std::byte* from = input.data + at * sizeof(Acc);
    ((acc[kI] = take<kFirst>(acc[kI], load_vector<Vec>(from + kI * sizeof(Vec)))), ...);
  }

  template <bool kFirst>
  static PLIANT_KERNEL_INLINE Vec take(const Vec& acc, Vec next) {
    if constexpr (kFirst) return next;
    return Operator::template combine<Acc>(acc, next);
  }

  template <typename V, size_t... kI>
  PLIANT_KERNEL_INLINE void store(const V (&values)[sizeof...(kI)], size_t offset,
                                  std::index_sequence<kI...>) const {
    for (size_t i = 0; i < output_count_; ++i) {
      std::byte* to = outputs_[i] + offset;
      if (i < 64 && (streams_ >> i & 1) != 0) {
        (stream_vector(to + kI * sizeof(V), values[kI]), ...);
      } else {
        (store_vector(to + kI * sizeof(V), values[kI]), ...);
      }
    }
  }

  // Elements [at, end), fewer than a block and a line: whole vectors, then one that is padded.
  // Takes the pass by value so that the caller's copy can stay in registers.
  static __attribute__((noinline)) void edge(Pass pass, size_t at, size_t end) {
    for (; at + kLanes <= end; at += kLanes) pass.step(at, OneVector());
    if (at < end) pass.padded_step(at, end - at);
  }

  void padded_step(size_t at, size_t count) const {
    Vec acc[1];
    std::byte padded[kVectorBytes] = {};
    load<true>(acc, pad(inputs_[0], at, count, padded), 0, OneVector());
    for (size_t i = 1; i < input_count_; ++i) {
      load<false>(acc, pad(inputs_[i], at, count, padded), 0, OneVector());
    }
    finish_.apply(acc, OneVector());
    store_vector(padded, acc[0]);
    if constexpr (Element::kPacked) {
      if (pack_) store_vector(padded, Element::pack(acc[0]));
    }
    for (size_t i = 0; i < output_count_; ++i) {
      __builtin_memcpy(outputs_[i] + at * output_bytes(), padded, count * output_bytes());
    }
  }

  static PLIANT_KERNEL_INLINE ReduceInput pad(const ReduceInput& input, size_t at, size_t count,
                                              std::byte* padded) {
    const size_t bytes = Element::kPacked && !input.partial ? sizeof(uint16_t) : sizeof(Acc);
    __builtin_memcpy(padded, input.data + at * bytes, count * bytes);
    return {padded, input.partial};
  }

  const ReduceInput* inputs_;
  size_t input_count_;
  std::byte* const* outputs_;
  size_t output_count_;
  bool pack_;
  uint64_t streams_ = 0;  // bit i: output i is streamed; outputs past the 64th never are
  Finish<Acc> finish_;
};

template <typename Element, typename Operator, size_t kFixed = 0>
void reduce_pass(const Reduction& reduction) {
  Pass<Element, Operator, kFixed>(reduction).run(reduction);
}

// The sums of gradients are worth a loop per number of inputs.
template <typename Element>
void reduce_sum(const Reduction& reduction) {
  switch (reduction.inputs.size()) {
    case 2: return reduce_pass<Element, Sum, 2>(reduction);
    case 3: return reduce_pass<Element, Sum, 3>(reduction);
    case 4: return reduce_pass<Element, Sum, 4>(reduction);
    case 8: return reduce_pass<Element, Sum, 8>(reduction);
    default: return reduce_pass<Element, Sum>(reduction);
  }
}

template <size_t... kI>
PLIANT_KERNEL_INLINE void copy_block(std::byte* to, const std::byte* from,
                                     std::index_sequence<kI...>) {
  using V = Vector<uint64_t>;
  const V values[] = {load_vector<V>(from + kI * sizeof(V))...};
  (stream_vector(to + kI * sizeof(V), values[kI]), ...);
}

// `to` and `from` do not overlap.
void copy_stream(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t skew = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  size_t at = skew < bytes ? skew : bytes;
  __builtin_memcpy(to, from, at);
  for (; at + kBlockBytes <= bytes; at += kBlockBytes) {
    copy_block(to + at, from + at, std::make_index_sequence<kBlockVectors>());
  }
  stream_fence();
  __builtin_memcpy(to + at, from + at, bytes - at);
}

template <typename Element>
constexpr void fill(Kernels& kernels, DType dtype, ReduceKernel sum) {
  auto& row = kernels.reduce[static_cast<size_t>(dtype)];
  row[static_cast<size_t>(Op::kSum)] = sum;
  row[static_cast<size_t>(Op::kMean)] = sum;  // differs in how it finishes
  row[static_cast<size_t>(Op::kMin)] = reduce_pass<Element, Min>;
  row[static_cast<size_t>(Op::kMax)] = reduce_pass<Element, Max>;
  row[static_cast<size_t>(Op::kProd)] = reduce_pass<Element, Prod>;
}

constexpr Kernels make_kernels() {
  Kernels kernels;
  fill<Plain<int8_t>>(kernels, DType::kI8, reduce_pass<Plain<int8_t>, Sum>);
  fill<Plain<int16_t>>(kernels, DType::kI16, reduce_pass<Plain<int16_t>, Sum>);
  fill<Plain<int32_t>>(kernels, DType::kI32, reduce_pass<Plain<int32_t>, Sum>);
  fill<Plain<int64_t>>(kernels, DType::kI64, reduce_pass<Plain<int64_t>, Sum>);
  fill<Plain<uint8_t>>(kernels, DType::kU8, reduce_pass<Plain<uint8_t>, Sum>);
  fill<Plain<uint16_t>>(kernels, DType::kU16, reduce_pass<Plain<uint16_t>, Sum>);
  fill<Plain<uint32_t>>(kernels, DType::kU32, reduce_pass<Plain<uint32_t>, Sum>);
  fill<Plain<uint64_t>>(kernels, DType::kU64, reduce_pass<Plain<uint64_t>, Sum>);
  fill<Float16>(kernels, DType::kF16, reduce_pass<Float16, Sum>);
  fill<BFloat16>(kernels, DType::kBF16, reduce_pass<BFloat16, Sum>);
  fill<Plain<float>>(kernels, DType::kF32, reduce_sum<Plain<float>>);
  fill<Plain<double>>(kernels, DType::kF64, reduce_sum<Plain<double>>);
  kernels.copy_stream = copy_stream;
  return kernels;
}

}  // namespace

constinit const Kernels PLIANT_REDUCE_KERNELS = make_kernels();

}  // namespace pliant
