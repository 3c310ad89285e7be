// The simulated network: implements Transport between simulated members.
//
// Each pair has a latency of its own; messages of one stream stay in order; a payload may come
// later than its head, and until then the sender's memory is read, as by a network card. What a
// message of an older view brings to a member is garbage on purpose: no bit of it may matter.
// Links can be held up in one or both directions, reset, and end with their process. Owned by a
// History, outlives the members; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "pliant/sim/world.h"
#include "pliant/transport/transport.h"

namespace pliant::sim {

// A process on the network.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual PeerId id() const = 0;
  virtual Sink& sink() = 0;
  // Runs it now, or, if the process is stopped, when it continues. Nothing if it has ended.
  virtual void deliver(std::function<void()> event) = 0;
  virtual uint32_t epoch() const = 0;
  // A message of an older view is about to be written here.
  virtual void stale_write(std::span<const std::byte> memory, const Frame& frame) = 0;
};

class Network final {
 public:
  explicit Network(World& world) : world_(world) {}
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  std::unique_ptr<Transport> open(Endpoint& endpoint);

  // Messages from one to the other wait.
  void block(PeerId from, PeerId to);
  void unblock(PeerId from, PeerId to);
  void unblock_all();
  // The link between two living processes breaks.
  void reset(PeerId one, PeerId other);
  // The process is gone, without or after having its last messages delivered.
  enum class End { kKilled, kInOrder };
  void end(PeerId peer, End how);
  // Called before each delivery.
  void on_delivery(std::function<void()> callback) { on_delivery_ = std::move(callback); }

 private:
  class Port;
  struct Message {
    PeerId from;
    PeerId to;
    Frame frame;
    std::span<const std::byte> payload;
    std::vector<std::byte> copy;  // behind `payload`, once the sender needs its memory
    uint64_t cookie = 0;
    std::byte* place = nullptr;
    bool due = false;  // its head has come
    bool placed = false;
    bool wasted = false;
    bool dropped = false;
  };
  using MessagePtr = std::shared_ptr<Message>;
  struct Queue {
    Instant last{};  // arrival of the newest
    std::deque<MessagePtr> under_way;
  };
  struct Link {
    Duration latency{};
    bool used = false;
    bool closed = false;
    int blocked = 0;
    std::map<uint32_t, Queue> queues;
    std::deque<MessagePtr> held;
  };

  Link& link(PeerId from, PeerId to);
  void send(PeerId from, PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie);
  void plan_arrival(Link& link, const MessagePtr& message);
  void head(const MessagePtr& message);
  void tail(const MessagePtr& message);
  void settle(const MessagePtr& message);
  void forget(PeerId self, std::span<const std::byte> memory);
  // The sender may free what it has sent: nobody will tell it that it was sent.
  void keep_payloads(PeerId from, PeerId to);
  void close(PeerId from, PeerId to, Duration delay, bool orderly, const std::string& why);
  Port* port(PeerId peer);

  World& world_;
  std::map<PeerId, Port*> ports_;
  std::set<PeerId> gone_;
  std::map<std::pair<PeerId, PeerId>, Link> links_;
  std::function<void()> on_delivery_;
  std::vector<std::byte> garbage_;
};

}  // namespace pliant::sim
