#include "pliant/runtime/engine.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "pliant/base/fence.h"
#include "pliant/base/log.h"
#include "pliant/base/thread.h"

namespace pliant {
namespace {
// How long a caller goes on trying when nothing moves, before it sleeps. Longer than a peer's time
// slice, or every wait in a crowd would end in a costly wake-up.
constexpr Duration kPatience = std::chrono::milliseconds(5);
// The same for the background thread, which shares the cores with the computation.
constexpr Duration kBackgroundPatience = std::chrono::microseconds(200);
// Before the first view; also that of a session alone.
constexpr Epoch kFirstEpoch{1};
// Stands for a view that this member will never see.
constexpr uint32_t kNoEpoch = UINT32_MAX;
constexpr Duration kGoodbyeWait = std::chrono::seconds(2);
constexpr int kYieldsBetweenClocks = 16;
constexpr Duration kSilenceMin = std::chrono::seconds(1);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  sched_yield();
#endif
}

int cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;
}
}  // namespace

Engine::Engine(const SessionOptions& options) : options_(options) {}

Result<std::unique_ptr<Engine>> Engine::open(const SessionOptions& options, Planner planner) {
  std::unique_ptr<Engine> engine(new Engine(options));
  engine->planner_ = std::move(planner);
  if (Status joined = engine->join(); !joined) return joined.error();
  return engine;
}

Status Engine::join() {
  auto segment = Segment::create(options_.heap_bytes_max, options_.self.slot);
  if (!segment) return segment.error();
  segment_ = std::move(*segment);
  Member self{.id = options_.self,
              .pid = getpid(),
              .host = options_.host,
              .address = options_.address,
              .port = 0,
              .local_name = ""};
  if (options_.coordinator.empty()) {
    make_executor(nobody_);
    enter_view({kFirstEpoch, {self}});
    return {};
  }
  PLIANT_TRY(open_transports(self));
  auto control = ControlLink::join(loop_, options_, self);
  if (!control) return control.error();
  control_ = std::move(*control);
  const std::lock_guard guard(loop_);
  candidate_ = control_->candidate();
  ready_ = !candidate_;
  for (const Member& member : control_->view().members)
    if (member.id != options_.self) transports_->add_peer(member);
  if (!candidate_) executor_->install(control_->view().epoch, {});
  // A candidate stands behind the present members until it is one.
  enter_view(control_->view());
  if (options_.transport == TransportChoice::kShm && !world_.one_host())
    return invalid("transport shm reaches one host only, and this job has several; use auto");
  if (!candidate_) PLIANT_TRY(meet_local_peers());
  control_->watch({.on_lost = [this](PeerId peer, const Error& error) { lost(peer, error); },
                   .on_coordinator_gone =
                       [](const Error& error) {
                         log(LogLevel::kInfo, "the coordinator is gone: " + error.message);
                       },
                   .on_view = [this](const ViewDecided& decided) { view_decided(decided); },
                   .on_meet = [this](const std::vector<Member>& members) { meet(members); },
                   .on_paused =
                       [this](const std::string& reason) {
                         paused_ = reason;
                         log(LogLevel::kInfo, "the job is paused: " + reason);
                       },
                   .on_out = [this](const Error& error) { out_of_job(error); }});
  if (options_.life_fd >= 0) {
    auto life = LifeHold::adopt(Fd(options_.life_fd));
    // A program between the agent and us may have closed it: death is then seen a little later.
    if (life) life_ = std::move(*life);
  }
  if (options_.elastic)
    termination_ = std::make_unique<TerminationNotice>(loop_, [this] { give_notice(); });
  thread_ = std::thread([this] { progress(); });
  return {};
}

void Engine::enter_view(const View& view) {
  view_ = view;
  std::vector<PeerId> members;
  for (const Member& member : view_.members) members.push_back(member.id);
  world_ = make_group(members, options_.self, view_.epoch);
  installed_epoch_ = number(view_.epoch);
  if (newest_epoch_.load() < installed_epoch_) newest_epoch_.store(installed_epoch_);
  // With a core for each rank a waiting one may keep its own; otherwise it soon gives it away.
  spins_ = static_cast<int>(world_.local.size()) <= cores() ? 4000 : 4;
}

// Where a network is cut between two members that both reach the coordinator, only they can know.
// They wait a little longer than the coordinator does, which names who is silent towards everybody.
Duration Engine::silence_max() const {
  return options_.elastic ? std::max(kSilenceMin, 2 * options_.heartbeat) : kSilenceMax;
}

// A peer that has the view earlier may send its first message while we still wait for ours: whoever
// listens must be able to take it.
Status Engine::open_transports(Member& self) {
  const TransportOptions wanted{.self = options_.self,
                                .job = options_.job,
                                .token = options_.token,
                                .epoch = kFirstEpoch,
                                .use_shm = options_.transport != TransportChoice::kTcp,
                                .use_tcp = options_.transport != TransportChoice::kShm,
                                .address = options_.address,
                                .connections = static_cast<size_t>(options_.connections),
                                .silence_max = silence_max()};
  const std::lock_guard guard(loop_);
  auto transports = Transports::open(loop_, *this, segment_.get(), wanted);
  if (!transports) return transports.error();
  transports_ = std::move(*transports);
  transports_->describe_self(self);
  if (ShmTransport* shm = transports_->shm(); shm != nullptr)
    host_ = std::make_unique<HostExchange>(
        HostMemory{.own = segment_.get(),
                   .segment_of = [shm](PeerId peer) { return shm->segment_of(peer); },
                   .wake = [shm](PeerId peer) { shm->wake(peer); },
                   .aside = [shm](auto task) { return shm->aside(std::move(task)); },
                   .core = [] { return static_cast<unsigned>(std::max(0, sched_getcpu())); }});
  if (host_ && options_.elastic) host_->keep_outputs_private();
  make_executor(*transports_);
  return {};
}

void Engine::make_executor(Transport& transport) {
  executor_ = std::make_unique<Executor>(
      transport, host_.get(),
      Executor::Options{.self = options_.self,
                        .epoch = kFirstEpoch,
                        .timeout = options_.timeout,
                        .plan = planner_,
                        .describe = [this](PeerId peer) { return describe(peer); }});
  store_ = std::make_unique<PeerStore>(transport, kFirstEpoch);
}

// Shared memory is mapped before the first operation, so that none has to wait for it.
Status Engine::meet_local_peers() {
  if (transports_->shm() == nullptr) return {};
  const Instant give_up = now() + options_.join_timeout;
  for (const Rank rank : world_.local) {
    const PeerId peer = world_.peer(rank);
    while (transports_->shm()->segment_of(peer) == nullptr) {
      if (!first_loss_.ok()) return first_loss_.error();
      if (now() > give_up)
        return Error{Code::kTimeout,
                     fmt::format("{} did not open its shared memory within {:.0f} s",
                                 describe(peer), seconds(options_.join_timeout)),
                     peer, view_.epoch};
      if (loop_.turn()) continue;
      loop_.unlock();
      loop_.wait(std::chrono::milliseconds(10));
      loop_.lock();
    }
  }
  return {};
}

Engine::~Engine() {
  if (!thread_.joinable()) {
    const std::lock_guard guard(loop_);
    if (executor_) executor_->cancel_all({Code::kCancelled, "the session ends", {}, {}});
    control_.reset();
    transports_.reset();
    return;
  }
  {
    const std::lock_guard guard(loop_);
    executor_->cancel_all({Code::kCancelled, "the session ends", {}, {}});
    executor_->advance_all(now());
    store_->cancel_all({Code::kCancelled, "the session ends", {}, {}});
    std::vector<PeerId> peers;
    for (const PeerId peer : world_.members)
      if (peer != options_.self) peers.push_back(peer);
    // In an elastic job a loss is the coordinator's to tell.
    const PeerId lost = first_loss_.ok() || options_.elastic ? PeerId{} : first_loss_.error().peer;
    executor_->say_goodbye(peers, executor_->has_said_goodbye(lost) ? PeerId{} : lost);
  }
  // What was handed to the transports must be on its way before the process may end.
  const Instant give_up = now() + kGoodbyeWait;
  while (!drive([&] { return executor_->goodbye_said() || now() > give_up; })) {
  }
  {
    const std::lock_guard guard(loop_);
    termination_.reset();
    if (notice_) loop_.cancel(*notice_);
    control_->leave();
    stopping_ = true;
  }
  nudge();
  thread_.join();
  const std::lock_guard guard(loop_);
  control_.reset();
  transports_.reset();
}

// ---- Who does the work ------------------------------------------------------------------------

bool Engine::step(Instant now) {
  const bool turned = loop_.turn();
  if (!meeting_.empty() && control_) report_met(*control_);
  const bool polled = transports_->poll();
  const bool advanced = executor_->advance_all(now);
  return turned || polled || advanced;
}

void Engine::nudge() {
  loop_.post([] {});
}

uint32_t Engine::wake_bits() const {
  return kWakeForMessages | (executor_->waits_for_host() ? kWakeForHost : 0u);
}

void Engine::progress() {
  run_promptly();
  // The lock belongs to a thread: this one lives as long as the session.
  if (life_) {
    if (const Status held = life_->hold(); !held)
      log(LogLevel::kInfo, "no life lock: " + held.error().message);
  }
  loop_.lock();
  Instant last_move = now();
  while (!stopping_) {
    const Instant time = now();
    const bool moved = pollers_ == 0 && step(time);
    if (moved) last_move = time;
    const bool impatient = !executor_->idle() && time - last_move < kBackgroundPatience;
    if (moved || (pollers_ == 0 && impatient)) {
      loop_.unlock();
      moved ? relax() : static_cast<void>(sched_yield());
      loop_.lock();
      continue;
    }
    sleeping_ = true;
    std::atomic<uint32_t>& asleep = segment_->header().asleep;
    const uint32_t bits = wake_bits();
    if (pollers_ == 0) asleep.store(bits, std::memory_order_seq_cst);
    (bits & kWakeForHost) != 0 ? heavy_fence() : full_fence();
    // Whoever changed something before it could see the flag does not wake us: look once more.
    if (pollers_ > 0 || !step(now())) {
      const Duration longest =
          executor_->idle() ? Duration(std::chrono::seconds(60)) : std::chrono::milliseconds(20);
      // Operations that nobody waits for depend on this thread alone.
      if (pollers_ == 0 && !executor_->idle()) loop_.arm();
      loop_.unlock();
      loop_.wait(longest);
      loop_.lock();
    }
    sleeping_ = false;
    if (pollers_ == 0) asleep.store(0, std::memory_order_relaxed);
    if (pollers_ > 0) loop_.turn();  // takes the nudge
    last_move = now();
  }
  loop_.unlock();
  if (life_) life_->release();
}

void Engine::begin_polling() {
  if (pollers_++ == 0) segment_->header().asleep.store(0, std::memory_order_relaxed);
}

// The background thread returns from its wait soon after the last caller has left, looks for what
// was announced to nobody meanwhile, and raises its flags again; see Loop::Inline.
void Engine::end_polling() {
  if (--pollers_ == 0 && !executor_->idle()) nudge();
}

template <typename Done>
bool Engine::drive(Done done) {
  const Loop::Inline inline_scope(loop_);
  loop_.lock();
  begin_polling();
  Instant last_move = now();
  bool finished = false;
  for (int idle = 0; !finished;) {
    const bool moved = step(last_move);
    finished = done();
    if (finished) break;
    loop_.unlock();
    if (moved) {
      idle = 0;
    } else if (++idle < spins_) {
      relax();
    } else {
      sched_yield();
    }
    const bool look_at_clock = moved || idle % kYieldsBetweenClocks == 0;
    const Instant time = look_at_clock ? now() : last_move;
    loop_.lock();
    if (moved) last_move = time;
    if (time - last_move > kPatience) break;
  }
  end_polling();
  finished = finished || done();
  loop_.unlock();
  return finished;
}

Status Engine::run(const Operation& operation, const Group& group, const std::byte** result) {
  Execution* execution = nullptr;
  bool alone = false;
  {
    const std::lock_guard guard(loop_);
    if (newer_view() || candidate_) return stale();
    auto begun = executor_->begin(operation, group);
    if (!begun) return begun.error();
    execution = *begun;
    alone = execution->runs_alone();
    if (!alone) executor_->adopt(*execution, now());
  }
  if (!execution->finished()) {
    if (alone) {
      advance_alone(*execution);
    } else if (!drive([&] { return execution->finished(); })) {
      execution->wait_finished();
    }
  }
  Status status = execution->take_status();
  if (!status) report(status.error());
  if (result != nullptr) *result = execution->result();
  if (execution->release_needs_loop()) {
    const std::lock_guard guard(loop_);
    executor_->release(*execution);
  } else {
    executor_->release(*execution);
  }
  return status;
}

// An operation in shared memory needs nobody else: no lock, no system call while it moves.
void Engine::advance_alone(Execution& execution) {
  Instant idle_since{};
  for (int idle = 0;;) {
    const bool moved = execution.advance();
    if (execution.finished()) return;
    if (moved) {
      idle = 0;
      idle_since = {};
      continue;
    }
    if (++idle < spins_) {
      relax();
      continue;
    }
    sched_yield();
    if ((idle - spins_) % kYieldsBetweenClocks != 0) continue;
    const Instant time = now();
    if (idle_since == Instant{}) idle_since = time;
    if (time - idle_since > kPatience) break;
  }
  {
    const std::lock_guard guard(loop_);
    executor_->adopt(execution, now());
  }
  nudge();
  execution.wait_finished();
}

// The launcher names the root of a failure, also where only a deadline tells of it.
void Engine::report_held(const Error& error) {
  if (error.code == Code::kTimeout && error.peer != PeerId{} && control_)
    control_->report_lost(error.peer, error.message);
}

void Engine::report(const Error& error) {
  const std::lock_guard guard(loop_);
  report_held(error);
}

void Engine::start(const Operation& operation, const Group& group, Execution::Done done) {
  const std::lock_guard guard(loop_);
  const auto end = [this, done](const Status& status, const std::byte* result) {
    if (!status.ok()) report_held(status.error());
    done(status, result);
    ++ended_;
    one_ended_.notify_all();
  };
  if (newer_view() || candidate_) return end(stale(), nullptr);
  auto begun = executor_->begin(operation, group, end);
  if (!begun) return end(begun.error(), nullptr);
  if ((*begun)->finished()) return;
  executor_->adopt(**begun, now());
  if (sleeping_) nudge();
}

void Engine::wait(const std::atomic<bool>& done) {
  if (done.load(std::memory_order_acquire)) return;
  if (!drive([&] { return done.load(std::memory_order_acquire); }))
    done.wait(false, std::memory_order_acquire);
}

uint64_t Engine::await_ended(uint64_t known, Duration longest) {
  const Instant give_up = now() + longest;
  if (transports_) drive([&] { return ended_ != known; });  // alone, operations end at once
  std::unique_lock guard(loop_);
  one_ended_.wait_until(guard, give_up, [&] { return ended_ != known; });
  return ended_;
}

// ---- Values of peers --------------------------------------------------------------------------

std::shared_ptr<ValueRequest> answered_request(Result<StoredValue> value) {
  auto request = std::make_shared<ValueRequest>();
  request->value = std::move(value);
  request->done = true;
  return request;
}

// The copy is made without the loop, which others need meanwhile.
Status Engine::save(std::string_view name, uint64_t version, std::span<const Bytes> parts,
                    int window) {
  size_t bytes = 0;
  for (const Bytes part : parts) bytes += part.size();
  PeerStore::Value value =
      with_loop([&] { return store_->spare(name, bytes, static_cast<size_t>(window)); });
  value.clear();
  value.reserve(bytes);
  for (const Bytes part : parts) value.insert(value.end(), part.begin(), part.end());
  return with_loop(
      [&] { return store_->save(name, version, std::move(value), static_cast<size_t>(window)); });
}

std::shared_ptr<ValueRequest> Engine::request(PeerId peer, std::string_view name,
                                              uint64_t version) {
  const std::lock_guard guard(loop_);
  if (peer == options_.self) return answered_request(store_->get(name, version));
  auto request = std::make_shared<ValueRequest>();
  request->engine = this;
  const auto timer = std::make_shared<std::optional<Loop::TimerId>>();
  const auto finish = [this, request, timer, peer](Result<StoredValue> value) {
    if (request->done.load()) return;
    if (*timer) loop_.cancel(**timer);
    request->value = std::move(value);
    if (!*request->value && request->value->code() == Code::kInvalid)
      request->value = Error{Code::kInvalid,
                             fmt::format("{} {}", describe(peer), request->value->error().message),
                             peer, view_.epoch};
    request->done.store(true, std::memory_order_release);
    request->done.notify_all();
  };
  const uint64_t number = store_->request(peer, name, version, finish);
  if (request->done.load()) return request;
  *timer =
      loop_.at(now() + options_.timeout, [this, timer, number, peer, text = std::string(name)] {
        timer->reset();
        store_->abandon(number,
                        Error{Code::kTimeout,
                              fmt::format("{} did not answer a request for '{}' within {:.1f} s",
                                          describe(peer), text, seconds(options_.timeout)),
                              peer, view_.epoch});
      });
  if (sleeping_) nudge();
  return request;
}

// ---- Views ------------------------------------------------------------------------------------

Error Engine::stale() const {
  if (candidate_)
    return {Code::kStaleEpoch,
            "this worker is not a member yet: it becomes one in begin_step()",
            {},
            {}};
  return {Code::kStaleEpoch,
          fmt::format("the view changed: epoch {} is over", installed_epoch_),
          {},
          view_.epoch};
}

// Training goes on meanwhile; whoever is reachable by then can be in the next view.
void Engine::meet(const std::vector<Member>& members) {
  for (const Member& member : members) {
    if (member.id == options_.self) continue;
    transports_->add_peer(member);
    meeting_.push_back(member);
  }
  report_met(*control_);
}

void Engine::report_met(ControlLink& control) {
  if (!ready_) return;
  std::vector<PeerId> met;
  ShmTransport* const shm = transports_->shm();
  std::erase_if(meeting_, [&](const Member& member) {
    const bool local = shm != nullptr && member.id.host == options_.self.host;
    if (local && shm->segment_of(member.id) == nullptr) return false;
    met.push_back(member.id);
    return true;
  });
  if (!met.empty()) control.met(std::move(met));
}

void Engine::view_decided(const ViewDecided& decided) {
  paused_.clear();
  pending_.view = decided.view;
  pending_.gone.insert(pending_.gone.end(), decided.gone.begin(), decided.gone.end());
  newest_epoch_.store(number(decided.view.epoch), std::memory_order_release);
  // Who is out may still be connected, and silent.
  for (const Departure& departure : decided.gone)
    store_->let_go(departure.peer,
                   {Code::kPeerLost, describe(departure.peer) + " is not part of the job any more",
                    departure.peer, view_.epoch});
  executor_->interrupt(stale());
  view_changed_.notify_all();
  if (sleeping_) nudge();
}

void Engine::out_of_job(const Error& error) {
  out_ = Error{Code::kCancelled, error.message, {}, view_.epoch};
  newest_epoch_.store(kNoEpoch, std::memory_order_release);
  executor_->interrupt(stale());
  view_changed_.notify_all();
}

// This process was told to end: the next view does without it, or the coordinator lets go of it.
void Engine::give_notice() {
  if (!out_.ok()) return;
  control_->tell(Notice{options_.self.host, options_.self.slot, "it was told to end by signal 15"});
  // A coordinator that is away just now hears it later.
  notice_ = loop_.at(now() + options_.heartbeat, [this] { give_notice(); });
}

Result<ViewChange> Engine::await_view() {
  Instant give_up = now() + (candidate_ ? options_.join_timeout : options_.timeout);
  if (!ready_) {
    const std::lock_guard guard(loop_);
    ready_ = true;
    report_met(*control_);
  }
  // Most come within milliseconds: look for a while before sleeping.
  drive([&] { return newer_view(); });
  std::unique_lock guard(loop_);
  while (out_.ok() && !newer_view()) {
    if (!paused_.empty()) give_up = now() + options_.timeout;
    if (now() > give_up)
      return Error{Code::kTimeout,
                   fmt::format("members were lost, and the coordinator at {} has not decided a new "
                               "view within {}",
                               options_.coordinator, human_duration(options_.timeout)),
                   {},
                   view_.epoch};
    view_changed_.wait_for(guard, std::chrono::milliseconds(20));
  }
  if (!out_.ok()) return out_.error();
  return std::exchange(pending_, {});
}

void Engine::install(const ViewChange& change) {
  const std::lock_guard guard(loop_);
  ShmTransport* const shm = transports_ ? transports_->shm() : nullptr;
  const auto shares_memory = [&](PeerId peer) {
    return shm != nullptr && peer != options_.self && peer.host == options_.self.host;
  };
  std::vector<PeerId> at_large;
  for (const Departure& departure : change.gone) {
    const PeerId peer = departure.peer;
    if (!departure.ended && shares_memory(peer) && shm->linked(peer)) at_large.push_back(peer);
  }
  std::vector<PeerId> members;
  for (const Member& member : change.view.members) {
    if (member.id != options_.self) transports_->add_peer(member);
    if (shares_memory(member.id) && view_.rank_of(member.id) >= 0) members.push_back(member.id);
  }
  executor_->install(change.view.epoch, {at_large, members});
  keeps_departed_ = true;
  candidate_ = false;
  enter_view(change.view);
  // Only operations on this rank's own thread could have changed it meanwhile.
  if (newest_epoch_.load() != installed_epoch_) executor_->interrupt(stale());
}

bool Engine::left_behind() {
  if (!control_ || !options_.elastic) return false;
  if (control_->overslept()) [[unlikely]] {
    const std::lock_guard guard(loop_);
    control_->hear_now();
  }
  if (!newer_view()) return false;
  const std::lock_guard guard(loop_);
  return !out_.ok() || pending_.view.rank_of(options_.self) < 0;
}

HandedIn Engine::handed_in(PeerId peer, const Operation& operation, const Group& group) {
  const std::lock_guard guard(loop_);
  return executor_->handed_in(peer, operation, group);
}

SharedPlace Engine::place_of(const std::byte* result, size_t bytes) {
  const std::lock_guard guard(loop_);
  ShmTransport* const shm = transports_ ? transports_->shm() : nullptr;
  const auto owner = shm != nullptr ? shm->owner_of(result, bytes) : std::nullopt;
  if (!owner) return {};
  return {owner->packed(), shm->segment_of(*owner)->offset_of(result)};
}

const std::byte* Engine::at(const SharedPlace& place) {
  const std::lock_guard guard(loop_);
  ShmTransport* const shm = transports_ ? transports_->shm() : nullptr;
  Segment* const segment = shm != nullptr ? shm->segment_of(PeerId::unpack(place.owner)) : nullptr;
  return segment != nullptr ? segment->at(place.offset) : nullptr;
}

bool Engine::forget_departed(const Group& group) {
  const std::lock_guard guard(loop_);
  keeps_departed_ = false;
  departed_in_use_ = executor_->forget_departed(group);
  drop_departed();
  return departed_in_use_.empty();
}

void Engine::drop_departed() {
  if (keeps_departed_ || !transports_ || transports_->shm() == nullptr) return;
  std::vector<PeerId> kept = departed_in_use_;
  kept.insert(kept.end(), world_.members.begin(), world_.members.end());
  transports_->shm()->drop_lost(kept);
}

void Engine::tell(const Message& message) {
  const std::lock_guard guard(loop_);
  if (control_) control_->tell(message);
}

// ---- Messages ---------------------------------------------------------------------------------

Result<std::byte*> Engine::place(PeerId from, const Frame& frame) {
  return PeerStore::owns(frame) ? store_->place(from, frame) : executor_->place(from, frame);
}

void Engine::arrived(PeerId from, const Frame& frame, std::byte* payload) {
  PeerStore::owns(frame) ? store_->arrived(from, frame, payload)
                         : executor_->arrived(from, frame, payload);
}

void Engine::sent(uint64_t cookie) {
  PeerStore::owns(cookie) ? store_->sent(cookie) : executor_->sent(cookie);
}

void Engine::lost(PeerId peer, const Error& error) {
  const Error told{error.code, fmt::format("{} is lost: {}", describe(peer), error.message), peer,
                   view_.epoch};
  if (first_loss_.ok()) first_loss_ = told;
  if (control_ && executor_ && !executor_->has_said_goodbye(peer))
    control_->report_lost(peer, error.message);
  if (executor_) executor_->lost(peer, told);
  if (store_) store_->lost(peer, told);
  // A closed socket of this host means that the process runs no more: it is the last to go.
  if (executor_ && transports_ && transports_->shm() != nullptr &&
      !transports_->shm()->linked(peer)) {
    executor_->peer_gone(peer);
    // One that was left out alive ends only now; its transport still works on it.
    if (!keeps_departed_ && view_.rank_of(peer) < 0) loop_.post([this] { drop_departed(); });
  }
}

}  // namespace pliant
