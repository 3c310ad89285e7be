#include "pliant/base/checksum.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pliant {
namespace {

constexpr size_t kLanes = RunningChecksum::kLanes;
constexpr size_t kBlockBytes = kLanes * sizeof(uint64_t);
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
using Sums = RunningChecksum::Sums;

uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 32) * kOdd;
  value = (value ^ value >> 29) * kOdd;
  return value ^ value >> 32;
}

// Each lane keeps the sum of its words and the sum of these sums, which depends on their places.
// Additions only: the compiler makes vectors of them, and memory is the limit. `to` may be null:
// then nothing is copied.
using Kernel = void (*)(Sums& sums, std::byte* to, const std::byte* from, size_t blocks);

void take_plain(Sums& sums, std::byte* to, const std::byte* from, size_t blocks) {
  std::array<uint64_t, kLanes> sum = sums.sum;
  std::array<uint64_t, kLanes> weighted = sums.weighted;
  std::array<uint64_t, kLanes> words{};
  for (size_t block = 0; block < blocks; ++block, from += kBlockBytes) {
    std::memcpy(words.data(), from, sizeof words);
    for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += words[lane];
    for (size_t lane = 0; lane < kLanes; ++lane) weighted[lane] += sum[lane];
    if (to != nullptr) std::memcpy(to + block * kBlockBytes, words.data(), sizeof words);
  }
  sums.sum = sum;
  sums.weighted = weighted;
}

#if defined(__x86_64__)
enum class Write : uint8_t { kNone, kCached, kStreamed };

template <Write kWrite>
__attribute__((target("avx2"))) void take_avx2(Sums& sums, std::byte* to, const std::byte* from,
                                               size_t blocks) {
  constexpr size_t kWide = kBlockBytes / sizeof(__m256i);
  __m256i sum[kWide];
  __m256i weighted[kWide];
  std::memcpy(sum, sums.sum.data(), sizeof sum);
  std::memcpy(weighted, sums.weighted.data(), sizeof weighted);
  for (size_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kWide; ++i) {
      const size_t at = block * kWide + i;
      const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + at);
      sum[i] = _mm256_add_epi64(sum[i], word);
      weighted[i] = _mm256_add_epi64(weighted[i], sum[i]);
      if constexpr (kWrite == Write::kCached)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + at, word);
      if constexpr (kWrite == Write::kStreamed)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + at, word);
    }
  }
  std::memcpy(sums.sum.data(), sum, sizeof sum);
  std::memcpy(sums.weighted.data(), weighted, sizeof weighted);
}

template <Write kWrite>
__attribute__((target("avx512f"))) void take_avx512(Sums& sums, std::byte* to,
                                                    const std::byte* from, size_t blocks) {
  constexpr size_t kWide = kBlockBytes / sizeof(__m512i);
  __m512i sum[kWide];
  __m512i weighted[kWide];
  std::memcpy(sum, sums.sum.data(), sizeof sum);
  std::memcpy(weighted, sums.weighted.data(), sizeof weighted);
  for (size_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 2
    for (size_t i = 0; i < kWide; ++i) {
      const size_t at = block * kWide + i;
      const __m512i word = _mm512_loadu_si512(reinterpret_cast<const __m512i*>(from) + at);
      sum[i] = _mm512_add_epi64(sum[i], word);
      weighted[i] = _mm512_add_epi64(weighted[i], sum[i]);
      if constexpr (kWrite == Write::kCached)
        _mm512_storeu_si512(reinterpret_cast<__m512i*>(to) + at, word);
      if constexpr (kWrite == Write::kStreamed)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to) + at, word);
    }
  }
  std::memcpy(sums.sum.data(), sum, sizeof sum);
  std::memcpy(sums.weighted.data(), weighted, sizeof weighted);
}
#endif

struct Kernels {
  Kernel sum = take_plain;
  Kernel copy = take_plain;
  Kernel stream = take_plain;
  size_t stream_alignment = 1;
};

Kernels best_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f"))
    return {take_avx512<Write::kNone>, take_avx512<Write::kCached>, take_avx512<Write::kStreamed>,
            sizeof(__m512i)};
  if (__builtin_cpu_supports("avx2"))
    return {take_avx2<Write::kNone>, take_avx2<Write::kCached>, take_avx2<Write::kStreamed>,
            sizeof(__m256i)};
#endif
  return {};
}

const Kernels& kernels() {
  static const Kernels chosen = best_kernels();
  return chosen;
}

uint64_t hash_of(const Sums& sums, uint64_t total) {
  uint64_t hash = mixed(total + kOdd);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    hash = mixed(hash ^ sums.sum[lane]);
    hash = mixed(hash + sums.weighted[lane]);
  }
  return hash;
}

}  // namespace

uint64_t checksum64(Bytes bytes) {
  RunningChecksum checksum;
  checksum.add(bytes.data(), bytes.size());
  return checksum.finish();
}

void RunningChecksum::take(std::byte* to, const std::byte* from, size_t bytes, Store store) {
  total_ += bytes;
  if (rest_bytes_ != 0) {
    const size_t part = std::min(bytes, kBlock - rest_bytes_);
    std::memcpy(rest_.data() + rest_bytes_, from, part);
    if (to != nullptr) {
      std::memcpy(to, from, part);
      to += part;
    }
    from += part;
    bytes -= part;
    rest_bytes_ += part;
    if (rest_bytes_ < kBlock) return;
    kernels().sum(sums_, nullptr, rest_.data(), 1);
    rest_bytes_ = 0;
  }
  const size_t blocks = bytes / kBlock;
  if (blocks > 0) {
    const bool streams = to != nullptr && store == Store::kStreamed &&
                         reinterpret_cast<uintptr_t>(to) % kernels().stream_alignment == 0;
    const Kernel kernel =
        to == nullptr ? kernels().sum : (streams ? kernels().stream : kernels().copy);
    kernel(sums_, to, from, blocks);
    streamed_ = streamed_ || streams;
  }
  const size_t done = blocks * kBlock;
  rest_bytes_ = bytes - done;
  if (rest_bytes_ == 0) return;
  std::memcpy(rest_.data(), from + done, rest_bytes_);
  if (to != nullptr) std::memcpy(to + done, from + done, rest_bytes_);
}

uint64_t RunningChecksum::finish() {
#if defined(__x86_64__)
  if (streamed_) _mm_sfence();
#endif
  // The last block is always a short one, if only an empty one.
  std::fill(rest_.begin() + static_cast<std::ptrdiff_t>(rest_bytes_), rest_.end(), std::byte{});
  kernels().sum(sums_, nullptr, rest_.data(), 1);
  return hash_of(sums_, total_);
}

}  // namespace pliant
