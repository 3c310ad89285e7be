#include "pliant/store/verify.h"

#include <algorithm>
#include <cstring>

namespace pliant::store {
namespace {

constexpr size_t kBufferBytes = size_t{32} << 20;

// How a floating type is laid out: sign, exponent, fraction.
struct FloatBits {
  uint64_t exponent = 0;  // all ones
  uint64_t fraction = 0;
};

template <typename Word>
NotNumbers count(Bytes elements, FloatBits bits) {
  NotNumbers found;
  for (size_t at = 0; at + sizeof(Word) <= elements.size(); at += sizeof(Word)) {
    Word word{};
    std::memcpy(&word, elements.data() + at, sizeof(Word));
    if ((word & bits.exponent) != bits.exponent) continue;
    ++((word & bits.fraction) != 0 ? found.nan : found.infinite);
  }
  return found;
}

// This type has no infinity, and one not-a-number of each sign: all bits set.
NotNumbers count_e4m3(Bytes elements) {
  return {.nan = static_cast<uint64_t>(std::ranges::count_if(
              elements, [](std::byte b) { return (b & std::byte{0x7f}) == std::byte{0x7f}; })),
          .infinite = 0};
}

}  // namespace

NotNumbers count_not_numbers(DType dtype, Bytes elements) {
  switch (dtype) {
    case DType::kF64:
      return count<uint64_t>(elements, {0x7ff0'0000'0000'0000, 0x000f'ffff'ffff'ffff});
    case DType::kF32: return count<uint32_t>(elements, {0x7f80'0000, 0x007f'ffff});
    case DType::kF16: return count<uint16_t>(elements, {0x7c00, 0x03ff});
    case DType::kBF16: return count<uint16_t>(elements, {0x7f80, 0x007f});
    case DType::kF8E5M2: return count<uint8_t>(elements, {0x7c, 0x03});
    case DType::kF8E4M3: return count_e4m3(elements);
    default: return {};
  }
}

Result<std::vector<TensorVerdict>> verify(Checkpoint& checkpoint, const VerifyOptions& options) {
  const tensor::Collection& tensors = checkpoint.tensors();
  uint64_t done = 0;
  const auto advance = [&](uint64_t bytes) {
    done += bytes;
    if (options.progress) options.progress(done, tensors.bytes());
  };
  PLIANT_TRY(checkpoint.check_files());
  std::vector<TensorVerdict> verdicts(tensors.size());
  std::vector<std::byte> buffer(std::min<uint64_t>(kBufferBytes, tensors.bytes() + 8));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& info = tensors[i];
    const uint64_t element = size_of(info.dtype);
    RunningChecksum checksum;
    const auto look = [&](const Box& box, uint64_t) -> Status {
      const auto part = std::span(buffer).first(tensor::volume(box) * element);
      PLIANT_TRY(checkpoint.read(i, box, part));
      checksum.add(part);
      if (options.count_not_numbers) {
        const NotNumbers found = count_not_numbers(info.dtype, part);
        verdicts[i].not_numbers.nan += found.nan;
        verdicts[i].not_numbers.infinite += found.infinite;
      }
      advance(part.size());
      return {};
    };
    PLIANT_TRY(for_each_run(tensor::whole(info.shape), buffer.size() / element, look));
    verdicts[i].checksum = checksum.finish();
  }
  return verdicts;
}

}  // namespace pliant::store
