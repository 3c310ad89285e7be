// The reader of the coordinator's log: whatever the file, it returns; the intact part that it
// reports is exactly what its records are written as.
#include <algorithm>
#include <cstdint>
#include <span>

#include "pliant/runtime/journal.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto contents = pliant::decode_journal(bytes);
  if (!contents.ok()) {
    PLIANT_CHECK(!contents.error().message.empty(), "a refusal says why");
    return 0;
  }
  PLIANT_CHECK(contents->intact_bytes <= size, "what is intact is there");
  PLIANT_CHECK(contents->warning.empty() == (contents->intact_bytes == size),
               "what is left out is told");
  if (contents->intact_bytes == 0) return 0;
  const auto again = pliant::encode_journal(contents->records);
  PLIANT_CHECK(std::ranges::equal(again, bytes.first(contents->intact_bytes)),
               "a journal has one encoding");
  return 0;
}
