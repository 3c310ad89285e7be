// The measuring protocol that all contenders share: a float32-sum all-reduce, timed in batches.
//
// A driver is one process of a contender's group. It implements Contender over its library and
// calls measure(); everything that decides a figure (how many calls a batch has, what is timed,
// what is checked) stands here, once, so that no contender is timed differently from another. Rank
// 0 prints one JSON line a batch, with the distance of the cores before and after it.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core_distance.h"

namespace peers {

struct Options {
  std::string name = "unnamed";        // the contender's name in the output
  std::vector<size_t> sizes = {1024};  // in bytes, each a multiple of four
  int batches = 3;
  double batch_seconds = 0.06;
  int calls_min = 3;     // of a batch, however long they take
  bool startup = false;  // only one collective, and the moment it was done
  bool touch = false;    // each rank writes its input before each call, and reads the result after
};

class Contender {
 public:
  virtual ~Contender() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Makes the buffers for tensors of `count` elements, in place of those of the previous size.
  virtual void prepare(size_t count) = 0;
  virtual float* input() = 0;
  virtual const float* result() const = 0;  // the input's own memory, if reduced in place
  virtual void all_reduce() = 0;            // of the prepared tensor
  virtual void barrier() = 0;
  virtual float sum(float value) = 0;  // of every rank's value; how rank 0 tells a number to all
};

[[noreturn]] inline void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

inline int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline double monotonic_seconds() { return static_cast<double>(monotonic_ns()) * 1e-9; }

// CPU seconds that the hypervisor has withheld from this machine so far, over all its cores; the
// kernel counts them in ticks of 10 ms.
inline double stolen_seconds() {
  long long field[8] = {};
  FILE* file = std::fopen("/proc/stat", "r");
  if (file == nullptr) return 0;
  const int read =
      std::fscanf(file, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &field[0], &field[1],
                  &field[2], &field[3], &field[4], &field[5], &field[6], &field[7]);
  std::fclose(file);
  return read == 8 ? static_cast<double>(field[7]) / static_cast<double>(sysconf(_SC_CLK_TCK)) : 0;
}

// One write for a line, so that the lines of several ranks do not mix.
inline void print_line(std::string line) {
  line += '\n';
  if (::write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    fail("cannot write to stdout");
}

inline std::vector<size_t> parse_sizes(std::string_view text) {
  std::vector<size_t> sizes;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string item(text.substr(0, comma));
    const size_t bytes = std::strtoull(item.c_str(), nullptr, 10);
    if (bytes == 0 || bytes % sizeof(float) != 0)
      fail("--sizes: '" + item + "' is not a positive multiple of 4");
    sizes.push_back(bytes);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return sizes;
}

// The value of `--key VALUE`, or `otherwise`.
inline std::string argument(int argc, char** argv, const char* key, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], key) == 0) return argv[i + 1];
  return otherwise;
}

inline Options parse_options(int argc, char** argv) {
  Options options;
  options.name = argument(argc, argv, "--name", "unnamed");
  options.sizes = parse_sizes(argument(argc, argv, "--sizes", "1024"));
  options.batches = std::atoi(argument(argc, argv, "--batches", "3").c_str());
  options.batch_seconds = std::atof(argument(argc, argv, "--batch-ms", "60").c_str()) * 1e-3;
  options.calls_min = std::atoi(argument(argc, argv, "--calls-min", "3").c_str());
  options.startup = argument(argc, argv, "--startup", "no") == "yes";
  options.touch = argument(argc, argv, "--touch", "no") == "yes";
  return options;
}

// As a training step does, which computes gradients and then uses their sum: whatever a library
// left in the caches of one core has to come to another.
inline void all_reduce_touched(Contender& contender, size_t count) {
  std::fill_n(contender.input(), count, 0.0F);
  contender.all_reduce();
  const float* result = contender.result();
  uint32_t seen = 0;
  for (size_t i = 0; i < count; i += 16) seen |= std::bit_cast<uint32_t>(result[i]);
  if (seen != 0) fail("the sum of zeros is not zero");
}

inline double time_calls(Contender& contender, const Options& options, size_t count,
                         int64_t calls) {
  contender.barrier();
  const double start = monotonic_seconds();
  for (int64_t i = 0; i < calls; ++i) {
    if (options.touch) {
      all_reduce_touched(contender, count);
    } else {
      contender.all_reduce();
    }
  }
  return monotonic_seconds() - start;
}

// How many calls fill a batch. Rank 0 decides from its own clock and all ranks get its answer: a
// negative number is the answer, a positive one asks for another trial with that many calls.
inline int64_t calibrate(Contender& contender, const Options& options, size_t count) {
  constexpr double kCallsMax = 1e6;  // exact as a float
  contender.all_reduce();            // connections, page faults, first-use choices
  for (int64_t calls = 1;;) {
    const double seconds = time_calls(contender, options, count, calls);
    double answer = 0;
    if (contender.rank() == 0) {
      const double per_call = seconds / static_cast<double>(calls);
      const double wanted = std::floor(options.batch_seconds / std::max(per_call, 1e-9));
      const bool enough = seconds >= options.batch_seconds / 8 || calls >= 100'000;
      answer = enough ? -std::clamp(wanted, double(options.calls_min), kCallsMax)
                      : std::clamp(wanted / 4, 2.0 * double(calls), 16.0 * double(calls));
    }
    const double told = contender.sum(static_cast<float>(std::round(answer)));
    calls = static_cast<int64_t>(std::abs(told));
    if (told < 0) return calls;
  }
}

// Small integers, so that the sum is exact in any order.
inline float pattern(int rank, size_t index) {
  return static_cast<float>(rank + 1) + static_cast<float>(index % 7);
}

inline bool verify(Contender& contender, size_t count) {
  float* input = contender.input();
  for (size_t i = 0; i < count; ++i) input[i] = pattern(contender.rank(), i);
  contender.all_reduce();
  const float* result = contender.result();
  const int size = contender.size();
  for (size_t i = 0; i < count; ++i) {
    const float expected = static_cast<float>(size * (size + 1) / 2) +
                           static_cast<float>(size) * static_cast<float>(i % 7);
    if (result[i] == expected) continue;
    std::fprintf(stderr, "rank %d: element %zu of %zu is %g instead of %g\n", contender.rank(), i,
                 count, double(result[i]), double(expected));
    return false;
  }
  return true;
}

// What the machine did while a batch ran: asked before it and after it.
class Surroundings {
 public:
  Surroundings() : distance_ns_(core_distance_ns()), stolen_(stolen_seconds()) {}
  // The end of a line of JSON.
  std::string since() const {
    const double stolen = stolen_seconds() - stolen_;
    char text[96];
    std::snprintf(text, sizeof(text), "\"stolen\":%.2f,\"core_ns\":[%.1f,%.1f]}", stolen,
                  distance_ns_, core_distance_ns());
    return text;
  }

 private:
  double distance_ns_;
  double stolen_;
};

inline void print_batch(const Options& options, const Contender& contender, size_t bytes,
                        int64_t calls, double seconds, const Surroundings& surroundings) {
  char line[256];
  std::snprintf(line, sizeof(line),
                "{\"contender\":\"%s\",\"np\":%d,\"bytes\":%zu,\"calls\":%lld,\"seconds\":%.9f,",
                options.name.c_str(), contender.size(), bytes, static_cast<long long>(calls),
                seconds);
  print_line(line + surroundings.since());
}

// The other ranks keep still while rank 0 looks around: a library that waits may wait spinning.
inline void keep_still() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

inline void time_batch(Contender& contender, const Options& options, size_t bytes, int64_t calls) {
  const size_t count = bytes / sizeof(float);
  if (contender.rank() != 0) {
    keep_still();
    time_calls(contender, options, count, calls);
    return keep_still();
  }
  const Surroundings surroundings;
  const double seconds = time_calls(contender, options, count, calls);
  print_batch(options, contender, bytes, calls, seconds, surroundings);
}

inline bool measure_size(Contender& contender, const Options& options, size_t bytes) {
  const size_t count = bytes / sizeof(float);
  contender.prepare(count);
  // Zeros stay zeros however often they are summed in place; writing them touches every page.
  std::fill_n(contender.input(), count, 0.0F);
  const int64_t calls = calibrate(contender, options, count);
  for (int batch = 0; batch < options.batches; ++batch)
    time_batch(contender, options, bytes, calls);
  // No rank may write its next input while another still reduces.
  contender.barrier();
  const bool correct = verify(contender, count);
  contender.barrier();
  return correct;
}

inline bool first_collective(Contender& contender, const Options& options) {
  const bool correct = contender.sum(1.0F) == static_cast<float>(contender.size());
  char line[128];
  std::snprintf(line, sizeof(line), "{\"contender\":\"%s\",\"rank\":%d,\"done_ns\":%lld}",
                options.name.c_str(), contender.rank(), static_cast<long long>(monotonic_ns()));
  print_line(line);
  return correct;
}

// Returns the process's exit code: non-zero if any result on this rank was wrong.
inline int measure(Contender& contender, const Options& options) {
  if (options.startup) return first_collective(contender, options) ? 0 : 1;
  bool correct = true;
  for (const size_t bytes : options.sizes)
    correct = measure_size(contender, options, bytes) && correct;
  return correct ? 0 : 1;
}

// Memory as a program gets it, with no word to any communication library.
class PlainMemory {
 public:
  PlainMemory() = default;
  ~PlainMemory() { std::free(data_); }
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

  float* resize(size_t count) {
    constexpr size_t kPage = 4096;
    std::free(data_);
    const size_t bytes = (count * sizeof(float) + kPage - 1) / kPage * kPage;
    data_ = static_cast<float*>(std::aligned_alloc(kPage, bytes));
    if (data_ == nullptr) fail("out of memory");
    return data_;
  }
  float* data() const { return data_; }

 private:
  float* data_ = nullptr;
};

}  // namespace peers
