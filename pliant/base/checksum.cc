#include "pliant/base/checksum.h"

#include <array>
#include <cstring>

namespace pliant {
namespace {

constexpr size_t kLanes = 16;
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 32) * kOdd;
  value = (value ^ value >> 29) * kOdd;
  return value ^ value >> 32;
}

}  // namespace

// Each lane keeps the sum of its words and the sum of these sums, which depends on their places.
// Additions only: the compiler makes vectors of them, and memory is the limit.
uint64_t checksum64(Bytes bytes) {
  std::array<uint64_t, kLanes> sum{};
  std::array<uint64_t, kLanes> weighted{};
  std::array<uint64_t, kLanes> words{};
  const size_t total = bytes.size();
  const auto add = [&](const std::byte* from) {
    std::memcpy(words.data(), from, sizeof words);
    for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += words[lane];
    for (size_t lane = 0; lane < kLanes; ++lane) weighted[lane] += sum[lane];
  };
  for (; bytes.size() >= sizeof words; bytes = bytes.subspan(sizeof words)) add(bytes.data());
  std::array<std::byte, sizeof words> rest{};
  if (!bytes.empty()) std::memcpy(rest.data(), bytes.data(), bytes.size());
  add(rest.data());
  uint64_t hash = mixed(total + kOdd);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    hash = mixed(hash ^ sum[lane]);
    hash = mixed(hash + weighted[lane]);
  }
  return hash;
}

}  // namespace pliant
