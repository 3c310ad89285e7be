#include "pliant/collective/slot_writes.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

constexpr size_t kCall = size_t{1} << 20;
constexpr size_t kLane = size_t{256} << 10;
constexpr int kMany = 2000;

struct Machine {
  Duration cached, streamed;
  Duration of(bool stream) const { return stream ? streamed : cached; }
};
constexpr Machine kTogether{std::chrono::microseconds(15), std::chrono::microseconds(16)};
constexpr Machine kApart{std::chrono::microseconds(110), std::chrono::microseconds(16)};

// Writes lanes as told; how many of them around the cache.
int write(SlotWrites& writes, const Machine& machine, int lanes, size_t call_bytes = kCall) {
  int streamed = 0;
  for (int i = 0; i < lanes; ++i) {
    const bool stream = writes.stream_next(call_bytes);
    streamed += stream ? 1 : 0;
    writes.took(call_bytes, stream, kLane, machine.of(stream));
  }
  return streamed;
}

TEST(SlotWrites, CoresThatShareACacheWriteThroughIt) {
  SlotWrites writes;
  EXPECT_LT(write(writes, kTogether, kMany), kMany / 50);
  EXPECT_FALSE(writes.streams(kCall));
}

TEST(SlotWrites, CoresThatDoNotWriteAroundIt) {
  SlotWrites writes;
  EXPECT_GT(write(writes, kApart, kMany), kMany - kMany / 50);
  EXPECT_TRUE(writes.streams(kCall));
}

TEST(SlotWrites, FollowsAMachineThatChanges) {
  SlotWrites writes;
  write(writes, kTogether, kMany);
  EXPECT_GT(write(writes, kApart, kMany), kMany - kMany / 50);
  write(writes, kTogether, kMany);
  EXPECT_FALSE(writes.streams(kCall));
  EXPECT_LT(write(writes, kTogether, kMany), kMany / 50);
}

TEST(SlotWrites, AnInterruptedLaneIsNoReason) {
  SlotWrites writes;
  write(writes, kTogether, kMany);
  writes.took(kCall, false, kLane, std::chrono::milliseconds(4));
  EXPECT_FALSE(writes.streams(kCall));
}

TEST(SlotWrites, SizesAreComparedWithTheirLike) {
  SlotWrites writes;
  write(writes, kApart, kMany);
  EXPECT_FALSE(writes.streams(64 * kCall));
  EXPECT_LT(write(writes, kTogether, kMany, 64 * kCall), kMany / 50);
  EXPECT_TRUE(writes.streams(kCall));
}

}  // namespace
}  // namespace pliant
