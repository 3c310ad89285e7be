// Time as values: decisions take an Instant, only loops and edges read the clock.
#pragma once

#include <chrono>
#include <string>

#include "pliant/base/result.h"

namespace pliant {

using Duration = std::chrono::nanoseconds;
using Instant = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline Instant now() { return std::chrono::steady_clock::now(); }

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
inline Duration from_seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

// "1.5 us", "3.10 ms", "2.00 s"
std::string human_duration(Duration duration);

// Reads "500ms", "2s", "1.5" (seconds), "3m".
Result<Duration> parse_duration(const std::string& text);

}  // namespace pliant
