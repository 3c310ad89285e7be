#include "pliant/base/time.h"

#include <fmt/format.h>

#include <cstdlib>

namespace pliant {

std::string human_duration(Duration duration) {
  const double us = seconds(duration) * 1e6;
  if (us < 1e3) return fmt::format("{:.1f} us", us);
  if (us < 1e6) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.2f} s", us / 1e6);
}

Result<Duration> parse_duration(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit(end);
  double factor = 0;
  if (unit.empty() || unit == "s") factor = 1;
  if (unit == "ms") factor = 1e-3;
  if (unit == "us") factor = 1e-6;
  if (unit == "m" || unit == "min") factor = 60;
  if (end == text.c_str() || factor == 0 || !(value >= 0) || value * factor > 1e8)
    return invalid(fmt::format("'{}' is no duration: write 500ms, 2s or 3m", text));
  return from_seconds(value * factor);
}

}  // namespace pliant
