#include "pliant/collective/compression.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "pliant/base/bf16.h"

namespace pliant {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;
constexpr int32_t kMagnitudeBits = 0x7fffffff;

// To the nearest integer, ties to even, for |value| below 2^22: the adder does it.
inline float round_small(float value) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23
  return (value + kShift) - kShift;
}

inline float finite_or_zero(float value) { return value - value == 0.0F ? value : 0.0F; }

struct Block {
  size_t begin = 0;
  size_t end = 0;
};

Block block_at(size_t index, size_t count) {
  return {index * kQuantumBlock, std::min(count, (index + 1) * kQuantumBlock)};
}

// As integers the magnitudes of floats have the same order, and compilers find the maximum of
// integers with vectors.
float peak_of(const float* values, const float* residual, const Block& block) {
  int32_t most = 0;
  for (size_t i = block.begin; i < block.end; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(values[i] + residual[i]) & kMagnitudeBits;
    most = std::max(most, bits < kInfinityBits ? bits : 0);
  }
  return std::bit_cast<float>(most);
}

// What a block needs of the range of its sender: half of the levels if it just fits, all of them if
// it needs twice as much or more.
int8_t need_of(float peak, float quantum, int levels) {
  const float ratio = std::min(2.0F, peak / (quantum * static_cast<float>(levels)));
  return static_cast<int8_t>(round_small(ratio * static_cast<float>(levels) / 2));
}

}  // namespace

const char* to_string(Compression compression) {
  switch (compression) {
    case Compression::kNone: return "none";
    case Compression::kBf16: return "bf16";
    case Compression::kInt8: return "int8";
  }
  return "unknown";
}

// ---- bf16 -------------------------------------------------------------------------------------

void compress_bf16(std::span<const float> values, std::span<const float> residual, uint16_t* sent) {
  const float* const from = values.data();
  const float* const kept = residual.data();
  for (size_t i = 0; i < values.size(); ++i) sent[i] = to_bf16(from[i] + kept[i]);
}

void settle_bf16(std::span<const float> values, const uint16_t* sent, std::span<float> residual) {
  const float* const from = values.data();
  float* const kept = residual.data();
  for (size_t i = 0; i < values.size(); ++i)
    kept[i] = finite_or_zero((from[i] + kept[i]) - from_bf16(sent[i]));
}

void expand_bf16(std::span<const uint16_t> from, float* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = from_bf16(from[i]);
}

// ---- int8 -------------------------------------------------------------------------------------

void peaks_of(std::span<const float> values, std::span<const float> residual, float* peaks) {
  for (size_t block = 0; block < blocks_of(values.size()); ++block)
    peaks[block] = peak_of(values.data(), residual.data(), block_at(block, values.size()));
}

bool first_quanta(std::span<const float> peak_sums, int members, std::span<float> quanta) {
  const int levels = std::max(1, levels_of(members));
  const auto quantum_for = [&](float sum) {
    const float wanted = sum / static_cast<float>(members) / static_cast<float>(levels);
    // The power of two that is not below it.
    int exponent = 0;
    const float fraction = std::frexp(wanted, &exponent);
    return std::ldexp(1.0F, fraction == 0.5F ? exponent - 1 : exponent);
  };
  float most = 0;
  for (const float sum : peak_sums) most = std::max(most, std::isfinite(sum) ? sum : 0.0F);
  if (most < 0x1p-100F) return false;
  // A block that is all zeroes so far has the largest: it grows into it, or shrinks.
  for (size_t block = 0; block < quanta.size(); ++block) {
    const bool known = std::isfinite(peak_sums[block]) && peak_sums[block] >= 0x1p-100F;
    quanta[block] = quantum_for(known ? peak_sums[block] : most);
  }
  return true;
}

void compress_int8(std::span<const float> values, std::span<const float> residual,
                   std::span<const float> quanta, int levels, int8_t* sent) {
  const float* const from = values.data();
  const float* const kept = residual.data();
  const auto limit = static_cast<float>(levels);
  for (size_t index = 0; index < quanta.size(); ++index) {
    const Block block = block_at(index, values.size());
    const float per_quantum = 1.0F / quanta[index];
    for (size_t i = block.begin; i < block.end; ++i) {
      const float steps = finite_or_zero(from[i] + kept[i]) * per_quantum;
      const float cut = steps < -limit ? -limit : (steps > limit ? limit : steps);
      sent[i] = static_cast<int8_t>(static_cast<int32_t>(round_small(cut)));
    }
    sent[values.size() + index] =
        levels == 0 ? int8_t{0} : need_of(peak_of(from, kept, block), quanta[index], levels);
  }
}

void settle_int8(std::span<const float> values, const int8_t* sent, std::span<const float> quanta,
                 std::span<float> residual) {
  const float* const from = values.data();
  float* const kept = residual.data();
  for (size_t index = 0; index < quanta.size(); ++index) {
    const Block block = block_at(index, values.size());
    const float quantum = quanta[index];
    for (size_t i = block.begin; i < block.end; ++i)
      kept[i] = finite_or_zero(from[i] + kept[i]) - static_cast<float>(sent[i]) * quantum;
  }
}

void expand_int8(const int8_t* sums, std::span<const float> quanta, float divisor,
                 std::span<float> to) {
  for (size_t index = 0; index < quanta.size(); ++index) {
    const Block block = block_at(index, to.size());
    const float quantum = quanta[index];
    for (size_t i = block.begin; i < block.end; ++i)
      to[i] = static_cast<float>(sums[i]) * quantum / divisor;
  }
}

void next_quanta(const int8_t* needs, int members, std::span<float> quanta) {
  const int full = std::max(1, levels_of(members)) * members;  // everybody needs twice the range
  constexpr float kLeast = 0x1p-120F;
  constexpr float kMost = 0x1p+100F;
  for (size_t block = 0; block < quanta.size(); ++block) {
    const float mean = 2.0F * static_cast<float>(needs[block]) / static_cast<float>(full);
    float& quantum = quanta[block];
    // Of a block of zeroes nothing is known. Far apart, so that none is passed twice in a row.
    if (needs[block] == 0) continue;
    if (mean > 1.8F)
      quantum *= 4;
    else if (mean > 1.0F)
      quantum *= 2;
    else if (mean < 0.4F)
      quantum /= 2;
    quantum = std::clamp(quantum, kLeast, kMost);
  }
}

}  // namespace pliant
