// How the members of a host meet in shared memory: the layout of a segment's control area.
//
// Each process has channels of its own; a channel belongs to one operation name at a time. A rank
// posts a call by writing its Post into its own channel and then the call's sequence number; its
// peers find the channel by key. The words below the posts are used in the channel of the group's
// first member on the host only (the leader's); all ranks of the host work on them.
//
// Two posts alternate by the parity of the sequence. A rank overwrites the post of call k with that
// of call k+2, which it makes only after call k+1 has completed, for which every member has posted
// call k+1 and so has finished with call k. No rank ever waits for another to read its post.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pliant/base/check.h"

namespace pliant {

inline constexpr uint64_t kNotRegistered = UINT64_MAX;

struct Post {
  uint64_t key = 0;
  uint64_t count = 0;
  uint64_t input = kNotRegistered;  // offset in the poster's segment
  uint64_t output = kNotRegistered;
  uint64_t staging = kNotRegistered;  // kStageSlots slots of a lane each, for unregistered memory
  uint64_t result = kNotRegistered;   // the leader's: where a shared result goes
  uint64_t result_owner = 0;          // packed: in whose segment that is; 0: in the leader's own
  uint64_t first_lane = 0;            // the leader's: lanes staged on this channel before
  uint32_t shape = 0;
  int32_t root = 0;
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t shared_result = 0;

  bool operator==(const Post&) const = default;
};

// The life of a stage slot while lane after lane passes through it. All words only grow: lane
// number u (counted over all calls) is the slot's use v = u / kStageSlots, and each use adds the
// same amount to each word, so nothing is ever reset.
struct alignas(64) StageSlot {
  std::atomic<uint64_t> arrived;    // + n a use; who arrives last reduces (if anyone may)
  std::atomic<uint64_t> deposited;  // + n-1: the contributions are in the contributors' slots
  std::atomic<uint64_t> reduced;    // (v+1) << 16 | reducer: the result is in the reducer's slot
  std::atomic<uint64_t> collected;  // + n-1: everybody has taken the result; the slot is free
};

inline constexpr size_t kStageSlots = 16;

// The lanes of one worker, or of several where there are more; see HostCall::claim_lanes.
struct alignas(64) Claims {
  std::atomic<uint64_t> taken;  // (sequence + 1) << 32 | how many of them
};

inline constexpr size_t kClaimsMax = 16;

struct Channel {
  // The word that peers poll has a cache line to itself: they would otherwise take the line away
  // while the post is being written. The post of a repeated call stays as it is, in their caches.
  struct Entry {
    alignas(64) std::atomic<uint64_t> posted;  // sequence + 1; 0: nothing, or withdrawn
    alignas(64) Post post;
  };
  Entry entries[2];
  alignas(64) std::atomic<uint64_t> finished;  // calls that this rank has completed
  Claims claims[kClaimsMax];
  alignas(64) std::atomic<uint64_t> done;  // (sequence + 1) << 32 | parts done
  StageSlot slots[kStageSlots];
};

// Small inputs travel inside the channel.
inline constexpr size_t kInlineBytes = size_t{8} << 10;
inline constexpr size_t kChannelWays = 16;
inline constexpr size_t kChannelSets = 64;
inline constexpr size_t kChannels = kChannelWays * kChannelSets;

// The control area of one segment. Zeroed memory is a valid, empty one.
struct ControlArea {
  // The view in which this process makes its calls: it has left those of all older ones.
  std::atomic<uint32_t> epoch;
  std::atomic<uint64_t> keys[kChannels];  // 0: free
  Channel channels[kChannels];
  alignas(4096) std::byte inline_data[kChannels][2][kInlineBytes];

  static ControlArea& of(std::span<std::byte> control) {
    PLIANT_CHECK(control.size() >= sizeof(ControlArea));
    return *reinterpret_cast<ControlArea*>(control.data());
  }
  static size_t first_way(uint64_t key) { return key % kChannelSets * kChannelWays; }
  // The channel of a key, or -1.
  int find(uint64_t key) const {
    for (size_t i = first_way(key); i < first_way(key) + kChannelWays; ++i)
      if (keys[i].load(std::memory_order_acquire) == key) return static_cast<int>(i);
    return -1;
  }
};

}  // namespace pliant
