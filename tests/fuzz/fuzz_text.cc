// What users write as sizes and durations: whatever the text, an answer within its limits.
#include <cstdint>
#include <string>

#include "pliant/base/bytes.h"
#include "pliant/base/time.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = pliant::parse_bytes(text)) {
    PLIANT_CHECK(*bytes <= 1'000'000'000'000'000'000, "a size has a limit");
    PLIANT_CHECK(!pliant::human_bytes(*bytes).empty());
  }
  if (const auto duration = pliant::parse_duration(text)) {
    PLIANT_CHECK(*duration >= pliant::Duration::zero(), "no duration is negative");
    PLIANT_CHECK(!pliant::human_duration(*duration).empty());
  }
  return 0;
}
