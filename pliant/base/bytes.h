// Byte counts for people, a stable hash, and a bounded reader and writer for small messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "pliant/base/result.h"

namespace pliant {

using Bytes = std::span<const std::byte>;

// "1 KiB", "16 MiB", "100 B"
std::string human_bytes(uint64_t bytes);

// Reads "1K", "64KiB", "100M", "1234".
Result<uint64_t> parse_bytes(const std::string& text);

// Stable across processes, hosts and builds (the same on every little-endian machine).
uint64_t hash64(Bytes bytes, uint64_t seed = 0);
uint64_t hash64(std::string_view text, uint64_t seed = 0);

// True if equal; takes the same time wherever they differ.
bool equal_in_constant_time(std::string_view left, std::string_view right);

// Appends plain values, little-endian; strings carry a 32-bit length.
class Writer {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { append(&value, sizeof(T)); }
  void put_string(std::string_view text);
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  void append(const void* from, size_t size_bytes);

  std::vector<std::byte> bytes_;
};

// Reads what a Writer wrote. Never reads past the end and never allocates more than is there: the
// first short or oversized field makes ok() false and every later read returns an empty value.
class Reader {
 public:
  explicit Reader(Bytes bytes) : rest_(bytes) {}
  template <typename T>
  requires std::is_trivially_copyable_v<T> T take() {
    T value{};
    if (rest_.size() < sizeof(T)) {
      fail();
    } else {
      std::memcpy(&value, rest_.data(), sizeof(T));
      rest_ = rest_.subspan(sizeof(T));
    }
    return value;
  }
  std::string take_string(size_t size_bytes_max);
  bool ok() const { return ok_; }
  bool finished() const { return ok_ && rest_.empty(); }
  size_t left() const { return rest_.size(); }

 private:
  void fail() {
    ok_ = false;
    rest_ = {};
  }
  Bytes rest_;
  bool ok_ = true;
};

}  // namespace pliant
