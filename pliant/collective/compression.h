// Compression of f32 gradients for an all-reduce, with error feedback: what a number loses on the
// way is kept by its sender and added to the next one. Kernels; pure, any thread.
//
//   x = value + residual, sent = what is nearest to x in the smaller type, residual <- x - sent
//
// bf16: half of the bytes; the sum is made in f32 and rounded to bf16 once.
// int8: a quarter. x counts in a quantum, a power of two that all members share for each block of
// kQuantumBlock elements, and is cut to +-levels, so that the sum of all members fits in an i8.
// Behind the values each block has one more number: how much of the range its sender needed. Their
// sum tells everybody alike when the quantum is too small or too large; see next_quanta().
//
// sent + residual is x to the bit, except where |x| is more than 2^24 quanta. Numbers that are not
// finite: bf16 sends them and keeps no residual; int8 cannot, and sends 0 for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pliant {

enum class Compression : uint8_t {
  kNone,
  kBf16,
  kInt8,
};
const char* to_string(Compression compression);  // "none", "bf16", "int8"

// ---- bf16 -------------------------------------------------------------------------------------

// `sent` has as many elements as the values, as the residual has.
void compress_bf16(std::span<const float> values, std::span<const float> residual, uint16_t* sent);
void settle_bf16(std::span<const float> values, const uint16_t* sent, std::span<float> residual);
void expand_bf16(std::span<const uint16_t> from, float* to);

// ---- int8 -------------------------------------------------------------------------------------

inline constexpr size_t kQuantumBlock = 1024;
// With more members too few levels are left to be worth it, and then none.
inline constexpr int kInt8MembersMax = 63;

constexpr size_t blocks_of(size_t count) { return (count + kQuantumBlock - 1) / kQuantumBlock; }
// The largest number that each of so many members may send; 0 for more than 127.
constexpr int levels_of(int members) { return members < 1 ? 127 : 127 / members; }

// The largest finite |value + residual| of each block, for the first quanta.
void peaks_of(std::span<const float> values, std::span<const float> residual, float* peaks);
// From the sum of the members' peaks: quanta with which the mean peak just fits. False, and no
// quanta, if all is zero.
bool first_quanta(std::span<const float> peak_sums, int members, std::span<float> quanta);

// `sent` has blocks_of() more elements than the values, and `quanta` blocks_of(), all above zero.
void compress_int8(std::span<const float> values, std::span<const float> residual,
                   std::span<const float> quanta, int levels, int8_t* sent);
void settle_int8(std::span<const float> values, const int8_t* sent, std::span<const float> quanta,
                 std::span<float> residual);
// The sum of what the members sent, over `divisor`.
void expand_int8(const int8_t* sums, std::span<const float> quanta, float divisor,
                 std::span<float> to);
// Doubles, quadruples or halves each quantum as the members' need of the range was; `needs` are the
// numbers behind the summed values.
void next_quanta(const int8_t* needs, int members, std::span<float> quanta);

}  // namespace pliant
