#include "pliant/sim/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pliant/transport/overlap.h"

namespace pliant::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class Network::Port final : public Transport {
 public:
  Port(Network& network, Endpoint& endpoint) : network_(network), endpoint_(endpoint) {}
  ~Port() override { network_.ports_.erase(endpoint_.id()); }

  void add_peer(const Member& member) override { known_.insert(member.id); }

  void send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie) override {
    PLIANT_CHECK(frame.payload_bytes == payload.size(), "a frame announces its payload");
    if (network_.gone_.contains(endpoint_.id()) || lost_.contains(to)) return;
    PLIANT_CHECK(known_.contains(to), "a member sends only to members that it was told of");
    network_.send(endpoint_.id(), to, frame, payload, cookie);
  }
  void forget(std::span<const std::byte> memory) override {
    network_.forget(endpoint_.id(), memory);
  }
  bool poll() override { return false; }
  bool linked(PeerId peer) const override {
    const auto at = network_.links_.find({endpoint_.id(), peer});
    return at != network_.links_.end() && at->second.used && !lost_.contains(peer);
  }
  const char* name() const override { return "simulated"; }

  Endpoint& endpoint() { return endpoint_; }
  bool has_lost(PeerId peer) const { return lost_.contains(peer); }
  void lose(PeerId peer, const Error& error) {
    if (!lost_.insert(peer).second) return;
    network_.keep_payloads(endpoint_.id(), peer);
    endpoint_.sink().lost(peer, error);
  }

 private:
  Network& network_;
  Endpoint& endpoint_;
  std::set<PeerId> known_;
  std::set<PeerId> lost_;
};

Network::~Network() { PLIANT_CHECK(ports_.empty(), "a network outlives its members"); }

std::unique_ptr<Transport> Network::open(Endpoint& endpoint) {
  auto made = std::make_unique<Port>(*this, endpoint);
  PLIANT_CHECK(ports_.emplace(endpoint.id(), made.get()).second, "a member has one transport");
  return made;
}

Network::Port* Network::port(PeerId peer) {
  const auto at = ports_.find(peer);
  return at == ports_.end() ? nullptr : at->second;
}

Network::Link& Network::link(PeerId from, PeerId to) {
  const auto [at, fresh] = links_.try_emplace({from, to});
  if (fresh)
    at->second.latency =
        world_.prng.duration(world_.scenario.latency_min, world_.scenario.latency_max);
  return at->second;
}

void Network::send(PeerId from, PeerId to, const Frame& frame, std::span<const std::byte> payload,
                   uint64_t cookie) {
  Link& out = link(from, to);
  out.used = true;
  if (out.closed) return;
  if (gone_.contains(to)) {
    // Nobody listens there any more.
    if (Port* const sender = port(from))
      close(to, from, world_.scenario.latency_max, false,
            fmt::format("peer {} cannot be reached", to_string(sender->endpoint().id())));
    return;
  }
  auto message = std::make_shared<Message>();
  message->from = from;
  message->to = to;
  message->frame = frame;
  message->payload = payload;
  message->cookie = cookie;
  if (!world_.scenario.sent_on_arrival) {
    message->copy.assign(payload.begin(), payload.end());
    message->payload = message->copy;
    // Not from inside send(), though a transport may: the other order is tested by real ones.
    if (cookie != 0)
      world_.timeline.after(Duration(0), [this, message] {
        Port* const sender = port(message->from);
        if (sender == nullptr || sender->has_lost(message->to)) return;
        sender->endpoint().deliver([this, message] {
          if (Port* const again = port(message->from); again && !again->has_lost(message->to))
            again->endpoint().sink().sent(message->cookie);
        });
      });
  }
  if (out.blocked > 0 || !out.held.empty()) {
    out.held.push_back(message);
  } else {
    plan_arrival(out, message);
  }
}

void Network::plan_arrival(Link& out, const MessagePtr& message) {
  Queue& queue = out.queues[message->frame.stream % world_.scenario.streams];
  const Duration jitter = world_.prng.duration(Duration(0), out.latency / 2);
  queue.last = std::max(queue.last, world_.timeline.now() + out.latency + jitter);
  queue.under_way.push_back(message);
  world_.timeline.at(queue.last, [this, message] { head(message); });
}

// The first bytes have come.
void Network::head(const MessagePtr& message) {
  Link& in = link(message->from, message->to);
  message->due = true;
  // The one before it in its stream is not complete; settle() comes back to this one.
  if (in.queues[message->frame.stream % world_.scenario.streams].under_way.front() != message)
    return;
  if (message->dropped || in.closed) return settle(message);
  if (in.blocked > 0 || !in.held.empty()) {
    settle(message);
    in.held.push_back(message);
    return;
  }
  if (on_delivery_) on_delivery_();
  ++world_.deliveries;
  Port* const receiver = port(message->to);
  if (message->dropped || receiver == nullptr) return settle(message);
  receiver->endpoint().deliver([this, message] {
    Port* const to = port(message->to);
    if (message->dropped || to == nullptr || to->has_lost(message->from)) return settle(message);
    const auto place = to->endpoint().sink().place(message->from, message->frame);
    if (!place.ok()) {
      settle(message);
      world_.note(fmt::format("{} refuses a message of {}: {}", to_string(message->to),
                              to_string(message->from), place.error().message));
      return reset(message->from, message->to);
    }
    message->place = *place;
    message->placed = true;
    if (!world_.scenario.two_phases || message->payload.empty()) return tail(message);
    world_.timeline.after(world_.prng.duration(Duration(0), microseconds(200)), [this, message] {
      Port* const again = port(message->to);
      if (again == nullptr) return settle(message);
      again->endpoint().deliver([this, message] { tail(message); });
    });
  });
}

void Network::tail(const MessagePtr& message) {
  Port* const to = port(message->to);
  if (message->dropped || to == nullptr || to->has_lost(message->from)) return settle(message);
  const size_t bytes = message->payload.size();
  if (bytes > 0 && !message->wasted) {
    PLIANT_CHECK(message->place != nullptr, "place() gave no room");
    if (message->frame.epoch < to->endpoint().epoch()) {
      to->endpoint().stale_write({message->place, bytes}, message->frame);
      for (size_t i = 0; i < bytes; ++i)
        message->place[i] = static_cast<std::byte>(Prng::mix(i + message->frame.epoch));
    } else {
      std::memcpy(message->place, message->payload.data(), bytes);
    }
  }
  settle(message);
  if (world_.scenario.sent_on_arrival && message->cookie != 0) {
    if (Port* const sender = port(message->from))
      sender->endpoint().deliver([this, message] {
        if (Port* const from = port(message->from); from && !from->has_lost(message->to))
          from->endpoint().sink().sent(message->cookie);
      });
  }
  // The sender's reaction cannot have ended the receiver: everything is planned, not called.
  to->endpoint().sink().arrived(message->from, message->frame, message->place);
}

// It is not under way any more.
void Network::settle(const MessagePtr& message) {
  Queue& queue =
      link(message->from, message->to).queues[message->frame.stream % world_.scenario.streams];
  std::erase(queue.under_way, message);
  message->due = false;
  if (queue.under_way.empty() || !queue.under_way.front()->due) return;
  world_.timeline.after(Duration(0), [this, next = queue.under_way.front()] {
    if (next->due && !next->placed) head(next);
  });
}

void Network::forget(PeerId self, std::span<const std::byte> memory) {
  const auto look = [&](const MessagePtr& message) {
    if (message->from == self && message->copy.empty() && overlap(message->payload, memory)) {
      message->copy.assign(message->payload.begin(), message->payload.end());
      message->payload = message->copy;
    }
    if (message->to == self && message->placed && message->place != nullptr &&
        overlap({message->place, message->frame.payload_bytes}, memory))
      message->wasted = true;
  };
  for (auto& [ends, one] : links_) {
    if (ends.first != self && ends.second != self) continue;
    for (auto& [stream, queue] : one.queues)
      std::for_each(queue.under_way.begin(), queue.under_way.end(), look);
    std::for_each(one.held.begin(), one.held.end(), look);
  }
}

void Network::block(PeerId from, PeerId to) { ++link(from, to).blocked; }

void Network::unblock(PeerId from, PeerId to) {
  Link& one = link(from, to);
  if (one.blocked == 0 || --one.blocked > 0) return;
  const std::deque<MessagePtr> held = std::exchange(one.held, {});
  for (const MessagePtr& message : held) plan_arrival(one, message);
}

void Network::unblock_all() {
  for (auto& [ends, one] : links_) {
    if (one.blocked == 0) continue;
    one.blocked = 1;
    unblock(ends.first, ends.second);
  }
}

// `to` hears nothing of `from` any more.
void Network::close(PeerId from, PeerId to, Duration delay, bool orderly, const std::string& why) {
  Link& one = link(from, to);
  Instant time = world_.timeline.now() + delay;
  for (auto& [stream, queue] : one.queues) {
    if (orderly && !queue.under_way.empty()) time = std::max(time, queue.last + microseconds(1));
    if (!orderly)
      for (const MessagePtr& message : queue.under_way) message->dropped = true;
  }
  if (!orderly) one.held.clear();
  world_.timeline.at(time, [this, from, to, why] {
    Link& closing = link(from, to);
    // The end is part of the stream and waits behind what is held up.
    if (closing.blocked > 0 || !closing.held.empty())
      return close(from, to, milliseconds(5), true, why);
    closing.closed = true;
    Port* const receiver = port(to);
    if (receiver == nullptr) return;
    receiver->endpoint().deliver([this, from, to, why] {
      if (Port* const again = port(to)) again->lose(from, {Code::kPeerLost, why, from, {}});
    });
  });
}

void Network::reset(PeerId one, PeerId other) {
  const Duration delay = world_.scenario.latency_max;
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)})
    close(from, to, world_.prng.duration(Duration(0), delay), false,
          fmt::format("the connection to peer {} was reset", to_string(from)));
}

void Network::keep_payloads(PeerId from, PeerId to) {
  const auto at = links_.find({from, to});
  if (at == links_.end()) return;
  const auto keep = [](const MessagePtr& message) {
    if (!message->copy.empty() || message->payload.empty()) return;
    message->copy.assign(message->payload.begin(), message->payload.end());
    message->payload = message->copy;
  };
  for (auto& [stream, queue] : at->second.queues)
    std::for_each(queue.under_way.begin(), queue.under_way.end(), keep);
  std::for_each(at->second.held.begin(), at->second.held.end(), keep);
}

void Network::end(PeerId peer, End how) {
  // What the network still has to send outlives the process's memory.
  for (const auto& [ends, one] : links_)
    if (ends.first == peer) keep_payloads(peer, ends.second);
  gone_.insert(peer);
  for (const auto& [other, ignored] : ports_) {
    if (other == peer) continue;
    const auto out = links_.find({peer, other});
    const auto in = links_.find({other, peer});
    const bool linked =
        (out != links_.end() && out->second.used) || (in != links_.end() && in->second.used);
    if (!linked) continue;
    const bool orderly = how == End::kInOrder || world_.prng.chance(50);
    close(peer, other, world_.prng.duration(Duration(0), milliseconds(20)), orderly,
          fmt::format("peer {} closed the connection", to_string(peer)));
  }
}

}  // namespace pliant::sim
