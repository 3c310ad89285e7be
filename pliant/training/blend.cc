#include "pliant/training/blend.h"

#include <algorithm>
#include <cstring>

#include "pliant/collective/reduce.h"

namespace pliant {
namespace {

// Of half types: converted to f32 and back in pieces that stay in the cache.
constexpr size_t kPiece = 1024;

template <typename T>
void blend_all(T* values, const T* others, size_t count, double weight, int divisor) {
  const auto keep = static_cast<T>(1 - weight);
  const auto take = static_cast<T>(weight);
  const auto members = static_cast<T>(divisor);
  for (size_t i = 0; i < count; ++i) values[i] = keep * values[i] + take * (others[i] / members);
}

// The reduce kernels know the half types: one input in, in the other form out.
void convert(DType dtype, const std::byte* from, bool from_f32, std::byte* to, size_t count) {
  const ReduceInput input{from, from_f32};
  Reduction reduction;
  reduction.dtype = dtype;
  reduction.count = count;
  reduction.inputs = {&input, 1};
  reduction.outputs = {&to, 1};
  reduction.output_partial = !from_f32;
  reduce(reduction);
}

void blend_halves(const Blend& blend) {
  float values[kPiece];
  float others[kPiece];
  auto* const all = static_cast<std::byte*>(blend.values);
  const auto* const all_others = static_cast<const std::byte*>(blend.others);
  const size_t size = size_of(blend.dtype);
  for (size_t at = 0; at < blend.count; at += kPiece) {
    const size_t count = std::min(kPiece, blend.count - at);
    const auto values_bytes = reinterpret_cast<std::byte*>(values);
    convert(blend.dtype, all + at * size, false, values_bytes, count);
    convert(blend.dtype, all_others + at * size, false, reinterpret_cast<std::byte*>(others),
            count);
    blend_all(values, others, count, blend.weight, blend.divisor);
    convert(blend.dtype, values_bytes, true, all + at * size, count);
  }
}

}  // namespace

bool can_blend(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

void blend(const Blend& blend) {
  PLIANT_CHECK(can_blend(blend.dtype), "models are of a floating-point type");
  if (blend.dtype == DType::kF32)
    return blend_all(static_cast<float*>(blend.values), static_cast<const float*>(blend.others),
                     blend.count, blend.weight, blend.divisor);
  if (blend.dtype == DType::kF64)
    return blend_all(static_cast<double*>(blend.values), static_cast<const double*>(blend.others),
                     blend.count, blend.weight, blend.divisor);
  blend_halves(blend);
}

void divide(DType dtype, void* values, const void* others, size_t count, int divisor) {
  if (divisor == 1) {
    if (values != others) std::memcpy(values, others, count * size_of(dtype));
    return;
  }
  const ReduceInput input{static_cast<const std::byte*>(others)};
  auto* const output = static_cast<std::byte*>(values);
  Reduction reduction;
  reduction.dtype = dtype;
  reduction.op = Op::kMean;
  reduction.count = count;
  reduction.inputs = {&input, 1};
  reduction.outputs = {&output, 1};
  reduction.mean_over = divisor;
  reduce(reduction);
}

}  // namespace pliant
