// The Executor: runs every collective, over whatever transport and shared memory there is.
//
// It matches calls by name (the k-th use of a name on one rank belongs to the k-th use on every
// other), keeps schedules from call to call, takes messages for calls that were not made yet, and
// turns the loss of a peer into an error of every call that needs it. One a process. All calls are
// made by the thread that holds the loop, except that one that runs_alone() may be advanced by
// its caller alone.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/collective/execution.h"

namespace pliant {

class Executor final : public Sink {
 public:
  struct Options {
    PeerId self;
    Epoch epoch = Epoch{1};
    Duration timeout = std::chrono::seconds(60);
    std::function<CallPlan(const Signature&, const Group&)> plan;
    std::function<std::string(PeerId)> describe;  // "rank 2 (host a, pid 4711)"
  };

  // `host` is null without shared memory. Both are borrowed and outlive this.
  Executor(Transport& transport, HostExchange* host, Options options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Begins an operation: checks it, posts it, sends its first messages. It is then advanced by the
  // caller (runs_alone) or, after adopt(), by advance_all(). `done` runs once, when it has
  // finished; the name is free when it has returned.
  Result<Execution*> begin(const Operation& operation, const Group& group,
                           Execution::Done done = {});
  // Its deadline counts from here: a caller that advances it alone adopts it before it sleeps.
  void adopt(Execution& execution, Instant now);
  // Makes the name free again. Only after finished(); done for the caller where there is a `done`.
  void release(Execution& execution);

  // Advances all adopted executions, and fails those whose deadline has passed.
  bool advance_all(Instant now);
  bool idle() const { return adopted_.empty(); }
  // True if an adopted execution waits for a change in shared memory.
  bool waits_for_host() const;

  // Plans are made anew at the next call of every name.
  void forget_plans() { ++plan_version_; }

  // A peer is gone: every call of its groups fails, now and later. If it had said good-bye, calls
  // in flight that have all they need of it go on.
  void lost(PeerId peer, const Error& error) override;
  // Tells the peers that this process ends in order, and whose loss made it end, if one's did;
  // goodbye_said() once the messages are out.
  void say_goodbye(std::span<const PeerId> peers, PeerId cause = {});
  bool goodbye_said() const { return texts_.empty(); }
  bool has_said_goodbye(PeerId peer) const { return leaving_.contains(peer); }
  // All calls fail; for shutdown.
  void cancel_all(const Error& error);

  // A new view is due: all calls in flight end with this error, at their next advance. Their names
  // are free again once their callers have seen it.
  void interrupt(const Error& error);
  // Forgets what belongs to older views. From here on messages of older epochs are wasted, and
  // those of newer ones are kept. What `peers` may still use is not used again before.
  void install(Epoch epoch, const FormerPeers& peers);
  // Calls of this group that have not begun to use results of departed peers never will; returns
  // the peers whose results are in use.
  std::vector<PeerId> forget_departed(const Group& group);
  void peer_gone(PeerId peer) {
    if (host_ != nullptr) host_->peer_gone(peer);
  }
  // What a peer of this host gave to the call that this rank has made with the same mark: nothing
  // if either has not made it, or the peer keeps its input to itself.
  HandedIn handed_in(PeerId peer, const Operation& operation, const Group& group) const;

  Result<std::byte*> place(PeerId from, const Frame& frame) override;
  void arrived(PeerId from, const Frame& frame, std::byte* payload) override;
  void sent(uint64_t cookie) override;

 private:
  friend class Execution;

  // What a name keeps from call to call.
  struct Binding {
    std::shared_ptr<const Group> group;
    std::string name;
    uint32_t calls = 0;
    uint64_t plan_version = 0;
    Signature signature;
    Schedule schedule;
    uint32_t plan_digest = 0;
    Operation last;  // the newest that was right; its name is not kept
    HostBinding host;
    Execution execution;
    std::vector<std::byte> own_result;  // of a shared result that is not shared with anybody
  };
  struct Early {  // a message for a call that this rank has not made yet
    PeerId from;
    Frame frame;
    std::vector<std::byte> payload;
    bool complete = false;
  };

  Status check_group(const Group& group) const;
  // Tells the peers of this host once the last call of former views has finished.
  void enter_view();
  Result<Binding*> bind(const Operation& operation, const Group& group);
  // A call that is wrong on this rank: the others must not wait for it.
  void refuse(Binding& binding, const Operation& operation, const Error& error);
  Status refresh_plan(Binding& binding, const Operation& operation);
  Status check_and_prepare(Binding& binding, const Operation& operation);
  void prepare(Binding& binding, const Operation& operation);
  // The last call again: what was found out about that one holds.
  static void prepare_again(Binding& binding, const Operation& operation);
  void take_early(Execution& execution);
  void drop_early(uint64_t key, uint32_t sequence_max);
  // The call in flight that a message belongs to, or null.
  Execution* find(const Frame& frame);
  // True if this rank has made the call already.
  bool is_past(const Frame& frame) const;
  Result<std::byte*> place_early(PeerId from, const Frame& frame);
  std::byte* take_scratch(size_t bytes);
  void give_scratch(std::byte* memory, size_t bytes);
  Result<std::byte*> waste(PeerId from, const Frame& frame);
  // Sends a message whose text is kept here until it is sent.
  void send_text(PeerId to, Frame frame, const std::string& text);
  // Takes a message for a call that runs.
  Result<std::byte*> place_in(Execution& execution, PeerId from, const Frame& frame);
  void arrived_in(Execution& execution, PeerId from, const Frame& frame, const std::byte* payload);
  void take_abort(Execution& execution, const Frame& frame, std::string text);
  void answer(PeerId from, const Frame& question);

  Transport& transport_;
  HostExchange* const host_;
  const Options options_;
  Epoch epoch_;
  std::unordered_map<uint64_t, std::unique_ptr<Binding>> bindings_;
  Binding* newest_ = nullptr;                // the one that was used last
  std::vector<const Execution*> lingering_;  // of former views, and perhaps not finished
  std::unordered_map<uint32_t, Execution*> by_id_;
  uint32_t next_id_ = 1;
  uint64_t plan_version_ = 1;
  std::vector<Execution*> adopted_;
  std::unordered_map<uint64_t, std::deque<std::unique_ptr<Early>>> early_;  // by key
  size_t early_bytes_ = 0;
  size_t early_count_ = 0;
  std::unordered_map<PeerId, Error> lost_;
  std::unordered_set<PeerId> leaving_;  // have said good-bye
  std::unordered_set<PeerId> spoken_;   // have sent anything: their links to us will break
  std::unordered_map<uint64_t, Error> broken_groups_;
  std::unordered_map<size_t, std::vector<std::unique_ptr<std::byte[]>>> scratch_;
  std::vector<std::vector<std::byte>> waste_;  // where payloads go that nobody wants
  struct Text {
    PeerId to;
    std::string text;
  };
  std::unordered_map<uint64_t, Text> texts_;  // by cookie
  // The reasons of aborts, one a peer at a time: a peer's come in order.
  std::unordered_map<PeerId, std::vector<std::byte>> reasons_;
  uint64_t next_text_ = 1;
};

}  // namespace pliant
