#include "pliant/base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace pliant {

std::string human_bytes(uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value)) return fmt::format("{:.0f} {}", value, kUnits[unit]);
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

Result<uint64_t> parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  std::string unit;
  for (const char* at = end; *at != '\0'; ++at)
    unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*at)));
  const std::string_view letters = "KMGT";
  double factor = 1;
  if (!unit.empty() && unit != "B") {
    const size_t power = letters.find(unit[0]);
    const std::string rest = unit.substr(1);
    if (power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "IB"))
      return invalid(fmt::format("'{}' is no size: write 64K, 1M or 16MiB", text));
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (end == text.c_str() || !(value >= 0) || value * factor > 1e18)
    return invalid(fmt::format("'{}' is no size: write 64K, 1M or 16MiB", text));
  return static_cast<uint64_t>(value * factor);
}

namespace {
uint64_t mix(uint64_t value) {
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93ULL;
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93ULL;
  return value ^ (value >> 32);
}
}  // namespace

uint64_t hash64(Bytes bytes, uint64_t seed) {
  uint64_t hash = mix(seed + 0x9e3779b97f4a7c15ULL + bytes.size());
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    hash = mix(hash ^ word) + 0x9e3779b97f4a7c15ULL;
    bytes = bytes.subspan(8);
  }
  uint64_t word = 0;
  if (!bytes.empty()) std::memcpy(&word, bytes.data(), bytes.size());
  return mix(hash ^ word);
}

uint64_t hash64(std::string_view text, uint64_t seed) {
  return hash64(std::as_bytes(std::span(text.data(), text.size())), seed);
}

bool equal_in_constant_time(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < left.size(); ++i)
    difference |= static_cast<unsigned char>(left[i]) ^ static_cast<unsigned char>(right[i]);
  return difference == 0;
}

void Writer::put_string(std::string_view text) {
  put(static_cast<uint32_t>(text.size()));
  append(text.data(), text.size());
}

void Writer::append(const void* from, size_t size_bytes) {
  const auto* bytes = static_cast<const std::byte*>(from);
  bytes_.insert(bytes_.end(), bytes, bytes + size_bytes);
}

std::string Reader::take_string(size_t size_bytes_max) {
  const auto size = take<uint32_t>();
  if (!ok_ || size > size_bytes_max || size > rest_.size()) {
    fail();
    return {};
  }
  std::string text(reinterpret_cast<const char*>(rest_.data()), size);
  rest_ = rest_.subspan(size);
  return text;
}

}  // namespace pliant
