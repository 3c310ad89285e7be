// The decoder of views: whatever the bytes, it returns; what it accepts, it writes back the same.
#include <algorithm>
#include <cstdint>
#include <span>

#include "pliant/membership/view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto view = pliant::decode_view(bytes);
  if (!view) return 0;
  const auto again = pliant::encode(*view);
  PLIANT_CHECK(std::ranges::equal(again, bytes), "a view has one encoding");
  return 0;
}
