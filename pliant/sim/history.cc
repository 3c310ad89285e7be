#include "pliant/sim/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

namespace pliant::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Longer than everything that is waited for on purpose: deadlines, evictions, back-offs.
constexpr Duration kPatience = seconds(30);
constexpr Duration kBeginWithin = seconds(20);
constexpr Duration kStartMin = milliseconds(1);
constexpr Duration kStartMax = milliseconds(30);
constexpr size_t kWorkersMax = 150;  // no more faults from there on

Scenario draw_scenario(const HistoryOptions& options) {
  Scenario drawn = Scenario::draw(options.seed, options.members);
  if (options.constant_batch) drawn.sampler.constant_batch = *options.constant_batch;
  return drawn;
}

}  // namespace

History::History(const HistoryOptions& options)
    : options_(options),
      world_(draw_scenario(options)),
      judge_(world_),
      network_(world_),
      coordinator_(world_, judge_,
                   {.start = [this](PeerId peer, uint32_t number) { start_worker(peer, number); },
                    .signal = [this](PeerId peer, int signal) { signal_worker(peer, signal); },
                    .send =
                        [this](PeerId peer, const Message& message) {
                          if (Worker* const worker = find(peer)) worker->tell_worker(message);
                        },
                    .crashed =
                        [this] {
                          for (const auto& worker : workers_) worker->coordinator_crashed();
                        }}) {
  network_.on_delivery([this] { on_delivery(); });
  if (!options_.calm && !options_.kill_at) draw_faults();
}

History::~History() { workers_.clear(); }

HistoryResult History::run() {
  coordinator_.start();
  const Instant began = world_.timeline.now();
  heal_at_ = began + kBeginWithin;
  bool is_over = false;
  while (world_.violations.empty() && !is_over && world_.timeline.step()) {
    const Instant now = world_.timeline.now();
    if (!begun_ && number(judge_.newest().epoch) > 0) {
      begun_ = true;
      first_delivery_ = world_.deliveries;
      plan_faults();
    }
    if (!world_.healed && now >= heal_at_) heal();
    is_over = world_.healed && reached_goal();
    if (!is_over && world_.healed && now > heal_at_ + kPatience)
      world_.violate(Promise::kS7, "the world has healed and the job does not go on: " + why_not());
  }
  HistoryResult result;
  result.seed = options_.seed;
  result.steps = judge_.steps();
  result.commits = judge_.commits();
  result.deliveries = world_.deliveries - first_delivery_;
  result.redealt = world_.redealt;
  result.handed_on = world_.handed_on;
  result.events = world_.timeline.events();
  result.epochs = number(judge_.newest().epoch);
  result.faults = world_.faults;
  result.ends = world_.ends;
  result.violations = world_.violations;
  if (!result.violations.empty()) result.trace.assign(world_.trace.begin(), world_.trace.end());
  return result;
}

// ---- Faults -----------------------------------------------------------------------------------

void History::draw_faults() {
  Prng& prng = world_.prng;
  const uint64_t count = prng.below(8);
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = static_cast<Kind>(prng.below(kKinds));
    if (prng.chance(60)) {
      fault.delivery = prng.between(1, 1500);
    } else {
      fault.after = prng.duration(Duration(0), milliseconds(600));
    }
    faults_.push_back(fault);
  }
}

void History::plan_faults() {
  const Instant now = world_.timeline.now();
  heal_at_ = now + world_.prng.duration(milliseconds(30), milliseconds(150));
  if (options_.calm || options_.kill_at) return;
  for (const Fault& fault : faults_) {
    heal_at_ = std::max(heal_at_, now + fault.after.value_or(milliseconds(300)) +
                                      world_.prng.duration(milliseconds(10), milliseconds(500)));
    if (fault.after)
      world_.timeline.after(*fault.after, [this, kind = fault.kind] { inject(kind); });
  }
}

void History::on_delivery() {
  if (!begun_ || world_.healed) return;
  const uint64_t number = world_.deliveries - first_delivery_ + 1;
  if (options_.kill_at && *options_.kill_at == number) {
    if (Worker* const worker = pick()) kill(*worker, world_.prng.chance(70));
  }
  for (const Fault& fault : faults_)
    if (fault.delivery && *fault.delivery == number) inject(fault.kind);
}

void History::inject(Kind kind) {
  if (world_.healed || workers_.size() > kWorkersMax) return;
  Worker* const worker = pick();
  if (worker == nullptr) return;
  Prng& prng = world_.prng;
  switch (kind) {
    case Kind::kKill:
      if (running().size() > 1) kill(*worker, true);
      break;
    case Kind::kKillUnseen:
      if (running().size() > 1) kill(*worker, false);
      break;
    case Kind::kKillMany:
      for (uint64_t left = prng.between(2, std::max<uint64_t>(2, running().size() / 2)); left > 0;
           --left)
        if (Worker* const next = pick(); next != nullptr && running().size() > 1)
          kill(*next, prng.chance(70));
      break;
    case Kind::kStop: stop_for_a_while(*worker); break;
    case Kind::kPartition: partition(); break;
    case Kind::kCutOff:
      count("cut_off");
      world_.note(
          fmt::format("{} is cut off from the coordinator", pliant::to_string(worker->id())));
      worker->block_control();
      world_.timeline.after(prng.duration(milliseconds(1), milliseconds(500)),
                            [worker] { worker->unblock_control(); });
      break;
    case Kind::kReset: {
      Worker* const other = pick();
      if (other == worker) break;
      count("reset");
      world_.note(fmt::format("the link between {} and {} is reset",
                              pliant::to_string(worker->id()), pliant::to_string(other->id())));
      network_.reset(worker->id(), other->id());
      break;
    }
    case Kind::kCoordinator: crash_coordinator(); break;
    case Kind::kResize: resize(); break;
    case Kind::kDrain:
      if (coordinator_.drain(worker->id()).ok()) count("drain");
      break;
    case Kind::kDamage:
      ++damage_;
      resize();
      break;
  }
}

void History::kill(Worker& worker, bool seen) {
  count(seen ? "kill" : "kill_unseen");
  world_.note(fmt::format("{} is killed{}", pliant::to_string(worker.id()),
                          seen ? "" : ", and no agent sees it"));
  const PeerId peer = worker.id();
  const uint64_t life = coordinator_.life();
  worker.kill();
  Prng& prng = world_.prng;
  // Its connection to the coordinator closes with the others.
  world_.timeline.after(prng.duration(microseconds(100), milliseconds(30)), [this, peer, life] {
    coordinator_.from_worker(life, RosterEvent::Disconnected{peer});
  });
  const Duration late = seen ? prng.duration(microseconds(50), milliseconds(2))
                             : prng.duration(milliseconds(200), milliseconds(800));
  if (seen)
    world_.timeline.after(late, [this, peer] { coordinator_.from_agent(RosterEvent::Died{peer}); });
  world_.timeline.after(late + prng.duration(Duration(0), milliseconds(30)), [this, peer] {
    report_exit(peer, 128 + SIGKILL, "was killed by signal 9 (Killed)");
  });
}

void History::stop_for_a_while(Worker& worker) {
  count("stop");
  world_.note(fmt::format("{} is stopped", pliant::to_string(worker.id())));
  worker.stop();
  // Shorter and longer than the heartbeat; it may be killed meanwhile.
  world_.timeline.after(world_.prng.duration(milliseconds(1), milliseconds(700)), [this, &worker] {
    if (!worker.running() || !worker.stopped()) return;
    world_.note(fmt::format("{} continues", pliant::to_string(worker.id())));
    worker.go_on();
  });
}

void History::partition() {
  Worker* const one = pick();
  Worker* const other = pick();
  if (one == nullptr || one == other) return;
  const PeerId from = one->id();
  const PeerId to = other->id();
  const bool both = world_.prng.chance(50);
  count(both ? "partition" : "partition_one_way");
  world_.note(fmt::format("nothing goes from {} to {}{}", pliant::to_string(from),
                          pliant::to_string(to), both ? " nor back" : ""));
  network_.block(from, to);
  if (both) network_.block(to, from);
  // Sometimes longer than any deadline.
  const Duration time = world_.prng.chance(15)
                            ? world_.scenario.timeout + milliseconds(500)
                            : world_.prng.duration(milliseconds(1), milliseconds(400));
  heal_at_ = std::max(heal_at_, world_.timeline.now() + time + milliseconds(100));
  world_.timeline.after(time, [this, from, to, both] {
    network_.unblock(from, to);
    if (both) network_.unblock(to, from);
  });
}

void History::crash_coordinator() {
  if (!coordinator_.up()) return;
  count("coordinator");
  if (world_.prng.chance(50)) {
    coordinator_.crash_at_next_view();
  } else {
    coordinator_.crash_now();
  }
  world_.timeline.after(world_.prng.duration(milliseconds(1), milliseconds(400)),
                        [this] { coordinator_.restart(); });
}

void History::resize() {
  const Scenario& scenario = world_.scenario;
  const auto size = static_cast<uint32_t>(world_.prng.between(scenario.min, scenario.max));
  if (!coordinator_.resize(size).ok()) return;
  count("resize");
  world_.note(fmt::format("{} members are wanted", size));
  // The next wish may come while this one is being fulfilled.
  if (!world_.prng.chance(30)) return;
  world_.timeline.after(world_.prng.duration(Duration(0), milliseconds(60)), [this] {
    if (!world_.healed) resize();
  });
}

void History::heal() {
  world_.healed = true;
  world_.note("the world heals");
  heal_at_ = world_.timeline.now();
  damage_ = 0;
  network_.unblock_all();
  coordinator_.restart();
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i]->unblock_control();
    if (workers_[i]->running()) workers_[i]->go_on();
  }
}

// ---- Progress ---------------------------------------------------------------------------------

bool History::reached_goal() const { return why_not().empty(); }

std::string History::why_not() const {
  const View& view = judge_.newest();
  for (const auto& worker : workers_) {
    if (!worker->running()) continue;
    const bool in_view = view.rank_of(worker->id()) >= 0;
    if (in_view && worker->committed_since_heal() < options_.steps)
      return fmt::format("member {} has committed {} steps since", pliant::to_string(worker->id()),
                         worker->committed_since_heal());
    if (!in_view && worker->is_member())
      return fmt::format("{} is out of the view and still runs", pliant::to_string(worker->id()));
  }
  for (const pliant::Member& member : view.members) {
    const auto at = std::find_if(workers_.begin(), workers_.end(),
                                 [&](const auto& worker) { return worker->id() == member.id; });
    if (at == workers_.end() || !(*at)->running())
      return fmt::format("{} has ended and is still in epoch {}", pliant::to_string(member.id),
                         number(view.epoch));
  }
  return view.size() == 0 ? "there is no view" : "";
}

// ---- Agents -----------------------------------------------------------------------------------

void History::start_worker(PeerId peer, uint32_t number) {
  world_.timeline.after(world_.prng.duration(kStartMin, kStartMax), [this, peer, number] {
    const pliant::Member self{.id = peer,
                              .pid = static_cast<int32_t>(1000 + number),
                              .host = world_.scenario.hosts.at(peer.host).name,
                              .address = "10.0.0.1",
                              .port = 1,
                              .local_name = ""};
    world_.note(fmt::format("{} starts", pliant::to_string(peer)));
    workers_.push_back(std::make_unique<Worker>(
        Worker::Surroundings{
            .world = world_,
            .network = network_,
            .coordinator = coordinator_,
            .judge = judge_,
            .ended = [this](Worker& worker, int exit_code) { worker_ended(worker, exit_code); },
            .take_damage =
                [this] {
                  if (damage_ == 0) return false;
                  count("damage");
                  return damage_-- > 0;
                }},
        self));
    workers_.back()->begin();
  });
}

void History::signal_worker(PeerId peer, int signal) {
  world_.timeline.after(
      world_.prng.duration(microseconds(50), milliseconds(2)), [this, peer, signal] {
        Worker* const worker = find(peer);
        if (worker == nullptr || !worker->running()) return;
        // A stopped process takes SIGTERM when it continues; ours would take it.
        if (worker->stopped() && signal != SIGKILL) return;
        world_.note(fmt::format("{} gets signal {}", pliant::to_string(peer), signal));
        worker->kill();
        report_exit(peer, 128 + signal, fmt::format("by signal {}", signal));
      });
}

void History::worker_ended(Worker& worker, int exit_code) {
  const PeerId peer = worker.id();
  world_.note(fmt::format("{} exits with {}", pliant::to_string(peer), exit_code));
  network_.end(peer, Network::End::kInOrder);
  world_.timeline.after(world_.prng.duration(microseconds(50), milliseconds(5)),
                        [this, peer, exit_code] {
                          report_exit(peer, exit_code, fmt::format("exited with {}", exit_code));
                        });
}

void History::report_exit(PeerId peer, int exit_code, const std::string& reason) {
  coordinator_.from_agent(
      RosterEvent::Exited{.peer = peer, .pid = 0, .exit_code = exit_code, .reason = reason});
}

Worker* History::find(PeerId peer) {
  for (const auto& worker : workers_)
    if (worker->id() == peer) return worker.get();
  return nullptr;
}

std::vector<Worker*> History::running() {
  std::vector<Worker*> list;
  for (const auto& worker : workers_)
    if (worker->running() && worker->is_member() && !worker->stopped())
      list.push_back(worker.get());
  return list;
}

Worker* History::pick() {
  const std::vector<Worker*> list = running();
  return list.empty() ? nullptr : list[world_.prng.below(list.size())];
}

}  // namespace pliant::sim
