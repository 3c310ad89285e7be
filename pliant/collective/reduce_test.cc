#include "pliant/collective/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "pliant/collective/reduce_kernels.h"
#include "pliant/collective/reduce_reference.h"

namespace pliant {
namespace {

using namespace reduce_reference;

// ---- buffers ----

// `size` bytes at a chosen distance from a cache line. The end is the end of the allocation, so
// that the address sanitizer sees a read past it; the byte before is a canary.
class Buffer final {
 public:
  Buffer(size_t size, size_t skew)
      : size_(size), memory_(new (std::align_val_t{64}) std::byte[64 + skew + size]) {
    data_ = memory_.get() + 64 + skew;
    std::fill(memory_.get(), data_ + size, kCanary);
  }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool intact() const { return data_[-1] == kCanary && data_[-64] == kCanary; }

 private:
  static constexpr std::byte kCanary{0xa5};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  size_t size_;
  std::unique_ptr<std::byte[], Free> memory_;
  std::byte* data_;
};

using Random = std::mt19937_64;

size_t below(Random& random, size_t bound) { return random() % bound; }

// Mostly ordinary numbers, some arbitrary bits, and the specials: infinities, NaN, denormals, zeros
// of both signs, and the neighbourhood of the largest f16.
template <typename T>
T any_float(Random& random) {
  using Limits = std::numeric_limits<T>;
  const T specials[] = {T(0),
                        -T(0),
                        Limits::infinity(),
                        -Limits::infinity(),
                        Limits::max(),
                        Limits::lowest(),
                        Limits::min(),
                        Limits::denorm_min(),
                        -Limits::min(),
                        T(65504),
                        T(65519.996),
                        T(65520),
                        T(0x1p-24),
                        T(0x1p-25),
                        T(1),
                        Limits::quiet_NaN()};
  const size_t kind = below(random, 32);
  if (kind == 0) return specials[below(random, std::size(specials))];
  if (kind < 4) {
    const uint64_t bits = random();
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
  }
  return static_cast<T>(static_cast<double>(static_cast<int64_t>(random())) * 0x1p-62);
}

uint16_t any_half(Random& random, Format format) {
  if (below(random, 4) == 0) return static_cast<uint16_t>(random());
  return encode(any_float<float>(random), format);
}

template <typename T, typename Make>
void fill_with(const Buffer& buffer, Make make) {
  for (size_t i = 0; i < buffer.size() / sizeof(T); ++i) {
    const T value = make();
    std::memcpy(buffer.data() + i * sizeof(T), &value, sizeof(T));
  }
}

void fill(const Buffer& buffer, DType stored, Random& random) {
  switch (stored) {
    case DType::kF16: return fill_with<uint16_t>(buffer, [&] { return any_half(random, kHalf); });
    case DType::kBF16: return fill_with<uint16_t>(buffer, [&] { return any_half(random, kBrain); });
    case DType::kF32: return fill_with<float>(buffer, [&] { return any_float<float>(random); });
    case DType::kF64: return fill_with<double>(buffer, [&] { return any_float<double>(random); });
    default: return fill_with<uint8_t>(buffer, [&] { return static_cast<uint8_t>(random()); });
  }
}

// A reduction and the memory behind it, drawn at random around the given shape.
struct Case {
  Case(DType dtype, Op op, size_t count, size_t input_count, Random& random) {
    const bool half = accumulator_of(dtype) != dtype;
    const bool output_partial = below(random, 4) == 0;
    const DType output_stored = output_partial ? accumulator_of(dtype) : dtype;
    const bool aligned = below(random, 2) == 0;
    const auto skew = [&](DType stored) {
      const size_t unit = below(random, 4) == 0 ? 1 : size_of(stored);  // 1: not even to an element
      return aligned ? 0 : unit * below(random, 64 / unit);
    };
    for (size_t k = 0; k < input_count; ++k) {
      const bool partial = half && below(random, 3) == 0;
      const DType stored = partial ? accumulator_of(dtype) : dtype;
      buffers.emplace_back(count * size_of(stored), skew(stored));
      fill(buffers.back(), stored, random);
      inputs.push_back({buffers.back().data(), partial});
      if (stored == output_stored && outputs.size() < 9 && below(random, 3) == 0) {
        outputs.push_back(buffers.back().data());
      }
    }
    while (outputs.empty() || (outputs.size() < 9 && below(random, 2) == 0)) {
      buffers.emplace_back(count * size_of(output_stored), skew(output_stored));
      outputs.push_back(buffers.back().data());
    }
    std::shuffle(outputs.begin(), outputs.end(), random);
    reduction = {.dtype = dtype,
                 .op = op,
                 .count = count,
                 .inputs = inputs,
                 .outputs = outputs,
                 .output_partial = output_partial,
                 .mean_over = static_cast<int>(1 + below(random, 300)),
                 .stream = below(random, 2) == 0};
  }

  bool intact() const {
    return std::all_of(buffers.begin(), buffers.end(), [](const auto& b) { return b.intact(); });
  }

  std::string describe(Isa isa) const {
    return std::string(to_string(isa)) + " " + to_string(reduction.dtype) + " " +
           to_string(reduction.op) + " count " + std::to_string(reduction.count) + " inputs " +
           std::to_string(inputs.size()) + " outputs " + std::to_string(outputs.size()) +
           (reduction.output_partial ? " partial" : "") + (reduction.stream ? " stream" : "");
  }

  std::vector<Buffer> buffers;
  std::vector<ReduceInput> inputs;
  std::vector<std::byte*> outputs;
  Reduction reduction;
};

std::vector<Isa> isas() {
  std::vector<Isa> result;
  std::copy_if(std::begin(kIsas), std::end(kIsas), std::back_inserter(result), supported);
  return result;
}

std::vector<DType> reducible() {
  std::vector<DType> result;
  for (int i = 0; i < kDTypes; ++i) {
    if (is_reducible(static_cast<DType>(i))) result.push_back(static_cast<DType>(i));
  }
  return result;
}

void expect_reference(Isa isa, const Case& c) {
  const std::vector<std::byte> expected = reference(c.reduction);
  reduce_with(isa, c.reduction);
  for (std::byte* output : c.outputs) {
    if (expected.empty() || std::memcmp(output, expected.data(), expected.size()) == 0) continue;
    const size_t width = expected.size() / c.reduction.count;
    size_t i = 0;
    while (std::memcmp(output + i * width, expected.data() + i * width, width) == 0) ++i;
    FAIL() << c.describe(isa) << ": element " << i << " differs";
  }
  ASSERT_TRUE(c.intact()) << c.describe(isa) << ": wrote outside of an output";
}

// ---- tests ----

class ReduceTest : public testing::TestWithParam<Isa> {};

TEST_P(ReduceTest, EqualsTheReferenceForEveryTypeOperatorAndShape) {
  Random random(1);
  for (DType dtype : reducible()) {
    for (int op = 0; op < kOps; ++op) {
      for (size_t count : {0, 1, 2, 7, 31, 33, 255, 1000}) {
        for (size_t inputs = 1; inputs <= 17; ++inputs) {
          Case c(dtype, static_cast<Op>(op), count, inputs, random);
          expect_reference(GetParam(), c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ReduceTest, ManyInputsAndOutputs) {
  Random random(2);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
    Case c(dtype, Op::kSum, 517, 70, random);
    while (c.outputs.size() < 70) {
      c.buffers.emplace_back(517 * size_of(DType::kI64), 0);
      c.outputs.push_back(c.buffers.back().data());
    }
    c.reduction.outputs = c.outputs;
    c.reduction.stream = true;
    expect_reference(GetParam(), c);
  }
}

// A f16 or bf16 that goes through alone comes out unchanged, whatever its bits, unless it is NaN.
TEST_P(ReduceTest, EveryHalfSurvivesTheRoundTrip) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Format format = dtype == DType::kF16 ? kHalf : kBrain;
    Buffer in(65536 * 2, 0);
    Buffer out(65536 * 2, 0);
    uint16_t next = 0;
    fill_with<uint16_t>(in, [&] { return next++; });
    const ReduceInput input = {in.data(), false};
    std::byte* output = out.data();
    reduce_with(GetParam(), {.dtype = dtype,
                             .op = Op::kSum,
                             .count = 65536,
                             .inputs = {&input, 1},
                             .outputs = {&output, 1}});
    for (size_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const bool nan = std::isnan(decode(bits, format));
      const auto expected = nan ? encode(std::nanf(""), format) : bits;
      ASSERT_EQ(read<uint16_t>(out.data(), i), expected) << to_string(dtype) << " " << i;
    }
  }
}

// Floats from the whole range, among them every tie between two halves, are rounded to the nearest.
TEST_P(ReduceTest, FloatsRoundToTheNearestHalf) {
  std::vector<float> floats;
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += 16381) {
    const auto word = static_cast<uint32_t>(bits);
    floats.push_back(read<float>(reinterpret_cast<const std::byte*>(&word), 0));
  }
  for (uint32_t i = 0; i < 0x7c00; ++i) {
    const float low = decode(static_cast<uint16_t>(i), kHalf);
    const float tie = (low + decode(static_cast<uint16_t>(std::min(i + 1, 0x7bffu)), kHalf)) / 2;
    for (float value : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, INFINITY)}) {
      floats.push_back(value);
      floats.push_back(-value);
    }
  }
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Format format = dtype == DType::kF16 ? kHalf : kBrain;
    const ReduceInput input = {reinterpret_cast<const std::byte*>(floats.data()), true};
    Buffer out(floats.size() * 2, 0);
    std::byte* output = out.data();
    reduce_with(GetParam(), {.dtype = dtype,
                             .op = Op::kMax,
                             .count = floats.size(),
                             .inputs = {&input, 1},
                             .outputs = {&output, 1}});
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(read<uint16_t>(out.data(), i), encode(floats[i], format)) << floats[i];
    }
  }
}

TEST_P(ReduceTest, CuttingTheRangeDoesNotChangeTheBits) {
  Random random(3);
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (int round = 0; round < 20; ++round) {
      Case c(dtype, Op::kMean, 1000, 5, random);
      const size_t width = size_of(c.reduction.output_partial ? accumulator_of(dtype) : dtype);
      const std::vector<std::byte> expected = reference(c.reduction);
      for (size_t at = 0; at < 1000;) {
        Reduction piece = c.reduction;
        piece.count = std::min(1000 - at, 1 + below(random, 400));
        std::vector<ReduceInput> inputs;
        for (const ReduceInput& input : c.inputs) {
          const DType stored = input.partial ? accumulator_of(dtype) : dtype;
          inputs.push_back({input.data + at * size_of(stored), input.partial});
        }
        std::vector<std::byte*> outputs;
        for (std::byte* output : c.outputs) outputs.push_back(output + at * width);
        piece.inputs = inputs;
        piece.outputs = outputs;
        reduce_with(GetParam(), piece);
        at += piece.count;
      }
      for (std::byte* output : c.outputs) {
        ASSERT_EQ(std::memcmp(output, expected.data(), expected.size()), 0);
      }
    }
  }
}

float reduce_two(Isa isa, Op op, float a, float b) {
  const ReduceInput inputs[] = {{reinterpret_cast<std::byte*>(&a), false},
                                {reinterpret_cast<std::byte*>(&b), false}};
  float result = 0;
  std::byte* output = reinterpret_cast<std::byte*>(&result);
  reduce_with(isa, {.dtype = DType::kF32,
                    .op = op,
                    .count = 1,
                    .inputs = inputs,
                    .outputs = {&output, 1},
                    .mean_over = 2});
  return result;
}

TEST_P(ReduceTest, NanPropagatesInOneForm) {
  const float nan = -std::nanf("0x1234");
  for (int op = 0; op < kOps; ++op) {
    for (float result : {reduce_two(GetParam(), static_cast<Op>(op), nan, 1),
                         reduce_two(GetParam(), static_cast<Op>(op), 1, nan)}) {
      EXPECT_EQ(read<uint32_t>(reinterpret_cast<std::byte*>(&result), 0), 0x7fc00000u)
          << to_string(static_cast<Op>(op));
    }
  }
  EXPECT_TRUE(std::isnan(reduce_two(GetParam(), Op::kSum, INFINITY, -INFINITY)));
}

TEST_P(ReduceTest, AmongEqualZerosTheEarlierInputWins) {
  for (Op op : {Op::kMin, Op::kMax}) {
    EXPECT_TRUE(std::signbit(reduce_two(GetParam(), op, -0.0f, 0.0f)));
    EXPECT_FALSE(std::signbit(reduce_two(GetParam(), op, 0.0f, -0.0f)));
  }
}

#if defined(__x86_64__)
TEST_P(ReduceTest, TheCallersFloatingPointModeDoesNotMatterAndIsKept) {
  const unsigned saved = _mm_getcsr();
  const unsigned mode = 0x1f80 | 0x8040 | _MM_ROUND_UP;  // flush results and operands, round up
  _mm_setcsr(mode);
  const float denormal = reduce_two(GetParam(), Op::kSum, 0x1p-140f, 0x1p-141f);
  const float rounded = reduce_two(GetParam(), Op::kSum, 1.0f, 0x1p-30f);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(denormal, 0x1.8p-140f);
  EXPECT_EQ(rounded, 1.0f);
  EXPECT_EQ(after & ~0x3fu, mode);
}
#endif

INSTANTIATE_TEST_SUITE_P(EveryIsa, ReduceTest, testing::ValuesIn(isas()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// Large enough that reduce() does stream, with outputs that share no alignment.
TEST(ReduceDispatchTest, ChoosesAKernelAndStreamsLargeOutputs) {
  Random random(4);
  for (DType dtype : reducible()) {
    for (size_t count : {100, 40000}) {
      Case c(dtype, Op::kSum, count, 3, random);
      c.reduction.stream = true;
      const std::vector<std::byte> expected = reference(c.reduction);
      reduce(c.reduction);
      for (std::byte* output : c.outputs) {
        ASSERT_EQ(std::memcmp(output, expected.data(), expected.size()), 0) << to_string(dtype);
      }
    }
  }
}

TEST(ReduceDispatchTest, TheBestInstructionSetIsSupported) {
  EXPECT_TRUE(supported(Isa::kBaseline));
  EXPECT_TRUE(supported(best_isa()));
}

TEST(ReduceDeathTest, MisuseAborts) {
  float value = 1;
  const ReduceInput input = {reinterpret_cast<std::byte*>(&value), false};
  std::byte* output = reinterpret_cast<std::byte*>(&value);
  Reduction reduction = {.count = 1, .inputs = {&input, 1}, .outputs = {&output, 1}};
  reduce(reduction);
  EXPECT_EQ(value, 1);
  Reduction boolean = reduction;
  boolean.dtype = DType::kBool;
  EXPECT_DEATH(reduce(boolean), "not reducible");
  Reduction eighth = reduction;
  eighth.dtype = DType::kF8E4M3;
  EXPECT_DEATH(reduce(eighth), "not reducible");
  Reduction mean = reduction;
  mean.op = Op::kMean;
  EXPECT_DEATH(reduce(mean), "number of members");
  Reduction empty = reduction;
  empty.inputs = {};
  EXPECT_DEATH(reduce(empty), "nothing to reduce");
}

TEST(CopyBytesTest, CopiesAnySizeAndAlignment) {
  Random random(5);
  for (size_t size : {0, 1, 63, 64, 1000, 16384, 70000, 9 << 20}) {
    for (size_t round = 0; round < 6; ++round) {
      const Buffer from(size, below(random, 64));
      const Buffer to(size, round == 0 ? 0 : below(random, 64));
      fill(from, DType::kU8, random);
      copy_bytes(to.data(), from.data(), size, round % 2 == 0);
      ASSERT_EQ(std::memcmp(to.data(), from.data(), size), 0) << size;
      ASSERT_TRUE(to.intact());
      if (size > 1 << 20 && round == 1) break;  // one of each is enough for the large one
    }
  }
}

TEST(CopyBytesTest, EveryInstructionSetStreamsTheSameBytes) {
  const std::vector<const Kernels*> sets = {
    &kBaselineKernels,
#if defined(__x86_64__)
    supported(Isa::kAvx2) ? &kAvx2Kernels : &kBaselineKernels,
    supported(Isa::kAvx512) ? &kAvx512Kernels : &kBaselineKernels,
#endif
  };
  Random random(6);
  for (const Kernels* set : sets) {
    for (size_t size : {0, 5, 64, 255, 257, 5000}) {
      const Buffer from(size, below(random, 64));
      const Buffer to(size, below(random, 64));
      fill(from, DType::kU8, random);
      set->copy_stream(to.data(), from.data(), size);
      ASSERT_EQ(std::memcmp(to.data(), from.data(), size), 0) << size;
      ASSERT_TRUE(to.intact());
    }
  }
}

}  // namespace
}  // namespace pliant
