// The hosts and slots of an elastic job: where the next worker may start, and how long a place that
// fails is left alone. Decisions only: time goes in. A value; one thread at a time.
//
// A slot holds one worker at a time, each with a higher incarnation than the one before. After a
// failure a slot rests, each time twice as long. A host on which workers fail repeatedly is set
// aside while others are there to take its place, and may return.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"

namespace pliant {

struct PlaceHost {
  std::string name;
  uint16_t slots = 1;
  bool operator==(const PlaceHost&) const = default;
};

struct PlacesOptions {
  Duration rest_first = std::chrono::milliseconds(500);  // of a slot after a failure
  Duration rest_max = std::chrono::seconds(30);
  uint32_t failures_max = 3;  // of a host within failure_window before it is set aside
  Duration failure_window = std::chrono::seconds(60);
  Duration aside_first = std::chrono::seconds(60);
  Duration aside_max = std::chrono::minutes(10);
};

class Places final {
 public:
  Places(PlacesOptions options, std::vector<PlaceHost> hosts);

  // The agent of a host is there, or is gone with all that ran on it.
  void open(uint32_t host);
  void close(uint32_t host);
  // Nothing is started on it any more.
  void drain(uint32_t host) { hosts_.at(host).drained = true; }
  // Nothing is started on it while it is about to be taken away. True if that is news.
  bool set_noticed(uint32_t host, bool noticed);

  // Occupies the first free slot that may be used now, a rested one if there is a choice.
  std::optional<PeerId> take(Instant now);
  // Whoever was there has ended.
  void release(PeerId peer);
  // Counts a failure; `proven` forgives the slot its earlier ones. Returns how long it rests.
  Duration fail(PeerId peer, Instant now, bool proven);
  // True if `host` has just failed too often. It is set aside if another host is usable; the time
  // for which is returned, zero if there is no other.
  std::optional<Duration> set_aside(uint32_t host, Instant now);

  // True if take() may succeed, now or later, without anything else happening.
  bool hopeful() const;
  // When a free slot may be used that may not be used now.
  std::optional<Instant> next_due(Instant now) const;
  // Slots of all hosts that are not drained, not about to be taken away and not gone.
  uint32_t slot_count() const;
  bool occupied(PeerId peer) const;
  // The incarnation that the slot has or had last; nothing if there is no such slot.
  std::optional<uint16_t> incarnation(uint32_t host, uint16_t slot) const;
  std::optional<uint32_t> find_host(const std::string& name) const;
  const std::string& host_name(uint32_t host) const { return hosts_.at(host).name; }
  bool known(uint32_t host) const { return host < hosts_.size(); }
  // True if slot_count() counts its slots.
  bool offered(uint32_t host) const { return offered(hosts_.at(host)); }
  size_t host_count() const { return hosts_.size(); }

  // Incarnations and drained hosts; rests and failures are forgotten, and every host is closed.
  void save(Writer& writer) const;
  bool load(Reader& reader);
  // A worker that was running when save() was called.
  void occupy(PeerId peer);

 private:
  struct Slot {
    uint16_t incarnation = 0;
    bool occupied = false;
    uint32_t failures = 0;  // in a row
    Instant rests_until{};
  };
  struct Host {
    std::string name;
    std::vector<Slot> slots;
    enum class State { kExpected, kOpen, kGone } state = State::kExpected;
    bool drained = false;
    bool noticed = false;  // not saved: its agent tells it again
    std::deque<Instant> failures;
    Instant last_failure{};
    Instant aside_until{};
    Duration aside_next{};
  };
  static bool offered(const Host& host);
  static bool usable(const Host& host, Instant now);
  Slot& slot_of(PeerId peer) { return hosts_.at(peer.host).slots.at(peer.slot); }

  PlacesOptions options_;
  std::vector<Host> hosts_;
};

}  // namespace pliant
