#include "pliant/base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace pliant {
namespace {

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
  return bytes;
}

TEST(Checksum, EveryFlippedBitShows) {
  auto bytes = pattern(300);
  const uint64_t before = checksum64(bytes);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] ^= std::byte{1} << (i % 8);
    EXPECT_NE(checksum64(bytes), before) << "bit " << i;
    bytes[i / 8] ^= std::byte{1} << (i % 8);
  }
  EXPECT_EQ(checksum64(bytes), before);
}

TEST(Checksum, ExchangedBlocksShow) {
  auto bytes = pattern(4096);
  const uint64_t before = checksum64(bytes);
  std::swap_ranges(bytes.begin(), bytes.begin() + 128, bytes.begin() + 1024);
  EXPECT_NE(checksum64(bytes), before);
}

TEST(Checksum, LengthCountsEvenIfAllIsZero) {
  std::set<uint64_t> seen;
  for (size_t size = 0; size < 600; ++size)
    EXPECT_TRUE(seen.insert(checksum64(std::vector<std::byte>(size))).second) << size;
}

TEST(Checksum, PartsCountLikeTheWhole) {
  const auto bytes = pattern(5000);
  for (const size_t part : {1, 3, 64, 127, 128, 129, 1000, 4096}) {
    std::vector<std::byte> copy(bytes.size() + 64);
    for (const auto store : {RunningChecksum::Store::kCached, RunningChecksum::Store::kStreamed}) {
      RunningChecksum summed;
      RunningChecksum copied;
      for (size_t at = 0; at < bytes.size(); at += part) {
        const size_t length = std::min(part, bytes.size() - at);
        summed.add(bytes.data() + at, length);
        copied.copy(copy.data() + at, bytes.data() + at, length, store);
      }
      EXPECT_EQ(summed.finish(), checksum64(bytes)) << part;
      EXPECT_EQ(copied.finish(), checksum64(bytes)) << part;
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), copy.begin())) << part;
    }
  }
}

// It is compared between members, which may have chosen different kernels.
TEST(Checksum, ValueIsFixed) { EXPECT_EQ(checksum64(pattern(1000)), 0x9751fbf36a42ba55u); }

}  // namespace
}  // namespace pliant
