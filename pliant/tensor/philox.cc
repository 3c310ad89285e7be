#include "pliant/tensor/philox.h"

#include "pliant/base/bytes.h"

namespace pliant::tensor {
namespace {

constexpr int kRounds = 10;
constexpr std::array<uint32_t, 2> kMultipliers = {0xd2511f53u, 0xcd9e8d57u};
constexpr std::array<uint32_t, 2> kKeySteps = {0x9e3779b9u, 0xbb67ae85u};

constexpr uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }
constexpr uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }

}  // namespace

std::array<uint32_t, 4> philox(const PhiloxState& state) {
  std::array<uint32_t, 2> key = state.key;
  std::array<uint32_t, 4> c = state.counter;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = uint64_t{kMultipliers[0]} * c[0];
    const uint64_t second = uint64_t{kMultipliers[1]} * c[2];
    c = {high(second) ^ c[1] ^ key[0], low(second), high(first) ^ c[3] ^ key[1], low(first)};
    key[0] += kKeySteps[0];
    key[1] += kKeySteps[1];
  }
  return c;
}

PhiloxState following(PhiloxState state) {
  for (uint32_t& word : state.counter)
    if (++word != 0) break;
  return state;
}

PhiloxState derive_random(uint64_t seed, std::string_view stream, uint32_t index, uint32_t step) {
  const uint64_t mixed = hash64(stream, seed);
  return {.key = {low(mixed), high(mixed)}, .counter = {0, step, index, 0}};
}

}  // namespace pliant::tensor
