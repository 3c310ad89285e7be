#include "pliant/membership/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace pliant {

Roster::Roster(RosterOptions options, Instant)
    : options_(std::move(options)),
      places_(options_.places, options_.hosts),
      target_(options_.initial),
      restarts_left_(options_.restarts) {
  // What holds from the start needs no change later.
  while (schedule_next_ < options_.schedule.size() && options_.schedule[schedule_next_].step == 0)
    ++schedule_next_;
}

bool Roster::handle(const RosterEvent::Any& event, Instant now) {
  if (finished_) return false;
  std::visit([&](const auto& known) { on(known, now); }, event);
  return !std::holds_alternative<RosterEvent::Alive>(event);
}

void Roster::on(const RosterEvent::HostReady& event, Instant now) {
  if (!places_.known(event.host)) return;
  places_.open(event.host);
  if (event.notice.empty()) {
    places_.set_noticed(event.host, false);
  } else {
    on(RosterEvent::Notice{event.host, std::nullopt, event.notice}, now);
  }
}

void Roster::on(const RosterEvent::HostRuns& event, Instant now) {
  if (!places_.known(event.host)) return;
  const std::set<PeerId> running(event.peers.begin(), event.peers.end());
  std::vector<PeerId> missing;
  for (const auto& [peer, worker] : workers_)
    if (peer.host == event.host && !running.contains(peer)) missing.push_back(peer);
  for (const PeerId peer : missing) {
    const Worker& worker = workers_.at(peer);
    if (worker.pid == 0 && !ending_) {
      // The one before us decided it and died before its order arrived.
      actions_.push_back(RosterAction::Start{peer, worker.number});
      continue;
    }
    on(RosterEvent::Exited{peer, worker.pid, 1, "ended while the coordinator was away"}, now);
  }
  // Given up when its host seemed lost; somebody else may have its place.
  for (const PeerId peer : running)
    if (find(peer) == nullptr) actions_.push_back(RosterAction::Signal{peer, SIGKILL});
}

void Roster::on(const RosterEvent::HostGone& gone, Instant now) {
  if (!places_.known(gone.host)) return;
  places_.close(gone.host);
  std::vector<PeerId> there;
  for (const auto& [peer, worker] : workers_)
    if (peer.host == gone.host) there.push_back(peer);
  event("host_gone", fmt::format("host {} is gone: {}", places_.host_name(gone.host), gone.reason),
        {{"host", places_.host_name(gone.host)}});
  for (const PeerId peer : there) {
    Worker& worker = workers_.at(peer);
    const std::string reason = "was lost with its host: " + gone.reason;
    lose(peer, worker, false, reason, now);
    account_end(peer, {.peer = peer, .pid = worker.pid, .exit_code = 1, .reason = reason}, now);
  }
}

void Roster::on(const RosterEvent::Joined& event, Instant now) {
  const PeerId peer = event.member.id;
  const auto newest = places_.incarnation(peer.host, peer.slot);
  Worker* const worker = find(peer);
  if (worker == nullptr) {
    const bool past = newest && peer.incarnation <= *newest;
    refuse(
        peer, past ? Code::kStaleEpoch : Code::kInvalid,
        fmt::format("peer {} is not part of this job{}", to_string(peer), past ? " any more" : ""));
    return;
  }
  // One whose first view was logged and never sent does not know yet that it is a member.
  const bool unaware = worker->returning && worker->pid == event.member.pid;
  if (event.epoch != 0 || unaware) {
    welcome_back(*worker, event, now);
    return;
  }
  if (worker->standing == Standing::kLost || worker->standing == Standing::kLeaving) {
    refuse(peer, Code::kStaleEpoch,
           name_of(peer, *worker) + " is out of the job; a new worker takes its place");
    return;
  }
  if (worker->standing != Standing::kOutside) {
    refuse(peer, Code::kInvalid,
           name_of(peer, *worker) +
               " is a member already; a process joins once, and so does a worker's child");
    return;
  }
  // Who left and comes back is wanted again.
  if (std::exchange(worker->left, false)) {
    if (retired_ > 0) --retired_;
    target_ = std::min(target_ + 1, options_.max);
  }
  worker->pid = event.member.pid;
  worker->member = event.member;
  worker->standing = Standing::kCandidate;
  worker->heard = now;
  worker->met.clear();
  worker->met_view = {};
  if (number(view_.epoch) == 0) {
    if (!join_due_) join_due_ = now + options_.join_timeout;
    return;
  }
  // Everybody gets to know the newcomer while training goes on.
  RosterAction::Meet others{{peer}, {}};
  RosterAction::Meet newcomer{{}, {event.member}};
  for (const auto& [id, other] : workers_) {
    if (id == peer) continue;
    if (other.standing != Standing::kMember && other.standing != Standing::kCandidate) continue;
    others.members.push_back(other.member);
    newcomer.to.push_back(id);
  }
  actions_.push_back(std::move(others));
  if (!newcomer.to.empty()) actions_.push_back(std::move(newcomer));
}

// The coordinator was away and the worker was not: it is what it was.
void Roster::welcome_back(Worker& worker, const RosterEvent::Joined& event, Instant now) {
  const PeerId peer = event.member.id;
  if (worker.standing != Standing::kMember) {
    refuse(peer, Code::kStaleEpoch,
           fmt::format("{} was declared lost; it is out of the job since epoch {}",
                       name_of(peer, worker), number(view_.epoch)));
    return;
  }
  worker.returning = false;
  worker.heard = now;
  if (event.epoch < number(view_.epoch)) {
    actions_.push_back(RosterAction::Publish{view_, {}, {peer}});
  } else if (event.epoch > number(view_.epoch)) {
    // The log lost its end. No number may be used twice, so the next view comes after all.
    view_.epoch = Epoch{event.epoch};
    republish_ = true;
  }
}

void Roster::on(const RosterEvent::Met& event, Instant) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr || worker->standing != Standing::kCandidate) return;
  worker->met.insert(event.peers.begin(), event.peers.end());
}

void Roster::on(const RosterEvent::Alive& event, Instant now) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr) return;
  worker->heard = now;
  worker->excused = false;
}

void Roster::on(const RosterEvent::Left& event, Instant now) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr || worker->left) return;
  const Standing before = worker->standing;
  if (before == Standing::kMember) {
    const std::string reason = worker->draining ? worker->drain_reason : "left";
    departed_[event.peer] = {event.peer, false, true, reason};
  }
  if (before == Standing::kLeaving || before == Standing::kLost) return;
  worker->standing = Standing::kOutside;
  worker->left = true;
  if (worker->draining) {
    ask_to_go(event.peer, *worker, now + options_.leave_timeout, SIGTERM);
  } else {
    retire();
  }
}

// The program is over on one member: nobody takes its place, and the others may be fewer.
void Roster::retire() {
  ++retired_;
  if (target_ > 0) --target_;
}

void Roster::on(const RosterEvent::Disconnected& event, Instant now) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr) return;
  if (worker->standing == Standing::kCandidate) {
    worker->standing = Standing::kOutside;
  } else if (worker->standing == Standing::kMember) {
    lose(event.peer, *worker, false, "closed its connection to the coordinator", now);
  }
}

void Roster::on(const RosterEvent::Died& event, Instant now) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr) return;
  if (worker->standing == Standing::kCandidate) worker->standing = Standing::kOutside;
  lose(event.peer, *worker, true, "died", now);
}

void Roster::on(const RosterEvent::Exited& event, Instant now) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr) return;
  if (event.pid != 0) worker->pid = event.pid;
  lose(event.peer, *worker, true, event.reason, now);
  account_end(event.peer, event, now);
}

void Roster::on(const RosterEvent::Suspected& event, Instant now) {
  // All members may report one loss, so nothing here looks at all of them.
  if (!in_view(event.by) || !in_view(event.peer)) return;
  if (!suspected_.emplace(event.by, event.peer).second) return;
  // Usually it is dead and we hear of that in a moment.
  suspicions_.push_back({event.by, event.peer, event.reason, now + options_.heartbeat});
}

void Roster::on(const RosterEvent::Progress& event, Instant) {
  step_ = std::max(step_, event.step);
  samples_ = std::max(samples_, event.samples);
  std::optional<ScheduledSize> due;
  while (schedule_next_ < options_.schedule.size() &&
         options_.schedule[schedule_next_].step <= step_)
    due = options_.schedule[schedule_next_++];
  if (!due) return;
  if (const Status status = set_target(due->size); !status)
    actions_.push_back(RosterAction::Say{
        fmt::format("schedule {}@{}: {}", due->size, due->step, status.error().message)});
}

void Roster::on(const RosterEvent::Proposal& event, Instant) {
  Worker* const worker = find(event.by);
  if (worker == nullptr || event.size == target_) return;
  if (const Status status = set_target(event.size); !status)
    actions_.push_back(
        RosterAction::Say{fmt::format("{} proposed {} members: {}", name_of(event.by, *worker),
                                      event.size, status.error().message)});
}

void Roster::on(const RosterEvent::Recovered& event, Instant) {
  step_ = std::max(step_, event.step);
  for (Change& change : changes_)
    if (number(change.epoch) == event.epoch) change.numbers = event;
  for (auto& [peer, worker] : workers_) {
    if (event.incomplete) break;
    if (worker.standing == Standing::kMember && worker.member_epoch <= event.epoch)
      worker.seasoned = true;
  }
  const auto text = [](Duration time) { return std::to_string(time.count()); };
  this->event("recovered", fmt::format("epoch {} works", event.epoch),
              {{"epoch", std::to_string(event.epoch)},
               {"step", std::to_string(event.step)},
               {"agree_ns", text(event.agree)},
               {"redo_ns", text(event.redo)},
               {"transfer_ns", text(event.transfer)},
               {"transfer_bytes", std::to_string(event.transfer_bytes)}});
}

void Roster::on(const RosterEvent::Notice& notice, Instant) {
  if (!places_.known(notice.host)) return;
  const std::string& name = places_.host_name(notice.host);
  if (!notice.slot && places_.set_noticed(notice.host, true))
    event("notice", fmt::format("host {} will be taken away: {}", name, notice.reason),
          {{"host", name}, {"reason", notice.reason}});
  for (auto& [peer, worker] : workers_) {
    if (peer.host != notice.host || (notice.slot && *notice.slot != peer.slot)) continue;
    if (notice_worker(worker, notice) && notice.slot)
      event("notice", fmt::format("{} is to leave: {}", name_of(peer, worker), notice.reason),
            {{"host", name}, {"peer", to_string(peer)}, {"reason", notice.reason}});
  }
}

// True if it was not known yet. Who is told to end is replaced as one that fails would be; who
// loses its host has done nothing wrong and is always replaced.
bool Roster::notice_worker(Worker& worker, const RosterEvent::Notice& notice) {
  if (!notice.slot && std::exchange(worker.vacated, false) && vacancies_ > 0) --vacancies_;
  if (worker.standing == Standing::kLeaving || worker.standing == Standing::kLost) return false;
  worker.told = worker.told || notice.slot.has_value();
  if (std::exchange(worker.noticed, true)) return false;
  if (notice.slot && restarts_left_ == 0 && !worker.draining && !worker.left) {
    worker.vacated = true;
    ++vacancies_;
  }
  worker.draining = true;
  worker.drain_reason = "leaves: " + notice.reason;
  return true;
}

// Time for one beat, and once: a member that is really gone is not kept by a busy machine.
void Roster::on(const RosterEvent::Overslept&, Instant now) {
  for (auto& [peer, worker] : workers_) {
    if (std::exchange(worker.excused, true)) continue;
    worker.heard = std::max(worker.heard, now - options_.heartbeat * 3 / 4);
  }
}

void Roster::on(const RosterEvent::Ending&, Instant) { ending_ = true; }

void Roster::on(const RosterEvent::Tick&, Instant) {}

// Out of the view, for whatever reason; the worst news that is known last.
void Roster::lose(PeerId peer, Worker& worker, bool ended, const std::string& reason, Instant now) {
  if (worker.standing == Standing::kMember) {
    worker.standing = Standing::kLost;
    worker.lost_before_end = !ended_well_;
    departed_[peer] = {peer, ended, false, reason};
    worker.account_due = now + options_.end_wait;
    if (!ended) {
      ask_to_go(peer, worker, now + options_.evict_after, SIGKILL);
      refuse(peer, Code::kStaleEpoch,
             fmt::format("{} is out of the job: it {}", name_of(peer, worker), reason));
    }
    event("loss", name_of(peer, worker) + " " + reason,
          {{"peer", to_string(peer)},
           {"host", worker.member.host},
           {"pid", std::to_string(worker.pid)},
           {"ended", ended ? "true" : "false"}});
    return;
  }
  // Gone from a view already; only what is said of it gets better.
  if (!ended) return;
  if (const auto at = departed_.find(peer); at != departed_.end()) {
    at->second.ended = true;
    if (!at->second.planned) at->second.reason = reason;
  }
  for (Change& change : changes_)
    for (Change::Gone& gone : change.gone)
      if (gone.peer == peer && !gone.planned) gone.reason = reason;
}

// A process has ended: its place is free, and it may count as a failure.
void Roster::account_end(PeerId peer, const RosterEvent::Exited& end, Instant now) {
  Worker worker = std::move(workers_.at(peer));
  workers_.erase(peer);
  places_.release(peer);
  const bool asked = worker.standing == Standing::kLeaving || worker.draining || ending_;
  const bool own_will = !asked && !worker.accounted && end.exit_code == 0;
  for (Change& change : changes_) {
    for (Change::Gone& gone : change.gone) {
      if (gone.peer != peer) continue;
      gone.final_ = true;
      gone.quiet = gone.quiet || own_will;
    }
  }
  if (own_will) {
    // In order, though it may not have said so.
    if (!worker.left) retire();
    ended_well_ = true;
    if (const auto at = departed_.find(peer); at != departed_.end()) at->second.planned = true;
  }
  if (asked || own_will || worker.accounted) return;
  fail(peer, worker, {end.exit_code, name_of(peer, worker) + " " + end.reason}, now);
}

void Roster::fail(PeerId peer, Worker& worker, const Failure& failure, Instant now) {
  worker.accounted = true;
  worker.account_due.reset();
  last_failure_ = failure;
  const bool proven = worker.member_since && now - *worker.member_since >= options_.proven_after;
  const Duration rest = places_.fail(peer, now, proven);
  const bool replaced = restarts_left_ != 0 && !worker.left && !is_over();
  if (ended_well_ && !replaced && !worker.lost_before_end) failed_at_end_ = failure;
  if (replaced) {
    if (restarts_left_ > 0) --restarts_left_;
    replacements_.insert(now + rest);
  } else if (!worker.left && !worker.forgiven) {
    ++vacancies_;
  }
  if (!worker.member_since)
    actions_.push_back(RosterAction::Say{
        replaced ? fmt::format("{}; it is started again in {}", failure.text, human_duration(rest))
                 : failure.text});
  event("failure", failure.text,
        {{"peer", to_string(peer)},
         {"exit_code", std::to_string(failure.exit_code)},
         {"replaced", replaced ? "true" : "false"}});
  const auto aside = places_.set_aside(peer.host, now);
  if (!aside) return;
  if (*aside > Duration(0)) {
    const std::string text =
        fmt::format("host {} is set aside for {}: its workers fail again and again",
                    places_.host_name(peer.host), human_duration(*aside));
    actions_.push_back(RosterAction::Say{text});
    event("host_set_aside", text, {{"host", places_.host_name(peer.host)}});
  } else if (number(view_.epoch) == 0 && !join_due_) {
    hopeless_ = failure;  // the program itself is wrong: nobody ever joined
  }
}

void Roster::refuse(PeerId peer, Code code, std::string reason) {
  actions_.push_back(RosterAction::Refuse{peer, code, std::move(reason)});
}

void Roster::ask_to_go(PeerId, Worker& worker, Instant due, int signal) {
  worker.due = due;
  worker.next_signal = signal;
}

// "rank 2 (host a, pid 4711)" for a member of the newest view, "worker 5 (...)" for others.
std::string Roster::name_of(PeerId peer, const Worker& worker) const {
  const std::string who = worker.rank >= 0 ? fmt::format("rank {}", worker.rank)
                                           : fmt::format("worker {}", worker.number);
  const std::string& host = places_.host_name(peer.host);
  if (worker.pid == 0) return fmt::format("{} (host {})", who, host);
  return fmt::format("{} (host {}, pid {})", who, host, worker.pid);
}

Roster::Worker* Roster::find(PeerId peer) {
  const auto at = workers_.find(peer);
  return at == workers_.end() ? nullptr : &at->second;
}

bool Roster::in_view(PeerId peer) const {
  const auto at = workers_.find(peer);
  return at != workers_.end() && at->second.rank >= 0;
}

void Roster::event(std::string kind, std::string text, std::map<std::string, std::string> fields) {
  actions_.push_back(RosterAction::Event{std::move(kind), std::move(text), std::move(fields)});
}

Status Roster::resize(uint32_t size, Instant) {
  PLIANT_TRY(set_target(size));
  // Whoever asks now knows that the program goes on, though some members have ended.
  retired_ = 0;
  return {};
}

Status Roster::set_target(uint32_t size) {
  if (finished_ || ending_) return invalid("the job is ending");
  if (size == 0) return invalid("a job cannot be resized to 0 members; stop it instead");
  if (size < options_.min)
    return invalid(
        fmt::format("{} members are fewer than the job's minimum of {}", size, options_.min));
  if (size > options_.max)
    return invalid(
        fmt::format("{} members are more than the job's maximum of {}", size, options_.max));
  if (size > places_.slot_count())
    return invalid(fmt::format("{} members do not fit into the {} slots of the job's hosts", size,
                               places_.slot_count()));
  const uint32_t before = std::exchange(target_, size);
  vacancies_ = 0;
  for (auto& [peer, worker] : workers_)
    if (worker.standing == Standing::kLost) worker.forgiven = true;
  event("resize", fmt::format("{} members are wanted", size),
        {{"from", std::to_string(before)}, {"to", std::to_string(size)}});
  return {};
}

Status Roster::drain_host(const std::string& name, Instant) {
  if (finished_ || ending_) return invalid("the job is ending");
  const auto host = places_.find_host(name);
  if (!host) return invalid(fmt::format("the job has no host '{}'", name));
  uint32_t slots = places_.slot_count();
  if (places_.offered(*host)) slots -= options_.hosts.at(*host).slots;
  if (slots < options_.min)
    return invalid(
        fmt::format("without host {} the job has {} slots, and its minimum is {} members", name,
                    slots, options_.min));
  places_.drain(*host);
  target_ = std::min(target_, slots);
  for (auto& [peer, worker] : workers_) {
    if (peer.host != *host) continue;
    worker.draining = true;
    worker.drain_reason = "leaves: its host is drained";
  }
  event("drain", fmt::format("host {} is drained", name), {{"host", name}});
  return {};
}

Status Roster::drain_peer(PeerId peer, Instant) {
  if (finished_ || ending_) return invalid("the job is ending");
  Worker* const worker = find(peer);
  if (worker == nullptr || worker->standing != Standing::kMember)
    return invalid(fmt::format("peer {} is no member of the job", to_string(peer)));
  if (worker->draining) return {};
  if (target_ <= options_.min)
    return invalid(fmt::format("without {} the job has fewer than its minimum of {} members",
                               name_of(peer, *worker), options_.min));
  --target_;
  worker->draining = true;
  worker->drain_reason = "leaves: it is drained";
  event("drain", name_of(peer, *worker) + " is drained", {{"peer", to_string(peer)}});
  return {};
}

}  // namespace pliant
