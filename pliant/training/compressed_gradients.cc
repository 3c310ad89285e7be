#include "pliant/training/compressed_gradients.h"

#include <algorithm>

namespace pliant {

CompressedGradients::CompressedGradients(std::string name, std::span<float> gradients)
    : name_(std::move(name)),
      gradients_(gradients),
      quanta_(blocks_of(gradients.size()), 0.0F),
      residual_(gradients.size(), 0.0F) {}

void CompressedGradients::begin(Compression compression, int members) {
  form_ = compression;
  // All quanta are known, or none.
  const bool known = !quanta_.empty() && quanta_.front() > 0;
  if (form_ == Compression::kInt8 && !known) form_ = Compression::kNone;
  levels_ = levels_of(members);
}

uint64_t CompressedGradients::sent_bytes() const {
  const uint64_t count = gradients_.size();
  if (form_ == Compression::kBf16) return count * sizeof(uint16_t);
  return form_ == Compression::kInt8 ? count + quanta_.size()
                                     : (count + quanta_.size()) * sizeof(float);
}

Status CompressedGradients::hand_in(Step& step) {
  const size_t count = gradients_.size();
  if (form_ == Compression::kBf16) {
    halves_.resize(count);
    compress_bf16(gradients_, residual_, halves_.data());
    return step.all_reduce(name_, halves_.data(), count, DType::kBF16, Op::kMean);
  }
  if (form_ == Compression::kInt8) {
    bytes_.resize(count + quanta_.size());
    compress_int8(gradients_, residual_, quanta_, levels_, bytes_.data());
    return step.all_reduce(name_, bytes_.data(), bytes_.size(), DType::kI8, Op::kSum);
  }
  // With the peaks behind, for the first quanta.
  exact_.resize(count + quanta_.size());
  for (size_t i = 0; i < count; ++i) exact_[i] = gradients_[i] + residual_[i];
  peaks_of(gradients_, residual_, exact_.data() + count);
  return step.all_reduce(name_, exact_.data(), exact_.size(), DType::kF32, Op::kSum);
}

Status CompressedGradients::take(const Step& step, uint64_t divisor) {
  if (form_ == Compression::kBf16) return take_bf16(step);
  const auto over = static_cast<float>(divisor);
  return form_ == Compression::kInt8 ? take_int8(step, over) : take_exact(step, over);
}

Status CompressedGradients::take_exact(const Step& step, float divisor) {
  const auto sum = step.result_of<float>(name_);
  if (!sum) return sum.error();
  const size_t count = gradients_.size();
  for (size_t i = 0; i < count; ++i) gradients_[i] = (*sum)[i] / divisor;
  std::fill(residual_.begin(), residual_.end(), 0.0F);
  (void)first_quanta(sum->subspan(count), std::max(1, step.contributors()), quanta_);
  return {};
}

Status CompressedGradients::take_bf16(const Step& step) {
  const auto mean = step.result_of<uint16_t>(name_);
  if (!mean) return mean.error();
  settle_bf16(gradients_, halves_.data(), residual_);
  expand_bf16(*mean, gradients_.data());
  return {};
}

Status CompressedGradients::take_int8(const Step& step, float divisor) {
  const auto sums = step.result_of<int8_t>(name_);
  if (!sums) return sums.error();
  settle_int8(gradients_, bytes_.data(), quanta_, residual_);
  expand_int8(sums->data(), quanta_, divisor, gradients_);
  next_quanta(sums->data() + gradients_.size(), std::max(1, step.contributors()), quanta_);
  return {};
}

void CompressedGradients::forget() { std::fill(residual_.begin(), residual_.end(), 0.0F); }

}  // namespace pliant
