// The Engine: everything of a session that moves. It owns the loop, the transports, the executor
// and the background thread, and decides which thread does the work: a caller that waits works for
// itself; what nobody waits for, and what takes longer than a few milliseconds, is done by the
// background thread, which sleeps when nothing moves.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "pliant/collective/executor.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/control_link.h"
#include "pliant/runtime/life.h"
#include "pliant/runtime/options.h"
#include "pliant/runtime/peer_store.h"
#include "pliant/runtime/step_ground.h"
#include "pliant/runtime/termination.h"
#include "pliant/transport/open.h"

namespace pliant {

class Engine;

// A value that was asked for. `value` is there once `done` is set, with the loop held.
struct ValueRequest {
  std::atomic<bool> done = false;
  std::optional<Result<StoredValue>> value;
  Engine* engine = nullptr;  // to wait with, while it is not done
};
std::shared_ptr<ValueRequest> answered_request(Result<StoredValue> value);

class Engine final : private Sink, public StepGround {
 public:
  using Planner = std::function<CallPlan(const Signature&, const Group&)>;

  // Joins the job of `options` and connects to the peers of this host.
  static Result<std::unique_ptr<Engine>> open(const SessionOptions& options, Planner planner);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // They change in install() alone, which the training thread calls.
  const View& view() const override { return view_; }
  const Group& world() const override { return world_; }
  Segment& segment() { return *segment_; }

  // Calls `use` with the segment of a peer of this host; null if there is none.
  template <typename Use>
  const std::byte* read_segment(PeerId peer, Use use) {
    const std::lock_guard guard(loop_);
    ShmTransport* const shm = transports_ ? transports_->shm() : nullptr;
    Segment* const segment = shm != nullptr ? shm->segment_of(peer) : nullptr;
    return segment != nullptr ? use(*segment) : nullptr;
  }

  // Runs an operation to its end. `result`: where its result stands.
  Status run(const Operation& operation, const Group& group,
             const std::byte** result = nullptr) override;
  // Begins one; `done` is called once, by whatever thread ends it, with the loop held.
  void start(const Operation& operation, const Group& group, Execution::Done done) override;
  // Waits until `done` is set by a callback, working meanwhile.
  void wait(const std::atomic<bool>& done) override;
  // Waits, working, until the number of started operations that have ended is not `known` any more,
  // or for so long; returns it.
  uint64_t await_ended(uint64_t known, Duration longest);

  bool newer_view() const override {
    return newest_epoch_.load(std::memory_order_acquire) != installed_epoch_;
  }
  Result<ViewChange> await_view() override;
  void install(const ViewChange& change) override;
  HandedIn handed_in(PeerId peer, const Operation& operation, const Group& group) override;
  SharedPlace place_of(const std::byte* result, size_t bytes) override;
  const std::byte* at(const SharedPlace& place) override;
  bool forget_departed(const Group& group) override;
  void tell(const Message& message) override;
  Instant time() const override { return now(); }
  bool candidate() const override { return candidate_; }
  bool left_behind() override;

  // Keeps a value for the peers, of parts that stand behind each other in it.
  Status save(std::string_view name, uint64_t version, std::span<const Bytes> parts, int window);
  // Asks for a value of a peer's store, or of this process's own.
  std::shared_ptr<ValueRequest> request(PeerId peer, std::string_view name, uint64_t version);

  // Calls `use` with the loop held.
  template <typename Use>
  auto with_loop(Use use) {
    const std::lock_guard guard(loop_);
    return use();
  }
  Executor& executor() { return *executor_; }

 private:
  explicit Engine(const SessionOptions& options);
  Status join();
  void enter_view(const View& view);
  void meet(const std::vector<Member>& members);
  void report_met(ControlLink& control);
  void drop_departed();
  void view_decided(const ViewDecided& decided);
  void out_of_job(const Error& error);
  void give_notice();
  Error stale() const;
  Duration silence_max() const;
  Status open_transports(Member& self);
  void make_executor(Transport& transport);
  Status meet_local_peers();
  void progress();
  bool step(Instant now);
  void nudge();
  // Works on the loop until `done` or nothing has moved for a while; true if done.
  template <typename Done>
  bool drive(Done done);
  void advance_alone(Execution& execution);
  void report(const Error& error);
  void report_held(const Error& error);
  uint32_t wake_bits() const;
  void begin_polling();
  void end_polling();
  std::string describe(PeerId peer) const { return view_.describe(peer); }

  Result<std::byte*> place(PeerId from, const Frame& frame) override;
  void arrived(PeerId from, const Frame& frame, std::byte* payload) override;
  void sent(uint64_t cookie) override;
  void lost(PeerId peer, const Error& error) override;

  // Of a session alone: there is nobody to send to.
  class Nobody final : public Transport {
   public:
    void add_peer(const Member&) override {}
    void send(PeerId, const Frame&, std::span<const std::byte>, uint64_t) override {}
    void forget(std::span<const std::byte>) override {}
    bool poll() override { return false; }
    bool linked(PeerId) const override { return false; }
    const char* name() const override { return "nobody"; }
  };

  const SessionOptions options_;
  Planner planner_;
  View view_;
  Group world_;
  Loop loop_;
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Transports> transports_;
  std::unique_ptr<HostExchange> host_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PeerStore> store_;
  std::unique_ptr<ControlLink> control_;
  Nobody nobody_;
  Status first_loss_;
  std::unique_ptr<LifeHold> life_;
  std::unique_ptr<TerminationNotice> termination_;  // of an elastic session
  std::optional<Loop::TimerId> notice_;             // repeats it
  bool candidate_ = false;       // the job runs already, and this worker is to join it
  bool ready_ = true;            // to be a member: a candidate is when its first step begins
  std::vector<Member> meeting_;  // to be reported as met once they are reachable
  bool keeps_departed_ = false;  // what members of former views left behind may be in use
  std::vector<PeerId> departed_in_use_;  // by operations, where that is not so
  // The newest view that was not installed yet, with all departures since the one that was.
  ViewChange pending_;
  std::atomic<uint32_t> newest_epoch_ = 0;
  uint32_t installed_epoch_ = 0;
  Status out_;                                // why this member does not count any more
  std::string paused_;                        // why no view comes; empty: one is expected
  std::condition_variable_any view_changed_;  // with the loop
  uint64_t ended_ = 0;                        // operations that were started; guarded by the loop
  std::condition_variable_any one_ended_;     // with the loop
  int spins_ = 0;                             // looks at shared memory before giving the core away
  int pollers_ = 0;                           // callers that work on the loop; guarded by it
  bool sleeping_ = false;                     // the background thread; guarded by the loop
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace pliant
