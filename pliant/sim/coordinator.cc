#include "pliant/sim/coordinator.h"

#include <fmt/format.h>

#include <algorithm>

namespace pliant::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

void Line::send(Timeline::Event event) {
  if (blocked_ || !held_.empty()) {
    held_.push_back(std::move(event));
    return;
  }
  last_ = std::max(
      last_, world_.timeline.now() + world_.prng.duration(microseconds(10), microseconds(1500)));
  world_.timeline.at(last_, std::move(event));
}

void Line::unblock() {
  blocked_ = false;
  for (Timeline::Event& event : std::exchange(held_, {})) send(std::move(event));
}

RosterOptions roster_options(const Scenario& scenario) {
  RosterOptions options;
  options.hosts = scenario.hosts;
  options.initial = scenario.initial;
  options.min = scenario.min;
  options.max = scenario.max;
  options.restarts = RosterOptions::kAnyNumber;
  options.places.rest_first = milliseconds(20);
  options.places.rest_max = milliseconds(200);
  options.places.failures_max = 6;
  options.places.failure_window = milliseconds(500);
  options.places.aside_first = milliseconds(300);
  options.places.aside_max = milliseconds(600);
  options.heartbeat = scenario.heartbeat;
  options.join_timeout = std::chrono::seconds(2);
  options.join_batch = milliseconds(20);
  options.leave_timeout = milliseconds(400);
  options.evict_after = milliseconds(600);
  options.line_wait = milliseconds(100);
  options.proven_after = milliseconds(50);
  options.return_wait_min = milliseconds(200);
  return options;
}

Coordinator::Coordinator(World& world, Judge& judge, Callbacks callbacks)
    : world_(world), judge_(judge), callbacks_(std::move(callbacks)) {}

void Coordinator::start() {
  roster_.emplace(roster_options(world_.scenario), world_.timeline.now());
  for (uint32_t host = 0; host < world_.scenario.hosts.size(); ++host)
    handle(RosterEvent::HostReady{host});
}

void Coordinator::from_worker(uint64_t life, const RosterEvent::Any& event) {
  if (!up() || life != life_) return;
  if (const auto* joined = std::get_if<RosterEvent::Joined>(&event))
    herald_.joined(joined->member.id, joined->epoch);
  handle(event);
}

void Coordinator::from_agent(const RosterEvent::Any& event) {
  from_agents_.push_back(event);
  if (up()) handle(event);
}

void Coordinator::handle(const RosterEvent::Any& event) {
  if (roster_->handle(event, world_.timeline.now())) decide();
  plan_tick();
}

void Coordinator::decide() {
  const std::vector<RosterAction::Any> actions = roster_->decide(world_.timeline.now());
  const bool view = std::any_of(actions.begin(), actions.end(), [](const auto& action) {
    return std::holds_alternative<RosterAction::Publish>(action);
  });
  const bool durable = view || std::any_of(actions.begin(), actions.end(), [](const auto& action) {
                         return std::holds_alternative<RosterAction::Start>(action) ||
                                std::holds_alternative<RosterAction::Refuse>(action);
                       });
  if (durable) log_ = roster_->snapshot();
  const bool crash = view && crash_at_next_view_;
  for (const RosterAction::Any& action : actions) act(action, !crash);
  if (crash) crash_now();
}

// `heard`: the workers are told.
void Coordinator::act(const RosterAction::Any& any, bool heard) {
  if (const auto* publish = std::get_if<RosterAction::Publish>(&any)) {
    judge_.published(publish->view);
    if (heard) this->publish(*publish);
  } else if (const auto* meet = std::get_if<RosterAction::Meet>(&any)) {
    for (const PeerId peer : meet->to)
      if (heard) callbacks_.send(peer, Meet{meet->members});
  } else if (const auto* pause = std::get_if<RosterAction::Pause>(&any)) {
    world_.note("coordinator: paused: " + pause->reason);
    for (const PeerId peer : pause->to)
      if (heard) callbacks_.send(peer, Paused{pause->reason});
  } else if (const auto* refuse = std::get_if<RosterAction::Refuse>(&any)) {
    world_.note(
        fmt::format("coordinator refuses {}: {}", pliant::to_string(refuse->peer), refuse->reason));
    if (heard) callbacks_.send(refuse->peer, Refused{refuse->code, refuse->reason});
  } else if (const auto* start = std::get_if<RosterAction::Start>(&any)) {
    callbacks_.start(start->peer, start->number);
  } else if (const auto* signal = std::get_if<RosterAction::Signal>(&any)) {
    callbacks_.signal(signal->peer, signal->signal);
  } else if (const auto* finish = std::get_if<RosterAction::Finish>(&any)) {
    world_.violate(Promise::kS7, "the job ended although it was not over: " + finish->message);
  }
}

void Coordinator::publish(const RosterAction::Publish& publish) {
  std::string text;
  for (const pliant::Member& member : publish.view.members)
    text += fmt::format(" {}", pliant::to_string(member.id));
  for (const Departure& gone : publish.gone)
    text += fmt::format(", without {} ({}{})", pliant::to_string(gone.peer), gone.reason,
                        gone.ended ? ", ended" : "");
  world_.note(fmt::format("coordinator: epoch {}:{}", number(publish.view.epoch), text));
  for (const Herald::Telling& telling : herald_.tell(publish.view, publish.gone, publish.to))
    for (const PeerId peer : telling.to) callbacks_.send(peer, telling.message);
}

void Coordinator::plan_tick() {
  if (!up()) return;
  const auto due = roster_->next_deadline();
  if (!due || (tick_ && *tick_ <= *due)) return;
  tick_ = *due;
  world_.timeline.at(*due, [this, life = life_, due = *due] {
    if (!up() || life != life_ || tick_ != due) return;
    tick_.reset();
    handle(RosterEvent::Tick{});
  });
}

void Coordinator::crash_now() {
  if (!up()) return;
  world_.note("the coordinator crashes");
  roster_.reset();
  tick_.reset();
  crash_at_next_view_ = false;
  ++life_;
  callbacks_.crashed();
}

void Coordinator::restart() {
  crash_at_next_view_ = false;
  if (up()) return;
  auto restored = Roster::restore(roster_options(world_.scenario), log_, world_.timeline.now());
  if (!restored)
    return world_.violate(Promise::kS7,
                          "the coordinator cannot go on: " + restored.error().message);
  world_.note("the coordinator is back");
  roster_.emplace(std::move(*restored));
  herald_ = Herald(roster_->view());
  ++life_;
  for (uint32_t host = 0; host < world_.scenario.hosts.size(); ++host)
    handle(RosterEvent::HostReady{host});
  const std::vector<RosterEvent::Any> ends = from_agents_;
  for (const RosterEvent::Any& event : ends)
    if (up()) handle(event);
}

Status Coordinator::resize(uint32_t size) {
  if (!up()) return invalid("the coordinator is away");
  PLIANT_TRY(roster_->resize(size, world_.timeline.now()));
  log_ = roster_->snapshot();
  decide();
  plan_tick();
  return {};
}

Status Coordinator::drain(PeerId peer) {
  if (!up()) return invalid("the coordinator is away");
  PLIANT_TRY(roster_->drain_peer(peer, world_.timeline.now()));
  log_ = roster_->snapshot();
  decide();
  plan_tick();
  return {};
}

}  // namespace pliant::sim
