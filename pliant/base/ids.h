// The identifiers of a job. Values; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace pliant {

// A worker process, identified for life. A rank changes with the view, a PeerId never does; a
// replacement on the same slot has the next incarnation.
struct PeerId {
  uint32_t host = 0;         // the host's number in this job
  uint16_t slot = 0;         // the place on that host
  uint16_t incarnation = 0;  // counts from 1; 0 only in PeerId{}, "no peer"

  auto operator<=>(const PeerId&) const = default;
  uint64_t packed() const { return (uint64_t{host} << 32) | (uint64_t{slot} << 16) | incarnation; }
  static PeerId unpack(uint64_t packed) {
    return {static_cast<uint32_t>(packed >> 32), static_cast<uint16_t>(packed >> 16),
            static_cast<uint16_t>(packed)};
  }
};

// "0.2#1": host 0, slot 2, incarnation 1.
std::string to_string(PeerId peer);

// The number of a view; only grows. The first view of a job is 1.
enum class Epoch : uint32_t {};
constexpr uint32_t number(Epoch epoch) { return static_cast<uint32_t>(epoch); }

// A position in one view or group; meaningless without it.
using Rank = int;

}  // namespace pliant

template <>
struct std::hash<pliant::PeerId> {
  size_t operator()(const pliant::PeerId& peer) const noexcept {
    return std::hash<uint64_t>{}(peer.packed());
  }
};
