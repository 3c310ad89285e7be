#include "pliant/transport/transport.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "pliant/base/bytes.h"

namespace pliant {

// The wire is little-endian, and so is every machine that this builds for: heads are copied as is.
static_assert(std::endian::native == std::endian::little);

Result<Frame> decode_frame(std::span<const std::byte, sizeof(Frame)> bytes) {
  Frame frame;
  std::memcpy(&frame, bytes.data(), sizeof frame);
  if (frame.magic != Frame::kMagic)
    return invalid(
        fmt::format("a message begins with {:#06x} instead of {:#06x}: the stream is "
                    "garbled",
                    frame.magic, Frame::kMagic));
  if (frame.payload_bytes > kPayloadBytesMax)
    return invalid(fmt::format("a message announces {}, more than the {} that are allowed",
                               human_bytes(frame.payload_bytes), human_bytes(kPayloadBytesMax)));
  return frame;
}

}  // namespace pliant
