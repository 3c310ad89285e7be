#include "pliant/transport/transport.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "pliant/transport/overlap.h"

namespace pliant {
namespace {

std::array<std::byte, sizeof(Frame)> encode(const Frame& frame) {
  std::array<std::byte, sizeof(Frame)> bytes;
  std::memcpy(bytes.data(), &frame, sizeof frame);
  return bytes;
}

TEST(Frame, SurvivesTheWire) {
  Frame frame;
  frame.key = 1234567890123;
  frame.root = -1;
  frame.payload_bytes = kPayloadBytesMax;
  const Result<Frame> decoded = decode_frame(encode(frame));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, frame);
}

TEST(Frame, RefusesAWrongMagicAndAHugeLength) {
  Frame frame;
  frame.magic = 0x4747;
  EXPECT_EQ(decode_frame(encode(frame)).code(), Code::kInvalid);
  frame = {};
  frame.payload_bytes = kPayloadBytesMax + 1;
  EXPECT_EQ(decode_frame(encode(frame)).code(), Code::kInvalid);
}

TEST(Overlap, IsACommonByte) {
  const std::array<std::byte, 10> memory{};
  const std::span<const std::byte> all(memory);
  EXPECT_TRUE(overlap(all, all));
  EXPECT_TRUE(overlap(all.first(5), all.subspan(4)));
  EXPECT_TRUE(overlap(all, all.subspan(3, 1)));
  EXPECT_FALSE(overlap(all.first(5), all.subspan(5)));
  EXPECT_FALSE(overlap(all.subspan(5), all.first(5)));
  EXPECT_FALSE(overlap(all, all.subspan(3, 0)));
}

}  // namespace
}  // namespace pliant
