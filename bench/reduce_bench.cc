// How near the reduce kernel comes to the limits of the memory it runs on.
//
// Every shape is measured beside memcpy and a streamed copy of the same size in the same run,
// because the bandwidth of a shared machine moves from minute to minute. `traffic` counts the bytes
// read and written by the program (k + m buffers, 2 for a copy); `payload` counts one buffer.
//
//   reduce_bench --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "pliant/base/check.h"
#include "pliant/collective/reduce.h"

namespace pliant {
namespace {

// Shared pages, as the buffers of a job are: no huge pages, every page touched.
class Pages final {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PLIANT_CHECK(map != MAP_FAILED, "no memory for the benchmark");
    data_ = static_cast<std::byte*>(map);
    std::memset(data_, 0, bytes);
  }
  Pages(Pages&& other) noexcept : bytes_(other.bytes_), data_(other.data_) {
    other.data_ = nullptr;
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

std::vector<Pages> pages(size_t number, size_t bytes) {
  std::vector<Pages> result;
  result.reserve(number);
  for (size_t i = 0; i < number; ++i) result.emplace_back(bytes);
  return result;
}

void report(benchmark::State& state, size_t bytes, size_t buffers) {
  const auto payload = static_cast<double>(bytes) * static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["payload"] = Counter(payload, Counter::kIsRate);
  state.counters["traffic"] = Counter(payload * static_cast<double>(buffers), Counter::kIsRate);
}

struct Shape {
  std::string name;
  DType dtype = DType::kF32;
  Op op = Op::kSum;
  size_t inputs = 2;
  size_t outputs = 1;
  bool in_place = false;
  bool stream = false;
};

void reduce_shape(benchmark::State& state, const Shape& shape) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<Pages> in = pages(shape.inputs, bytes);
  const std::vector<Pages> out = pages(shape.in_place ? 0 : shape.outputs, bytes);
  std::vector<ReduceInput> inputs;
  for (const Pages& page : in) inputs.push_back({page.data(), false});
  std::vector<std::byte*> outputs;
  for (size_t i = 0; i < shape.outputs; ++i) {
    outputs.push_back(shape.in_place ? in[i].data() : out[i].data());
  }
  const Reduction reduction = {.dtype = shape.dtype,
                               .op = shape.op,
                               .count = bytes / size_of(shape.dtype),
                               .inputs = inputs,
                               .outputs = outputs,
                               .mean_over = static_cast<int>(shape.inputs),
                               .stream = shape.stream};
  for (auto _ : state) {
    reduce(reduction);
    benchmark::ClobberMemory();
  }
  report(state, bytes, shape.inputs + shape.outputs);
}

template <typename Copy>
void copy_shape(benchmark::State& state, Copy copy) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<Pages> both = pages(2, bytes);
  for (auto _ : state) {
    copy(both[0].data(), both[1].data(), bytes);
    benchmark::ClobberMemory();
  }
  report(state, bytes, 2);
}

constexpr int64_t kSizes[] = {1 << 10, 64 << 10, 1 << 20, 100 << 20};

void sized(benchmark::internal::Benchmark* bench) {
  for (int64_t size : kSizes) bench->Arg(size);
}

void register_all() {
  sized(benchmark::RegisterBenchmark("memcpy", [](benchmark::State& state) {
    copy_shape(state,
               [](std::byte* to, const std::byte* from, size_t n) { std::memcpy(to, from, n); });
  }));
  sized(benchmark::RegisterBenchmark("copy_bytes", [](benchmark::State& state) {
    copy_shape(state, [](std::byte* to, const std::byte* from, size_t n) {
      copy_bytes(to, from, n, false);
    });
  }));
  sized(benchmark::RegisterBenchmark("copy_bytes/stream", [](benchmark::State& state) {
    copy_shape(state, [](std::byte* to, const std::byte* from, size_t n) {
      copy_bytes(to, from, n, true);
    });
  }));
  const Shape shapes[] = {
      {.name = "f32_sum/2to1"},
      {.name = "f32_sum/2to1/stream", .stream = true},
      {.name = "f32_sum/2to2", .outputs = 2},
      {.name = "f32_sum/2to2/stream", .outputs = 2, .stream = true},
      {.name = "f32_sum/2to2/in_place", .outputs = 2, .in_place = true},
      {.name = "f32_sum/8to1/stream", .inputs = 8, .stream = true},
      {.name = "f32_sum/8to8", .inputs = 8, .outputs = 8},
      {.name = "f32_sum/8to8/stream", .inputs = 8, .outputs = 8, .stream = true},
      {.name = "f32_sum/8to8/in_place", .inputs = 8, .outputs = 8, .in_place = true},
      {.name = "f32_mean/3to1/stream", .op = Op::kMean, .inputs = 3, .stream = true},
      {.name = "bf16_sum/2to1/stream", .dtype = DType::kBF16, .stream = true},
      {.name = "f16_sum/2to1/stream", .dtype = DType::kF16, .stream = true},
  };
  for (const Shape& shape : shapes) {
    sized(benchmark::RegisterBenchmark(
        shape.name.c_str(), [shape](benchmark::State& state) { reduce_shape(state, shape); }));
  }
}

}  // namespace
}  // namespace pliant

int main(int argc, char** argv) {
  pliant::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
