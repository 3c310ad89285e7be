// Messages between the peers of one host: a ring of bytes in shared memory for each direction.
//
// Each process listens on a Unix socket with an abstract name (no file is left behind). Two peers
// meet there once, prove the job's token, and hand each other the descriptor of their segment; the
// socket then stays open to wake a sleeping peer and to tell of its death: it closes whatever the
// peer dies of. Owned by one loop; operations in shared memory, which run without it, may ask for
// segment_of() and wake().
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "pliant/base/task_pool.h"
#include "pliant/loop/loop.h"
#include "pliant/transport/handshake.h"
#include "pliant/transport/shm/segment.h"
#include "pliant/transport/socket.h"
#include "pliant/transport/transport.h"

namespace pliant {

struct ShmOptions {
  PeerId self;
  std::string job;
  std::string token;
  Epoch epoch = Epoch{1};
  std::string name;  // of its Unix socket; empty: a random one
  Duration handshake_deadline = std::chrono::seconds(5);
};

class ShmTransport final : public Transport {
 public:
  // `segment` is this process's own. All are borrowed and outlive the transport. The caller holds
  // the loop, here and when it destroys it.
  static Result<std::unique_ptr<ShmTransport>> open(Loop& loop, Sink& sink, Segment& segment,
                                                    ShmOptions options);
  ~ShmTransport() override;

  // For Member::local_name.
  const std::string& local_name() const { return name_; }

  void add_peer(const Member& member) override;
  void send(PeerId to, const Frame& frame, std::span<const std::byte> payload,
            uint64_t cookie) override;
  void forget(std::span<const std::byte> memory) override;
  bool poll() override;
  bool linked(PeerId peer) const override;
  const char* name() const override { return "shm"; }

  // The peer's segment; null until the two have met. It outlives the peer until drop_lost(). Any
  // thread.
  Segment* segment_of(PeerId peer);
  // Whose segment holds this memory.
  std::optional<PeerId> owner_of(const std::byte* memory, size_t bytes) const;
  // Forgets the lost peers that are not in `kept`, with their segments: nobody may hold memory of
  // theirs any more. Not from inside a call of the sink.
  void drop_lost(std::span<const PeerId> kept);
  // Has a thread of this transport run a task, some time; false if it has too many to run.
  bool aside(std::function<void()> task);
  // Wakes the peer if it sleeps. Any thread.
  void wake(PeerId peer);

 private:
  struct Outgoing {
    Frame frame;
    std::span<const std::byte> payload;
    std::vector<std::byte> copy;  // of the payload, if its owner wanted it back
    uint64_t cookie = 0;
    size_t written = 0;  // of frame and payload
  };
  struct Incoming {
    Frame frame;
    size_t got = 0;  // of frame and payload
    std::byte* to = nullptr;
    std::vector<std::byte> waste;  // takes the rest of a forgotten message
  };
  struct Link {
    PeerId peer;
    Fd socket;
    std::unique_ptr<Segment> segment;
    bool connected = false;
    bool lost = false;
    bool sent_to = false;
    bool pumping = false;
    std::deque<Outgoing> outgoing;
    Incoming incoming;
  };
  struct Stranger {  // accepted, not yet known
    Fd socket;
    Loop::TimerId deadline;
  };

  ShmTransport(Loop& loop, Sink& sink, Segment& segment, ShmOptions options);
  Hello hello_to(PeerId peer) const;
  void dial(Link& link, const std::string& name, Instant give_up);
  void retry_dial(Link& link, const std::string& name, Instant give_up, Duration after);
  void accept_waiting();
  void meet_stranger(int fd);
  void drop_stranger(int fd);
  void on_socket(PeerId peer);
  void connected(Link& link);
  void lose(Link& link, Error error);
  bool pump_out(Link& link);
  bool pump_in(Link& link);
  size_t put(Ring& ring, Outgoing& message);
  bool take(Link& link, Ring& ring, uint64_t& position, uint64_t end);
  Link* find(PeerId peer);
  Link& add_link(PeerId peer);

  Loop& loop_;
  Sink& sink_;
  Segment& own_;
  const ShmOptions options_;
  std::string name_;
  Fd listener_;
  std::unordered_map<PeerId, std::unique_ptr<Link>> links_;
  std::vector<Link*> order_;  // the same, for poll()
  // Of the links that are connected, or were, what other threads may ask for.
  struct Met {
    Segment* segment = nullptr;
    int socket = -1;  // -1: it is lost
  };
  std::mutex met_mutex_;
  std::unordered_map<PeerId, Met> met_;
  std::unordered_map<int, Stranger> strangers_;
  std::vector<Loop::TimerId> retries_;
  std::unique_ptr<TaskPool> aside_;  // made when there is a task
};

}  // namespace pliant
