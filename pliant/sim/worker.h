// A simulated worker: the production protocol of steps and executor on a simulated process, with a
// training loop on a fiber of its own. What runtime/engine.cc does with threads and sockets is done
// here with events. Owned by a History; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "pliant/collective/executor.h"
#include "pliant/runtime/steps.h"
#include "pliant/sim/coordinator.h"
#include "pliant/sim/fiber.h"
#include "pliant/sim/judge.h"
#include "pliant/sim/network.h"
#include "pliant/sim/world.h"

namespace pliant::sim {

class Worker final : public StepGround, public Endpoint, private Sink {
 public:
  struct Surroundings {
    World& world;
    Network& network;
    Coordinator& coordinator;
    Judge& judge;
    std::function<void(Worker&, int exit_code)> ended;
    std::function<bool()> take_damage;  // true: the next transfer of state is to be damaged
  };
  Worker(const Surroundings& around, const pliant::Member& self);
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void begin();
  // The process ends here and now; its fiber is unwound without any effect.
  void kill();
  void stop();
  void go_on();
  void block_control();
  void unblock_control();
  // From the coordinator, over its line.
  void tell_worker(const Message& message);
  void coordinator_crashed();

  PeerId id() const override { return self_.id; }
  bool running() const { return !ended_; }
  bool stopped() const { return stopped_; }
  bool is_member() const { return member_; }
  uint64_t committed_since_heal() const { return committed_since_heal_; }

  // StepGround, for the training loop.
  const View& view() const override { return view_; }
  const Group& world() const override { return group_; }
  Status run(const Operation& operation, const Group& group, const std::byte** result) override;
  void start(const Operation& operation, const Group& group,
             std::function<void(const Status&, const std::byte*)> done) override;
  void wait(const std::atomic<bool>& done) override;
  bool newer_view() const override { return newest_epoch_ != installed_epoch_; }
  Result<ViewChange> await_view() override;
  void install(const ViewChange& change) override;
  HandedIn handed_in(PeerId, const Operation&, const Group&) override { return {}; }
  SharedPlace place_of(const std::byte* result, size_t bytes) override;
  const std::byte* at(const SharedPlace& place) override;
  void tell(const Message& message) override;
  Instant time() const override { return around_.world.timeline.now(); }

  // Endpoint, for the network.
  Sink& sink() override { return *this; }
  void deliver(std::function<void()> event) override;
  uint32_t epoch() const override { return installed_epoch_; }
  void stale_write(std::span<const std::byte> memory, const Frame& frame) override;

 private:
  using Condition = std::function<bool()>;
  enum class Waiting : uint8_t { kNothing, kOperation, kView, kTime };

  Result<std::byte*> place(PeerId from, const Frame& frame) override;
  void arrived(PeerId from, const Frame& frame, std::byte* payload) override;
  void sent(uint64_t cookie) override;
  void lost(PeerId peer, const Error& error) override;

  // The training loop.
  void train();
  int train_steps();
  Status train_step(Steps& steps, const Vector& state, std::vector<Vector>& inputs,
                    std::vector<Vector>& outputs);
  Judge::Commit commit_of(const Steps& steps, const std::vector<Vector>& outputs);
  bool join();
  int judge_end(const Error& error);
  void leave();

  // Waiting.
  void wait_until(Waiting what, const Condition& condition);
  void sleep(Duration time);
  void dawdle();
  void poke();
  void tick();
  void watch_waits();
  void finish();

  // The line to the coordinator.
  void dial();
  void report(const RosterEvent::Any& event);
  void on_message(const Message& message);
  void take_view(const ViewDecided& decided);
  void take_change(const ViewChanged& changed);
  void view_decided(const ViewDecided& decided);
  void meet(const std::vector<pliant::Member>& members);
  void enter_view(const View& view);
  Error stale() const;
  void suspect(PeerId peer, const std::string& reason);
  void check_error(const Status& status, const Group& group);

  const Surroundings around_;
  const pliant::Member self_;
  const int index_;               // the judge's number
  std::unique_ptr<Steps> steps_;  // outlives the calls that write to its results
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Fiber> fiber_;

  View view_;
  Group group_;
  ViewChange pending_;
  std::optional<View> first_view_;
  uint32_t newest_epoch_ = 0;
  uint32_t installed_epoch_ = 0;
  View known_;  // the newest that came over the line
  Instant newest_since_{};
  Status out_;
  std::string paused_;
  bool member_ = false;
  bool damaged_ = false;

  bool dead_ = false;   // killed, perhaps not unwound yet
  bool ended_ = false;  // and nothing of it runs any more
  bool stopped_ = false;
  Instant continued_{};
  std::vector<std::function<void()>> backlog_;  // of a stopped process
  const Condition* condition_ = nullptr;
  Waiting waiting_ = Waiting::kNothing;
  Instant waiting_since_{};
  bool resume_planned_ = false;
  std::vector<std::span<const std::byte>> outputs_;  // of operations in flight

  Line to_coordinator_;
  Line from_coordinator_;
  bool dialing_ = false;
  std::set<PeerId> lost_peers_;
  std::set<PeerId> suspects_;  // those, and who was late in this view
  uint64_t life_ = 0;          // of the coordinator we are connected to; 0: none
  Duration retry_ = std::chrono::milliseconds(5);
  uint64_t committed_since_heal_ = 0;
};

}  // namespace pliant::sim
