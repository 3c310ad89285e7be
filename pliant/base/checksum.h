// A checksum for memory that was moved: fast enough to run over everything that is moved, and
// different for any one changed, lost or exchanged word. No protection against malice. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "pliant/base/bytes.h"

namespace pliant {

uint64_t checksum64(Bytes bytes);

// The same for memory that comes in parts, which may be copied on the way, so that it is read once.
class RunningChecksum {
 public:
  enum class Store : uint8_t {
    kCached,
    kStreamed,  // around the caches, where the place allows it; end with finish() before others
                // read
  };

  void add(Bytes bytes) { add(bytes.data(), bytes.size()); }
  void add(const std::byte* from, size_t bytes) { take(nullptr, from, bytes, Store::kCached); }
  void copy(std::byte* to, const std::byte* from, size_t bytes, Store store = Store::kCached) {
    take(to, from, bytes, store);
  }
  // checksum64() of all parts, one behind the other. Nothing can be added after it.
  uint64_t finish();

  static constexpr size_t kLanes = 16;
  struct Sums {
    alignas(64) std::array<uint64_t, kLanes> sum{};
    alignas(64) std::array<uint64_t, kLanes> weighted{};
  };

 private:
  static constexpr size_t kBlock = kLanes * sizeof(uint64_t);

  void take(std::byte* to, const std::byte* from, size_t bytes, Store store);

  Sums sums_;
  std::array<std::byte, kBlock> rest_{};
  size_t rest_bytes_ = 0;
  uint64_t total_ = 0;
  bool streamed_ = false;
};

}  // namespace pliant
