// The memory limit: how fast this machine moves bytes through a working set of an all-reduce's
// size.
//
// For each size S it takes np buffers of S bytes, like the ranks of an all-reduce, and streams
// through them with as many threads as the ranks could use (np, at most the cores). Traffic counts
// each byte read and each byte written once. The kernels differ in their mix of reads and writes:
//   read    every buffer is read                                   traffic      np S
//   copy    half of them into the other half, past the caches      traffic      np S
//   add     a += b, half of them onto the other half               traffic  3/2 np S
//   update  every buffer is read and rewritten in place            traffic    2 np S
// `update` is the mix of an all-reduce with private results; the limit is the best of all four.
// Threads run their passes without meeting in between, so that no waiting is counted.
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <thread>

#include "driver.h"

#if defined(__x86_64__)
#define PEERS_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PEERS_WIDE
#endif

namespace {

PEERS_WIDE uint64_t read_words(const uint64_t* from, size_t count) {
  uint64_t seen = 0;
  for (size_t i = 0; i < count; ++i) seen |= from[i];
  return seen;
}

PEERS_WIDE void add_floats(float* __restrict to, const float* __restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

PEERS_WIDE void update_floats(float* data, size_t count) {
  for (size_t i = 0; i < count; ++i) data[i] += 1.0F;
}

// `count` is a multiple of 16 and both are aligned to 64 bytes: each turn fills one cache line.
void copy_floats(float* __restrict to, const float* __restrict from, size_t count) {
#if defined(__x86_64__)
  for (size_t i = 0; i < count; i += 16)
    for (size_t part = 0; part < 16; part += 4)
      _mm_stream_ps(to + i + part, _mm_load_ps(from + i + part));
  _mm_sfence();
#else
  std::memcpy(to, from, count * sizeof(float));
#endif
}

// Page-aligned memory in huge pages where the kernel gives them: the limit of the memory, not of
// the address translation.
class HugeMemory {
 public:
  explicit HugeMemory(size_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) peers::fail("out of memory");
    madvise(data, bytes, MADV_HUGEPAGE);
    data_ = static_cast<float*>(data);
    std::fill_n(data_, bytes / sizeof(float), 1.0F);
  }
  ~HugeMemory() { munmap(data_, bytes_); }
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;

  float* data() const { return data_; }

 private:
  size_t bytes_;
  float* data_;
};

// One thread's part of every buffer.
struct Slice {
  float* base;    // of its part of the first buffer
  size_t stride;  // elements from one buffer to the next
  size_t count;   // elements of its part
  int buffers;

  float* of(int buffer) const { return base + static_cast<size_t>(buffer) * stride; }
};

struct Kernel {
  const char* name;
  size_t traffic;  // bytes of one pass over all slices
  std::function<void(const Slice&)> pass;
};

std::vector<Kernel> kernels(size_t bytes, int buffers) {
  const size_t total = bytes * static_cast<size_t>(buffers);
  const size_t half = bytes * static_cast<size_t>(buffers / 2);
  static std::atomic<uint64_t> sink;  // keeps the reads from being optimised away
  return {
      {"read", total,
       [](const Slice& slice) {
         for (int b = 0; b < slice.buffers; ++b)
           sink |= read_words(reinterpret_cast<const uint64_t*>(slice.of(b)), slice.count / 2);
       }},
      {"copy", 2 * half,
       [](const Slice& slice) {
         for (int b = 0; b + 1 < slice.buffers; b += 2)
           copy_floats(slice.of(b), slice.of(b + 1), slice.count);
       }},
      {"add", 3 * half,
       [](const Slice& slice) {
         for (int b = 0; b + 1 < slice.buffers; b += 2)
           add_floats(slice.of(b), slice.of(b + 1), slice.count);
       }},
      {"update", 2 * total,
       [](const Slice& slice) {
         for (int b = 0; b < slice.buffers; ++b) update_floats(slice.of(b), slice.count);
       }},
  };
}

// Seconds from the common start to the end of the slowest thread.
double time_passes(const Kernel& kernel, const std::vector<Slice>& slices, int64_t passes) {
  std::atomic<size_t> waiting{slices.size()};
  std::vector<double> start(slices.size());
  std::vector<double> end(slices.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < slices.size(); ++t) {
    threads.emplace_back([&, t] {
      waiting.fetch_sub(1);
      while (waiting.load() != 0) std::this_thread::yield();
      start[t] = peers::monotonic_seconds();
      for (int64_t i = 0; i < passes; ++i) kernel.pass(slices[t]);
      end[t] = peers::monotonic_seconds();
    });
  }
  for (auto& thread : threads) thread.join();
  return *std::max_element(end.begin(), end.end()) - *std::min_element(start.begin(), start.end());
}

void measure_size(const peers::Options& options, size_t bytes, int np) {
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const size_t threads = std::min(static_cast<size_t>(np), cores);
  HugeMemory memory(bytes * static_cast<size_t>(np));
  const size_t elements = bytes / sizeof(float);
  const size_t part = elements / threads / 16 * 16;
  if (part == 0) peers::fail("--sizes: too small to stream through");
  std::vector<Slice> slices;
  for (size_t t = 0; t < threads; ++t)
    slices.push_back({memory.data() + t * part, elements, part, np});

  for (const Kernel& kernel : kernels(bytes, np)) {
    if (kernel.traffic == 0) continue;  // a single buffer has no other half
    const double once = std::max(time_passes(kernel, slices, 2) / 2, 1e-9);
    const auto passes = std::max<int64_t>(static_cast<int64_t>(options.batch_seconds / once), 3);
    for (int batch = 0; batch < options.batches; ++batch) {
      const peers::Surroundings surroundings;
      const double seconds = time_passes(kernel, slices, passes);
      char line[256];
      std::snprintf(line, sizeof(line),
                    "{\"contender\":\"%s\",\"np\":%d,\"bytes\":%zu,\"kernel\":\"%s\","
                    "\"threads\":%zu,\"traffic\":%zu,\"calls\":%lld,\"seconds\":%.9f,",
                    options.name.c_str(), np, bytes, kernel.name, threads, kernel.traffic,
                    static_cast<long long>(passes), seconds);
      peers::print_line(line + surroundings.since());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const peers::Options options = peers::parse_options(argc, argv);
  const int np = std::atoi(peers::argument(argc, argv, "--np", "2").c_str());
  if (np < 1) peers::fail("--np: must be at least 1");
  for (const size_t bytes : options.sizes) measure_size(options, bytes, np);
  return 0;
}
