// What transport tests share: a Sink that records, and a Node that is one peer of a small job, all
// in one thread. Nobody sleeps: turn_until() turns every loop until a condition holds, or gives up
// after a time so long that only a hang reaches it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "pliant/loop/loop.h"
#include "pliant/transport/socket.h"
#include "pliant/transport/transport.h"

namespace pliant::test {

using Payload = std::vector<std::byte>;

inline PeerId peer_id(int slot) {
  return {.host = 0, .slot = static_cast<uint16_t>(slot), .incarnation = 1};
}

// Bytes that differ everywhere and are the same for the same seed.
inline Payload payload_of(uint64_t seed, size_t size_bytes) {
  Payload bytes(size_bytes);
  std::mt19937_64 prng(seed);
  for (size_t at = 0; at < size_bytes; at += 8) {
    const uint64_t word = prng();
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, size_bytes - at));
  }
  return bytes;
}

class Recorder final : public Sink {
 public:
  struct Arrival {
    PeerId from;
    Frame frame;
    Payload payload;
  };

  Result<std::byte*> place(PeerId from, const Frame& frame) override {
    ++callbacks;
    EXPECT_FALSE(losses.contains(from)) << "a message from a lost peer";
    EXPECT_FALSE(refused.contains(from)) << "a message from a peer that was refused";
    ++placed;
    if (refuse) {
      if (std::optional<Error> error = refuse(frame)) {
        refused.insert(from);
        return *error;
      }
    }
    if (frame.payload_bytes == 0) return static_cast<std::byte*>(nullptr);
    auto room = std::make_unique<std::byte[]>(frame.payload_bytes);
    std::byte* at = room.get();
    rooms_.emplace(at, std::move(room));
    return at;
  }
  void arrived(PeerId from, const Frame& frame, std::byte* payload) override {
    ++callbacks;
    EXPECT_FALSE(losses.contains(from)) << "a message from a lost peer";
    arrivals.push_back({from, frame, Payload(payload, payload + frame.payload_bytes)});
    EXPECT_EQ(rooms_.erase(payload), frame.payload_bytes > 0 ? 1u : 0u) << "not a place we gave";
    if (on_arrived) on_arrived(from, frame);
  }
  void sent(uint64_t cookie) override {
    ++callbacks;
    ++sent_counts[cookie];
    if (on_sent) on_sent(cookie);
  }
  void lost(PeerId peer, const Error& error) override {
    ++callbacks;
    EXPECT_FALSE(sending) << "lost() inside send()";
    losses[peer].push_back(error);
  }

  // The only place that was given and not filled yet.
  std::byte* room() const {
    EXPECT_EQ(rooms_.size(), 1u);
    return rooms_.begin()->first;
  }
  bool has_lost(PeerId peer) const { return losses.contains(peer); }

  uint64_t callbacks = 0;
  size_t placed = 0;
  std::vector<Arrival> arrivals;
  std::map<uint64_t, int> sent_counts;  // by cookie
  std::map<PeerId, std::vector<Error>> losses;
  std::set<PeerId> refused;
  std::function<std::optional<Error>(const Frame&)> refuse;
  std::function<void(PeerId, const Frame&)> on_arrived;
  std::function<void(uint64_t)> on_sent;
  bool sending = false;

 private:
  std::map<std::byte*, std::unique_ptr<std::byte[]>> rooms_;
};

// One peer. Holds its loop's lock for life: a test is one thread.
struct Node {
  explicit Node(PeerId self) : id(self) { loop.lock(); }
  ~Node() {
    transport.reset();
    loop.unlock();
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Keeps the payload until the node's end; returns the cookie.
  uint64_t send(PeerId to, Payload payload, uint8_t stream = 0, uint64_t key = 0) {
    outbox.push_back(std::move(payload));
    Frame frame;
    frame.stream = stream;
    frame.key = key;
    frame.payload_bytes = outbox.back().size();
    const bool outer = std::exchange(sink.sending, true);
    const uint64_t cookie = ++cookies;
    transport->send(to, frame, outbox.back(), cookie);
    sink.sending = outer;
    return cookie;
  }
  void turn() {
    loop.turn();
    if (transport) transport->poll();
  }
  // Every message that this node sent was reported, once.
  bool all_sent() const { return sink.sent_counts.size() == cookies; }

  const PeerId id;
  Loop loop;
  Recorder sink;
  std::deque<Payload> outbox;  // before the transport: it may still read from it
  uint64_t cookies = 0;
  std::unique_ptr<Transport> transport;
};

// All nodes of a test.
class Job {
 public:
  Node& add(PeerId id) { return *nodes_.emplace_back(std::make_unique<Node>(id)); }
  void remove(Node& node) {
    std::erase_if(nodes_, [&](const auto& other) { return other.get() == &node; });
  }
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }

  void turn() {
    for (const auto& node : nodes_) node->turn();
  }
  // So many turns that whatever is under way on this machine arrives.
  void settle() {
    for (int i = 0; i < 300; ++i) turn();
  }
  [[nodiscard]] bool turn_until(const std::function<bool()>& condition) {
    const Instant give_up = now() + std::chrono::seconds(60);
    while (!condition()) {
      if (now() > give_up) return false;
      turn();
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<Node>> nodes_;
};

// Keeps a TCP port of this machine for a transport that opens later. Bound and not listening, it
// refuses connections, and nobody else gets it; a listener that reuses addresses may join it.
class ReservedPort {
 public:
  explicit ReservedPort(const std::string& host) {
    Address address = *parse_address(host, 0);
    fd_ = Fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    PLIANT_CHECK(
        bind(fd_.get(), reinterpret_cast<sockaddr*>(&address.storage), address.size_bytes) == 0);
    number_ = local_address(fd_)->port();
  }
  uint16_t number() const { return number_; }

 private:
  Fd fd_;
  uint16_t number_ = 0;
};

inline size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace pliant::test
