#include "pliant/transport/fake.h"

#include <fmt/format.h>

#include <cstring>

#include "pliant/transport/overlap.h"

namespace pliant {

// The transport of one peer.
class FakeNetwork::Port final : public Transport {
 public:
  Port(FakeNetwork& network, PeerId self, Sink& sink)
      : network_(network), self_(self), sink_(sink) {}

  ~Port() override {
    network_.ports_.erase(self_);
    if (dropped_) return;
    network_.forget_untaken(self_);
    network_.end_of(self_, {Code::kPeerLost,
                            fmt::format("peer {} closed the connection", to_string(self_)),
                            self_,
                            {}});
  }

  void add_peer(const Member& member) override { known_.insert(member.id); }

  void send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie) override {
    PLIANT_CHECK(frame.payload_bytes == payload.size(), "a frame announces its payload");
    if (dropped_ || lost_.contains(to) || losses_.contains(to)) return;
    if (!known_.contains(to)) {
      will_lose(
          to, {Code::kInvalid,
               fmt::format("peer {} cannot be reached: no address is known for it", to_string(to)),
               to,
               {}});
    } else if (network_.gone_.contains(to)) {
      will_lose(to, {Code::kPeerLost, fmt::format("peer {} is gone", to_string(to)), to, {}});
    } else {
      network_.send(self_, to, frame, payload, cookie);
      if (network_.taking_ == Taking::kOnArrival) return;
      taken_.push_back(cookie);
      tell_sent();
    }
  }

  void forget(std::span<const std::byte> memory) override { network_.copy_untaken(self_, memory); }

  bool poll() override {
    if (dropped_) return false;
    bool moved = false;
    // What is there now; what callbacks add is for the next call.
    const uint64_t end = network_.next_number_;
    if (tell_sent()) moved = true;
    while (!dropped_) {
      const auto lane = network_.next_for(self_);
      if (lane == network_.lanes_.end() || lane->second.front().number >= end) break;
      deliver(std::get<1>(lane->first), lane);
      moved = true;
    }
    return tell_losses() || moved;
  }

  bool linked(PeerId peer) const override {
    return network_.links_.contains({self_, peer}) && !lost_.contains(peer);
  }

  const char* name() const override { return "fake"; }

  void will_lose(PeerId peer, Error error) {
    if (!lost_.contains(peer)) losses_.try_emplace(peer, std::move(error));
  }
  void taken(uint64_t cookie) { taken_.push_back(cookie); }
  void be_dropped() { dropped_ = true; }

 private:
  void deliver(PeerId from, Lanes::iterator lane) {
    // Off its queue first: callbacks may send.
    const Message message = std::move(lane->second.front());
    lane->second.pop_front();
    // Empty queues would be searched for ever after.
    if (lane->second.empty()) network_.lanes_.erase(lane);
    if (lost_.contains(from)) return turn_away(from);
    const Result<std::byte*> place = sink_.place(from, message.frame);
    if (!place.ok()) return refuse(from, place.error());
    PLIANT_CHECK(*place != nullptr || message.payload.empty(), "place() gave no room");
    if (!message.payload.empty())
      std::memcpy(*place, message.payload.data(), message.payload.size());
    if (network_.taking_ == Taking::kOnArrival) {
      const auto sender = network_.ports_.find(from);
      if (sender != network_.ports_.end()) sender->second->taken(message.cookie);
    }
    sink_.arrived(from, message.frame, *place);
  }

  void refuse(PeerId from, Error error) {
    error.peer = from;
    network_.forget_all(from, self_);
    network_.forget_all(self_, from);
    losses_.insert_or_assign(from, std::move(error));
    turn_away(from);
  }

  void turn_away(PeerId from) {
    const auto sender = network_.ports_.find(from);
    if (sender == network_.ports_.end()) return;
    sender->second->will_lose(self_,
                              {Code::kPeerLost,
                               fmt::format("peer {} closed the connection", to_string(self_)),
                               self_,
                               {}});
  }

  // A send() from inside sent() leaves its own report to the outer call: no recursion.
  bool tell_sent() {
    if (telling_ || taken_.empty()) return false;
    telling_ = true;
    while (!taken_.empty()) {
      std::vector<uint64_t> cookies;
      cookies.swap(taken_);
      for (const uint64_t cookie : cookies) sink_.sent(cookie);
    }
    telling_ = false;
    return true;
  }

  // A loss comes after all that its peer still had to say.
  bool tell_losses() {
    std::vector<std::pair<PeerId, Error>> due;
    for (const auto& [peer, error] : losses_) {
      if (!dropped_ && !network_.waits(peer, self_)) due.emplace_back(peer, error);
    }
    for (const auto& [peer, error] : due) {
      losses_.erase(peer);
      lost_.insert(peer);
      network_.forget_all(self_, peer);
      sink_.lost(peer, error);
    }
    return !due.empty();
  }

  FakeNetwork& network_;
  const PeerId self_;
  Sink& sink_;
  bool dropped_ = false;
  std::set<PeerId> known_;
  std::set<PeerId> lost_;
  std::map<PeerId, Error> losses_;  // to be told by poll()
  std::vector<uint64_t> taken_;     // sent() to be called
  bool telling_ = false;
};

FakeNetwork::~FakeNetwork() { PLIANT_CHECK(ports_.empty(), "a network outlives its transports"); }

std::unique_ptr<Transport> FakeNetwork::open(PeerId self, Sink& sink) {
  PLIANT_CHECK(!gone_.contains(self), "a PeerId is used once");
  auto port = std::make_unique<Port>(*this, self, sink);
  PLIANT_CHECK(ports_.emplace(self, port.get()).second, "a peer has one transport");
  return port;
}

void FakeNetwork::send(PeerId from, PeerId to, const Frame& frame,
                       std::span<const std::byte> payload, uint64_t cookie) {
  links_.emplace(from, to);
  Message message{next_number_++, frame, payload, {}, cookie};
  if (taking_ == Taking::kInSend) {
    message.copy.assign(payload.begin(), payload.end());
    message.payload = message.copy;
  }
  lanes_[{to, from, frame.stream}].push_back(std::move(message));
}

// The oldest message that may be delivered to a peer, or any stream's oldest when reordering.
FakeNetwork::Lanes::iterator FakeNetwork::next_for(PeerId to) {
  std::vector<Lanes::iterator> candidates;
  for (auto at = lanes_.lower_bound({to, PeerId{}, 0});
       at != lanes_.end() && std::get<0>(at->first) == to; ++at) {
    if (!at->second.empty() && !held_.contains({std::get<1>(at->first), to}))
      candidates.push_back(at);
  }
  if (candidates.empty()) return lanes_.end();
  if (prng_) return candidates[(*prng_)() % candidates.size()];
  auto oldest = candidates.front();
  for (const auto at : candidates) {
    if (at->second.front().number < oldest->second.front().number) oldest = at;
  }
  return oldest;
}

void FakeNetwork::hold(PeerId from, PeerId to) { held_.emplace(from, to); }

void FakeNetwork::release(PeerId from, PeerId to) { held_.erase({from, to}); }

void FakeNetwork::drop(PeerId peer) {
  for (auto& [lane, messages] : lanes_) {
    if (std::get<1>(lane) == peer) messages.clear();
  }
  if (const auto at = ports_.find(peer); at != ports_.end()) at->second->be_dropped();
  end_of(peer, {Code::kPeerLost, fmt::format("peer {} was killed", to_string(peer)), peer, {}});
}

size_t FakeNetwork::in_flight() const {
  size_t count = 0;
  for (const auto& [lane, messages] : lanes_) count += messages.size();
  return count;
}

void FakeNetwork::copy_untaken(PeerId from, std::span<const std::byte> memory) {
  for (auto& [lane, messages] : lanes_) {
    if (std::get<1>(lane) != from) continue;
    for (Message& message : messages) {
      if (!overlap(message.payload, memory)) continue;
      message.copy.assign(message.payload.begin(), message.payload.end());
      message.payload = message.copy;
    }
  }
}

// The payloads of an ending peer's messages are its own memory, unless they were copied.
void FakeNetwork::forget_untaken(PeerId from) {
  if (taking_ == Taking::kInSend) return;
  for (auto& [lane, messages] : lanes_) {
    if (std::get<1>(lane) == from) messages.clear();
  }
}

void FakeNetwork::forget_all(PeerId from, PeerId to) {
  for (auto& [lane, messages] : lanes_) {
    if (std::get<0>(lane) == to && std::get<1>(lane) == from) messages.clear();
  }
}

void FakeNetwork::end_of(PeerId peer, const Error& error) {
  if (!gone_.insert(peer).second) return;
  for (const auto& [other, port] : ports_) {
    if (other == peer) continue;
    if (links_.contains({peer, other}) || links_.contains({other, peer}))
      port->will_lose(peer, error);
  }
  for (auto& [lane, messages] : lanes_) {
    if (std::get<0>(lane) == peer) messages.clear();
  }
}

bool FakeNetwork::waits(PeerId from, PeerId to) const {
  for (auto at = lanes_.lower_bound({to, from, 0});
       at != lanes_.end() && std::get<0>(at->first) == to && std::get<1>(at->first) == from; ++at) {
    if (!at->second.empty()) return true;
  }
  return false;
}

}  // namespace pliant
