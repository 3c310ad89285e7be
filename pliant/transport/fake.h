// A network inside one process, for tests and simulation: deterministic, one thread, no clock.
//
// A FakeNetwork makes Transports that deliver to each other when their poll() is called, and offers
// what a real network does on its own: links that are held up, peers that vanish, streams that
// overtake each other. It outlives its transports; everything runs on the caller's thread. Real
// transports pass the same contract suite, so that what holds here holds there.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "pliant/transport/transport.h"

namespace pliant {

class FakeNetwork final {
 public:
  // When Sink::sent() comes, which differs among real transports.
  enum class Taking {
    kOnArrival,  // once the receiver has the payload, from the sender's poll()
    kInSend,     // before send() returns: the network keeps a copy
  };
  explicit FakeNetwork(Taking taking = Taking::kOnArrival) : taking_(taking) {}
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // One transport a peer. Destroying it is the peer's orderly end: what the network has taken is
  // still delivered, then those that were linked to it lose it.
  std::unique_ptr<Transport> open(PeerId self, Sink& sink);

  // Messages from one peer to another wait until release(); a loss waits behind them.
  void hold(PeerId from, PeerId to);
  void release(PeerId from, PeerId to);

  // The peer is killed: what it sent and did not arrive is gone, its transport does nothing more,
  // and the peers that were linked to it lose it.
  void drop(PeerId peer);

  // From now on, streams overtake each other, in an order drawn from the seed.
  void reorder(uint64_t seed) { prng_.emplace(seed); }

  // Messages under way.
  size_t in_flight() const;

 private:
  class Port;
  struct Message {
    uint64_t number;  // the order of sending, over the whole network
    Frame frame;
    std::span<const std::byte> payload;
    std::vector<std::byte> copy;  // behind `payload`, when taken in send() or forgotten
    uint64_t cookie;
  };
  // To whom, from whom, on which stream: the queues that one receiver reads are neighbours.
  using Lane = std::tuple<PeerId, PeerId, uint8_t>;
  using Lanes = std::map<Lane, std::deque<Message>>;

  void send(PeerId from, PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie);
  Lanes::iterator next_for(PeerId to);
  void copy_untaken(PeerId from, std::span<const std::byte> memory);
  void forget_untaken(PeerId from);
  void forget_all(PeerId from, PeerId to);
  void end_of(PeerId peer, const Error& error);
  bool waits(PeerId from, PeerId to) const;

  const Taking taking_;
  std::map<PeerId, Port*> ports_;
  std::set<PeerId> gone_;  // ended or dropped; a PeerId is never used again
  Lanes lanes_;
  std::set<std::pair<PeerId, PeerId>> links_;  // from, to: something was sent once
  std::set<std::pair<PeerId, PeerId>> held_;
  std::optional<std::mt19937_64> prng_;
  uint64_t next_number_ = 0;
};

}  // namespace pliant
