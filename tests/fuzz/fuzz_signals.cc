// The decoder of signals, which newcomers are given: whatever the bytes, it returns; what it
// accepts has one encoding.
#include <algorithm>
#include <cstdint>
#include <span>

#include "pliant/base/check.h"
#include "pliant/training/monitor_note.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant;
  const Bytes bytes = std::as_bytes(std::span(data, size));
  const auto signals = decode_signals(bytes);
  if (signals)
    PLIANT_CHECK(std::ranges::equal(encode(*signals), bytes), "signals have one encoding");
  return 0;
}
