// SlotWrites: whether bytes for a peer are written through the cache or around it.
//
// Slots in shared memory are written by one core and read by another, over and over. Where the two
// share a cache, ordinary writes are best: the reader finds the bytes there. Where they do not
// (several sockets or cache complexes; a virtual machine whose cores were moved apart), a write to
// a line that the peer has read waits for that peer's cache, and writing around the cache is
// several times as fast. A system may change this under a running program, so both are timed as
// they happen, and the one that costs less goes on.
//
// Any thread; threads that write at the same time may only cost each other a sample.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pliant/base/time.h"

namespace pliant {

class SlotWrites {
 public:
  // Lanes below this are written as they come: a choice costs more than it can save.
  static constexpr size_t kBytesMin = size_t{16} << 10;

  // How the next lane of a call of `call_bytes` is to be written. Calls of about one size are
  // compared with each other, since the caches hold the inputs of small ones.
  bool stream_next(size_t call_bytes);
  // The choice that holds, without taking part in the comparison.
  bool streams(size_t call_bytes) const;
  // A lane of such a call was written so.
  void took(size_t call_bytes, bool streamed, size_t lane_bytes, Duration time);

 private:
  static constexpr size_t kSamples = 3;  // the median counts: a lane may be interrupted
  struct Samples {
    std::array<std::atomic<float>, kSamples> cost{};  // nanoseconds a byte; 0: none
    std::atomic<uint32_t> next = 0;
    float median() const;
  };
  struct Ways {
    Samples cached, streamed;
    std::atomic<uint32_t> lanes = 0;
  };
  Ways& ways_of(size_t call_bytes);
  const Ways& ways_of(size_t call_bytes) const;

  std::array<Ways, 8 * sizeof(size_t) + 1> ways_;  // by the width of the size in bits
};

}  // namespace pliant
