// How far apart two cores are: the time a cache line takes from one to the other.
//
// The host of a virtual machine may move its cores to other cache complexes or sockets, and back,
// within seconds; whatever passes between processes then takes up to four times as long. A figure
// can be compared with another only if both were taken while the cores were equally far apart.
#pragma once

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

namespace peers {

// Keeps the calling thread on one core for as long as it lives.
class OnCore {
 public:
  explicit OnCore(size_t core) {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    sched_setaffinity(0, sizeof(only), &only);
  }
  ~OnCore() { sched_setaffinity(0, sizeof(before_), &before_); }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  cpu_set_t before_{};
};

// The first two cores that this process may use.
inline std::optional<std::pair<size_t, size_t>> two_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::nullopt;
  std::optional<size_t> first;
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (first) return std::pair(*first, core);
    first = core;
  }
  return std::nullopt;
}

// One way, in nanoseconds; 0 if there is only one core. Takes less than a millisecond unless
// something else runs, and is the best of many short trials, so that company does not show.
inline double core_distance_ns() {
  constexpr uint32_t kTrials = 20;
  constexpr uint32_t kRounds = 100;
  const auto cores = two_cores();
  if (!cores) return 0;
  alignas(64) static std::atomic<uint32_t> line;
  line.store(0);
  std::thread echo([second = cores->second] {
    const OnCore here(second);
    for (uint32_t i = 0; i < kTrials * kRounds; ++i) {
      while (line.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      line.store(2 * i + 2, std::memory_order_release);
    }
  });
  double best = 0;
  {
    const OnCore here(cores->first);
    for (uint32_t trial = 0; trial < kTrials; ++trial) {
      const auto start = std::chrono::steady_clock::now();
      for (uint32_t i = trial * kRounds; i < (trial + 1) * kRounds; ++i) {
        line.store(2 * i + 1, std::memory_order_release);
        while (line.load(std::memory_order_acquire) != 2 * i + 2) {
        }
      }
      const std::chrono::duration<double, std::nano> took =
          std::chrono::steady_clock::now() - start;
      const double one_way = took.count() / (2.0 * kRounds);
      best = trial == 0 ? one_way : std::min(best, one_way);
    }
  }
  echo.join();
  return best;
}

}  // namespace peers
