#include "pliant/sim/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pliant/base/defect.h"
#include "pliant/transport/overlap.h"

namespace pliant::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
constexpr Duration kRetryMax = milliseconds(80);
// An operation of an older view ends when the newer one is known, up to the next look at it.
constexpr Duration kSlack = milliseconds(500);

}  // namespace

Worker::Worker(const Surroundings& around, const pliant::Member& self)
    : around_(around),
      self_(self),
      index_(around.judge.enter(self.id)),
      to_coordinator_(around.world),
      from_coordinator_(around.world) {
  transport_ = around_.network.open(*this);
  executor_ = std::make_unique<Executor>(
      *transport_, nullptr,
      Executor::Options{
          .self = self_.id,
          .epoch = Epoch{1},
          .timeout = around_.world.scenario.timeout,
          .plan = [this](const Signature&, const Group&) { return around_.world.scenario.plan; },
          .describe = [this](PeerId peer) { return view_.describe(peer); }});
}

Worker::~Worker() {
  if (!ended_) kill();
}

void Worker::begin() {
  fiber_ = std::make_unique<Fiber>([this] { train(); });
  dial();
  tick();
  fiber_->resume();
}

// ---- Life and death ---------------------------------------------------------------------------

void Worker::kill() {
  if (ended_) return;
  dead_ = true;
  stopped_ = false;
  around_.network.end(id(), Network::End::kKilled);
  executor_->cancel_all({Code::kCancelled, "killed", {}, {}});
  executor_->advance_all(time());
  while (fiber_ && !fiber_->finished()) {
    executor_->cancel_all({Code::kCancelled, "killed", {}, {}});
    executor_->advance_all(time());
    fiber_->resume();
  }
  finish();
}

void Worker::finish() {
  ended_ = true;
  backlog_.clear();
  executor_.reset();
  transport_.reset();
}

void Worker::stop() { stopped_ = true; }

void Worker::go_on() {
  if (!stopped_) return;
  stopped_ = false;
  continued_ = time();
  for (auto& event : std::exchange(backlog_, {})) deliver(std::move(event));
}

void Worker::deliver(std::function<void()> event) {
  if (ended_ || dead_) return;
  if (stopped_) {
    backlog_.push_back(std::move(event));
    return;
  }
  event();
  if (ended_) return;
  executor_->advance_all(time());
  poke();
}

// ---- Waiting ----------------------------------------------------------------------------------

void Worker::wait_until(Waiting what, const Condition& condition) {
  waiting_since_ = time();
  while (!condition() && !dead_) {
    condition_ = &condition;
    waiting_ = what;
    fiber_->give_way();
    condition_ = nullptr;
  }
  waiting_ = Waiting::kNothing;
}

void Worker::sleep(Duration duration) {
  const Instant until = time() + duration;
  around_.world.timeline.at(until, [this] { deliver([] {}); });
  wait_until(Waiting::kTime, [&] { return time() >= until; });
}

// A thread may lose its core anywhere.
void Worker::dawdle() {
  if (dead_ || !around_.world.prng.chance(6)) return;
  sleep(around_.world.prng.duration(Duration(0), microseconds(3000)));
}

void Worker::poke() {
  if (resume_planned_ || condition_ == nullptr || !(*condition_)()) return;
  resume_planned_ = true;
  around_.world.timeline.after(around_.world.prng.duration(Duration(0), microseconds(20)), [this] {
    // Not deliver(): nothing may run in between.
    const auto resume = [this] {
      resume_planned_ = false;
      if (condition_ == nullptr) return;
      fiber_->resume();
      if (!fiber_->finished() || dead_) return;
      finish();
    };
    if (ended_ || dead_) return;
    stopped_ ? backlog_.push_back(resume) : resume();
  });
}

void Worker::tick() {
  if (ended_ || dead_) return;
  watch_waits();
  report(RosterEvent::Alive{id()});
  around_.world.timeline.after(around_.world.scenario.heartbeat / 4,
                               [this] { deliver([this] { tick(); }); });
}

void Worker::watch_waits() {
  const Instant since = std::max(waiting_since_, continued_);
  const Duration timeout = around_.world.scenario.timeout;
  const auto hangs = [&](const std::string& what) {
    around_.world.violate(Promise::kS7,
                          fmt::format("member {} waits {}", pliant::to_string(id()), what));
  };
  if (waiting_ == Waiting::kOperation) {
    if (time() - since > timeout + kSlack)
      hangs("for an operation longer than its deadline");
    else if (newer_view() && time() - std::max(since, newest_since_) > kSlack)
      hangs(fmt::format("for an operation of epoch {} although epoch {} is known", installed_epoch_,
                        newest_epoch_));
  }
  if (waiting_ == Waiting::kView && paused_.empty() && time() - since > timeout + kSlack)
    hangs("for a view without end");
}

// ---- Operations -------------------------------------------------------------------------------

Error Worker::stale() const {
  return {Code::kStaleEpoch,
          fmt::format("the view changed: epoch {} is over", installed_epoch_),
          {},
          view_.epoch};
}

void Worker::check_error(const Status& status, const Group& group) {
  if (status.ok() || dead_) return;
  const Error& error = status.error();
  const bool blames = error.code == Code::kPeerLost || error.code == Code::kTimeout;
  if (blames && error.peer == PeerId{} && group.size() > 1)
    around_.world.violate(Promise::kS7, "an error names no peer: " + error.message);
  if (blames && error.peer != PeerId{}) suspect(error.peer, error.message);
}

// Said again to a coordinator that comes back: it keeps no suspicions.
void Worker::suspect(PeerId peer, const std::string& reason) {
  suspects_.insert(peer);
  report(RosterEvent::Suspected{id(), peer, reason});
}

Status Worker::run(const Operation& operation, const Group& group, const std::byte** result) {
  dawdle();
  if (dead_) return Error{Code::kCancelled, "killed", {}, {}};
  if (newer_view()) return stale();
  auto begun = executor_->begin(operation, group);
  if (!begun) return begun.error();
  Execution& execution = **begun;
  if (!execution.runs_alone()) executor_->adopt(execution, time());
  if (!execution.finished()) {
    const std::span<const std::byte> output(static_cast<const std::byte*>(operation.output),
                                            operation.count * size_of(operation.dtype));
    outputs_.push_back(output);
    wait_until(Waiting::kOperation, [&] { return execution.finished(); });
    std::erase_if(outputs_, [&](const auto& one) { return one.data() == output.data(); });
  }
  Status status = execution.take_status();
  check_error(status, group);
  if (result != nullptr) *result = execution.result();
  executor_->release(execution);
  return status;
}

void Worker::start(const Operation& operation, const Group& group,
                   std::function<void(const Status&, const std::byte*)> done) {
  dawdle();
  if (dead_) return done(Error{Code::kCancelled, "killed", {}, {}}, nullptr);
  if (newer_view()) return done(stale(), nullptr);
  const bool transfer = operation.name.starts_with("pliant/state/") && group.self != 0;
  auto* const output = static_cast<std::byte*>(operation.output);
  outputs_.emplace_back(output, operation.count * size_of(operation.dtype));
  auto begun = executor_->begin(
      operation, group,
      [this, done, transfer, output, group](const Status& status, const std::byte* result) {
        std::erase_if(outputs_, [&](const auto& one) { return one.data() == output; });
        check_error(status, group);
        if (status.ok() && transfer && !dead_ && around_.take_damage()) {
          around_.world.note(fmt::format("the state of {} is damaged", pliant::to_string(id())));
          damaged_ = true;
          output[0] ^= std::byte{0x10};
        }
        done(status, result);
      });
  if (!begun) {
    std::erase_if(outputs_, [&](const auto& one) { return one.data() == output; });
    return done(begun.error(), nullptr);
  }
  if (!(*begun)->finished()) executor_->adopt(**begun, time());
}

void Worker::wait(const std::atomic<bool>& done) {
  wait_until(Waiting::kOperation, [&] { return done.load(); });
  // A killed process waits for nothing, but its memory is still referred to.
  while (!done.load()) {
    executor_->cancel_all({Code::kCancelled, "killed", {}, {}});
    PLIANT_CHECK(executor_->advance_all(time()) || done.load(), "a cancelled operation ends");
  }
}

Result<std::byte*> Worker::place(PeerId from, const Frame& frame) {
  return executor_->place(from, frame);
}
void Worker::arrived(PeerId from, const Frame& frame, std::byte* payload) {
  executor_->arrived(from, frame, payload);
}
void Worker::sent(uint64_t cookie) { executor_->sent(cookie); }

void Worker::lost(PeerId peer, const Error& error) {
  const Error told{error.code, fmt::format("{} is lost: {}", view_.describe(peer), error.message),
                   peer, view_.epoch};
  if (!executor_->has_said_goodbye(peer)) {
    lost_peers_.insert(peer);
    suspect(peer, error.message);
  }
  executor_->lost(peer, told);
}

void Worker::stale_write(std::span<const std::byte> memory, const Frame& frame) {
  for (const auto& output : outputs_)
    if (overlap(output, memory))
      around_.world.violate(Promise::kS6,
                            fmt::format("a message of epoch {} is written into the result of an "
                                        "operation of epoch {} at member {}",
                                        frame.epoch, installed_epoch_, pliant::to_string(id())));
}

// ---- Views ------------------------------------------------------------------------------------

void Worker::enter_view(const View& view) {
  view_ = view;
  std::vector<PeerId> members;
  for (const pliant::Member& member : view_.members) members.push_back(member.id);
  group_ = make_group(members, id(), view_.epoch);
  installed_epoch_ = number(view_.epoch);
  newest_epoch_ = std::max(newest_epoch_, installed_epoch_);
  around_.judge.installed(index_, view);
}

void Worker::view_decided(const ViewDecided& decided) {
  paused_.clear();
  pending_.view = decided.view;
  pending_.gone.insert(pending_.gone.end(), decided.gone.begin(), decided.gone.end());
  newest_epoch_ = number(decided.view.epoch);
  newest_since_ = time();
  executor_->interrupt(stale());
}

Result<ViewChange> Worker::await_view() {
  dawdle();
  const Duration timeout = around_.world.scenario.timeout;
  Instant give_up = time() + timeout;
  wait_until(Waiting::kView, [&] {
    if (!paused_.empty()) give_up = time() + timeout;
    return newer_view() || !out_.ok() || time() > give_up;
  });
  if (dead_) return Error{Code::kCancelled, "killed", {}, {}};
  if (!newer_view()) {
    if (!out_.ok()) return out_.error();
    return Error{Code::kTimeout, "the coordinator has not decided a new view", {}, view_.epoch};
  }
  return std::exchange(pending_, {});
}

SharedPlace Worker::place_of(const std::byte* result, size_t bytes) {
  World& world = around_.world;
  if (!world.scenario.shares_results()) return {};
  world.shared_results.emplace_back(result, result + bytes);
  return {id().packed(), world.shared_results.size() - 1};
}

const std::byte* Worker::at(const SharedPlace& place) {
  ++around_.world.handed_on;
  return around_.world.shared_results.at(place.offset).data();
}

void Worker::install(const ViewChange& change) {
  for (const pliant::Member& member : change.view.members)
    if (member.id != id()) transport_->add_peer(member);
  executor_->install(change.view.epoch, {});
  suspects_ = lost_peers_;  // who was merely late may be on time in this view
  enter_view(change.view);
  if (newest_epoch_ != installed_epoch_) executor_->interrupt(stale());
}

void Worker::tell(const Message& message) {
  if (const auto* progress = std::get_if<Progress>(&message))
    report(RosterEvent::Progress{progress->step});
  if (const auto* recovered = std::get_if<Recovered>(&message))
    report(RosterEvent::Recovered{
        .epoch = recovered->epoch, .step = recovered->step, .incomplete = recovered->incomplete});
}

// ---- The line to the coordinator --------------------------------------------------------------

void Worker::dial() {
  if (ended_ || dead_ || dialing_) return;
  if (!around_.coordinator.up()) {
    dialing_ = true;
    around_.world.timeline.after(retry_, [this] {
      deliver([this] {
        dialing_ = false;
        dial();
      });
    });
    retry_ = std::min(2 * retry_, kRetryMax);
    return;
  }
  retry_ = milliseconds(5);
  life_ = around_.coordinator.life();
  report(RosterEvent::Joined{self_, number(known_.epoch)});
  for (const PeerId peer : suspects_)
    report(RosterEvent::Suspected{id(), peer, "was lost while the coordinator was away"});
}

void Worker::coordinator_crashed() {
  if (ended_) return;
  around_.world.timeline.after(around_.world.prng.duration(Duration(0), milliseconds(3)), [this] {
    deliver([this] {
      if (life_ == around_.coordinator.life()) return;
      life_ = 0;
      dial();
    });
  });
}

void Worker::report(const RosterEvent::Any& event) {
  if (dead_ || ended_ || life_ == 0) return;
  to_coordinator_.send(
      [this, life = life_, event] { around_.coordinator.from_worker(life, event); });
}

void Worker::tell_worker(const Message& message) {
  if (ended_) return;
  from_coordinator_.send([this, life = around_.coordinator.life(), message] {
    // A connection that broke delivers nothing any more.
    if (life != around_.coordinator.life()) return;
    deliver([this, message] { on_message(message); });
  });
}

void Worker::block_control() {
  to_coordinator_.block();
  from_coordinator_.block();
}

void Worker::unblock_control() {
  to_coordinator_.unblock();
  from_coordinator_.unblock();
}

void Worker::on_message(const Message& message) {
  if (const auto* decided = std::get_if<ViewDecided>(&message)) {
    take_view(*decided);
  } else if (const auto* changed = std::get_if<ViewChanged>(&message)) {
    take_change(*changed);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    out_ = Error{Code::kCancelled, refused->reason, {}, view_.epoch};
    executor_->interrupt(out_.error());
  } else if (const auto* others = std::get_if<Meet>(&message)) {
    meet(others->members);
  } else if (const auto* paused = std::get_if<Paused>(&message)) {
    if (member_) paused_ = paused->reason;
  }
}

void Worker::take_view(const ViewDecided& decided) {
  if (decided.view.epoch <= known_.epoch && test_defect() != Defect::kViewTwice) return;
  if (!member_ && decided.view.rank_of(id()) < 0) return;
  known_ = decided.view;
  if (!member_) {
    member_ = true;
    first_view_ = decided.view;
  } else if (!first_view_ || first_view_->epoch < decided.view.epoch) {
    view_decided(decided);
  }
}

void Worker::take_change(const ViewChanged& changed) {
  if (!member_ || changed.delta.epoch <= known_.epoch) return;
  const auto decided = complete(changed, known_);
  if (decided) return take_view(*decided);
  around_.world.note(fmt::format("{} asks for the whole view: {}", pliant::to_string(id()),
                                 decided.error().message));
  report(RosterEvent::Joined{self_, number(known_.epoch)});
}

void Worker::meet(const std::vector<pliant::Member>& members) {
  std::vector<PeerId> met;
  for (const pliant::Member& member : members) {
    if (member.id == id()) continue;
    transport_->add_peer(member);
    met.push_back(member.id);
  }
  report(RosterEvent::Met{id(), met});
}

}  // namespace pliant::sim
