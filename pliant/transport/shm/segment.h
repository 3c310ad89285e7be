// A Segment: the one piece of memory that a worker shares with the peers of its host.
//
// A memfd, so nothing is left behind however the process ends, and its pages outlive a killed owner
// as long as a peer maps them. It is sparse: what is not touched costs nothing. Parts, in order:
// a header, one ring for the messages of each sender, a control area for the collectives above, and
// a heap whose parts the owner hands out as registered buffers. Created by its owner, mapped by the
// peers from a descriptor that they receive over a Unix socket. Mapping and layout are immutable.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "pliant/base/result.h"

namespace pliant {

// Slots of a host: each has its ring in every peer's segment.
inline constexpr uint16_t kSlotsMax = 256;
inline constexpr size_t kRingBytes = size_t{256} << 10;
inline constexpr size_t kControlBytes = size_t{64} << 20;

// A stream of bytes from one sender to the segment's owner; positions only grow.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;  // by the sender
  std::atomic<uint32_t> sender_waits;         // the sender found the ring full
  alignas(64) std::atomic<uint64_t> read;     // by the owner
  alignas(64) std::byte data[kRingBytes];
};

// Which events must be announced to a sleeping owner by a byte on its Unix socket. Zero while it
// polls: then nobody makes a system call.
enum : uint32_t { kWakeForMessages = 1, kWakeForHost = 2 };

struct SegmentHeader {
  uint64_t magic = 0;
  uint64_t size_bytes = 0;
  alignas(64) std::atomic<uint32_t> asleep;  // kWakeFor... bits
};

class Segment {
 public:
  // A new one with a heap of up to `heap_bytes`; 0: as much as the machine has memory. Processes
  // with different `slot` start their buffers at different offsets in a page: buffers that are
  // reduced together would otherwise compete for the same few lines of the caches.
  static Result<std::unique_ptr<Segment>> create(size_t heap_bytes, uint16_t slot = 0);
  // Another process's; takes the descriptor over. Checks that it is one of ours and sealed in size.
  static Result<std::unique_ptr<Segment>> map(int fd);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const { return fd_; }
  SegmentHeader& header() { return *reinterpret_cast<SegmentHeader*>(base_); }
  Ring& ring(uint16_t sender_slot);
  std::span<std::byte> control();
  std::byte* at(uint64_t offset) { return base_ + offset; }
  size_t size() const { return size_; }

  // The owner's: parts of the heap, zeroed, aligned to 64 bytes. Thread-safe.
  Result<std::span<std::byte>> allocate(size_t bytes);
  void release(std::byte* memory);
  // Gives the pages back that lie in this part of an allocation, which stays; they read as zeroes.
  // No other allocation shares them: those at its ends go with its first and last byte.
  void discard(std::span<std::byte> part);
  // Has the kernel provide the pages of a part of an allocation, as far as it has any: whoever
  // touches them next does not wait for that.
  void fill(std::span<std::byte> part);
  // The owner's: puts memory of its own into the heap, with its contents, so that peers reach it
  // where it is. It starts a page and is mapped for itself: all of its last page is taken. Nobody
  // else may use it during the call, and it stays mapped until surrender(), which makes it private
  // again. Thread-safe.
  Status adopt(std::byte* memory, size_t bytes);
  Status surrender(std::byte* memory);

  // True if [data, data + bytes) lies inside the heap or was adopted; then offset_of() tells peers
  // where.
  bool contains(const void* data, size_t bytes) const;
  uint64_t offset_of(const void* data) const;

 private:
  Segment(int fd, std::byte* base, size_t size) : fd_(fd), base_(base), size_(size) {}
  static Result<std::byte*> map_bytes(int fd, size_t size);

  struct Adopted {
    size_t bytes;
    size_t offset;
    std::byte* room;  // of the heap
  };
  bool in_heap(const std::byte* data, size_t bytes) const;
  std::optional<uint64_t> adopted_offset(const std::byte* data, size_t bytes) const;

  const int fd_;
  std::byte* const base_;
  const size_t size_;
  size_t stagger_ = 0;             // where in its first page an allocation starts
  mutable std::mutex mutex_;       // guards what follows
  std::map<size_t, size_t> used_;  // offset -> bytes that were asked for
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are always merged
  std::map<const std::byte*, Adopted> adopted_;
  std::atomic<bool> any_adopted_ = false;
};

}  // namespace pliant
