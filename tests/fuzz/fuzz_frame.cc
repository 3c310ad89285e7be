// The decoder of message heads: whatever the bytes, it returns; what it accepts is within limits.
#include <cstdint>
#include <cstring>
#include <span>

#include "pliant/transport/transport.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.size() < sizeof(pliant::Frame)) return 0;
  const auto frame = pliant::decode_frame(bytes.first<sizeof(pliant::Frame)>());
  if (!frame) return 0;
  PLIANT_CHECK(frame->magic == pliant::Frame::kMagic);
  PLIANT_CHECK(frame->payload_bytes <= pliant::kPayloadBytesMax);
  PLIANT_CHECK(std::memcmp(&*frame, data, sizeof(pliant::Frame)) == 0, "a head has one encoding");
  return 0;
}
