#include "pliant/membership/places.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "pliant/base/check.h"

namespace pliant {
namespace {

constexpr uint16_t kIncarnationMax = std::numeric_limits<uint16_t>::max();

}  // namespace

Places::Places(PlacesOptions options, std::vector<PlaceHost> hosts) : options_(options) {
  for (PlaceHost& given : hosts) {
    Host host;
    host.name = std::move(given.name);
    host.slots.resize(given.slots);
    host.aside_next = options_.aside_first;
    hosts_.push_back(std::move(host));
  }
}

void Places::open(uint32_t host) { hosts_.at(host).state = Host::State::kOpen; }

void Places::close(uint32_t host) {
  hosts_.at(host).state = Host::State::kGone;
  for (Slot& slot : hosts_.at(host).slots) slot.occupied = false;
}

bool Places::set_noticed(uint32_t host, bool noticed) {
  return std::exchange(hosts_.at(host).noticed, noticed) != noticed;
}

bool Places::offered(const Host& host) {
  return host.state != Host::State::kGone && !host.drained && !host.noticed;
}

bool Places::usable(const Host& host, Instant now) {
  return host.state == Host::State::kOpen && offered(host) && host.aside_until <= now;
}

std::optional<PeerId> Places::take(Instant now) {
  std::optional<PeerId> best;
  bool best_failed = false;
  for (uint32_t number = 0; number < hosts_.size(); ++number) {
    const Host& host = hosts_[number];
    if (!usable(host, now)) continue;
    for (uint16_t at = 0; at < host.slots.size(); ++at) {
      const Slot& slot = host.slots[at];
      if (slot.occupied || slot.rests_until > now || slot.incarnation == kIncarnationMax) continue;
      const bool failed = slot.failures > 0;
      if (best && (failed || !best_failed)) continue;
      best = PeerId{number, at, static_cast<uint16_t>(slot.incarnation + 1)};
      best_failed = failed;
    }
  }
  if (best) occupy(*best);
  return best;
}

void Places::occupy(PeerId peer) {
  Slot& slot = slot_of(peer);
  slot.occupied = true;
  slot.incarnation = std::max(slot.incarnation, peer.incarnation);
}

void Places::release(PeerId peer) {
  Slot& slot = slot_of(peer);
  if (slot.incarnation == peer.incarnation) slot.occupied = false;
}

Duration Places::fail(PeerId peer, Instant now, bool proven) {
  Host& host = hosts_.at(peer.host);
  Slot& slot = slot_of(peer);
  slot.failures = proven ? 1 : slot.failures + 1;
  Duration rest = options_.rest_first;
  for (uint32_t i = 1; i < slot.failures && rest < options_.rest_max; ++i) rest *= 2;
  rest = std::min(rest, options_.rest_max);
  slot.rests_until = now + rest;

  // A host that did well for long is trusted again.
  if (now - host.last_failure > options_.aside_max && host.aside_until <= now)
    host.aside_next = options_.aside_first;
  // Those that were lost with their host say nothing about how workers fare on it.
  if (host.state == Host::State::kGone) return rest;
  host.last_failure = now;
  host.failures.push_back(now);
  while (now - host.failures.front() > options_.failure_window) host.failures.pop_front();
  return rest;
}

std::optional<Duration> Places::set_aside(uint32_t number, Instant now) {
  Host& host = hosts_.at(number);
  if (host.failures.size() < options_.failures_max || host.aside_until > now) return std::nullopt;
  host.failures.clear();
  const bool other = std::any_of(hosts_.begin(), hosts_.end(), [&](const Host& candidate) {
    return &candidate != &host && usable(candidate, now);
  });
  if (!other) return Duration(0);
  const Duration time = host.aside_next;
  host.aside_until = now + time;
  host.aside_next = std::min(2 * time, options_.aside_max);
  return time;
}

bool Places::hopeful() const {
  return std::any_of(hosts_.begin(), hosts_.end(), [](const Host& host) {
    return offered(host) && std::any_of(host.slots.begin(), host.slots.end(), [](const Slot& slot) {
             return !slot.occupied && slot.incarnation < kIncarnationMax;
           });
  });
}

std::optional<Instant> Places::next_due(Instant now) const {
  std::optional<Instant> earliest;
  for (const Host& host : hosts_) {
    if (host.state != Host::State::kOpen || !offered(host)) continue;
    for (const Slot& slot : host.slots) {
      if (slot.occupied) continue;
      const Instant due = std::max(slot.rests_until, host.aside_until);
      if (due > now && (!earliest || due < *earliest)) earliest = due;
    }
  }
  return earliest;
}

uint32_t Places::slot_count() const {
  size_t count = 0;
  for (const Host& host : hosts_)
    if (offered(host)) count += host.slots.size();
  return static_cast<uint32_t>(count);
}

bool Places::occupied(PeerId peer) const {
  return incarnation(peer.host, peer.slot) == peer.incarnation &&
         hosts_[peer.host].slots[peer.slot].occupied;
}

std::optional<uint16_t> Places::incarnation(uint32_t host, uint16_t slot) const {
  if (host >= hosts_.size() || slot >= hosts_[host].slots.size()) return std::nullopt;
  return hosts_[host].slots[slot].incarnation;
}

std::optional<uint32_t> Places::find_host(const std::string& name) const {
  for (uint32_t number = 0; number < hosts_.size(); ++number)
    if (hosts_[number].name == name) return number;
  return std::nullopt;
}

void Places::save(Writer& writer) const {
  writer.put(static_cast<uint32_t>(hosts_.size()));
  for (const Host& host : hosts_) {
    writer.put_string(host.name);
    writer.put(static_cast<uint8_t>(host.drained ? 1 : 0));
    writer.put(static_cast<uint16_t>(host.slots.size()));
    for (const Slot& slot : host.slots) writer.put(slot.incarnation);
  }
}

bool Places::load(Reader& reader) {
  constexpr size_t kNameBytesMax = 256;
  const auto count = reader.take<uint32_t>();
  if (count > reader.left()) return false;
  hosts_.clear();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Host host;
    host.name = reader.take_string(kNameBytesMax);
    host.drained = reader.take<uint8_t>() != 0;
    const auto slots = reader.take<uint16_t>();
    if (slots > reader.left() / sizeof(uint16_t)) return false;
    host.slots.resize(slots);
    for (Slot& slot : host.slots) slot.incarnation = reader.take<uint16_t>();
    host.aside_next = options_.aside_first;
    hosts_.push_back(std::move(host));
  }
  return reader.ok();
}

}  // namespace pliant
