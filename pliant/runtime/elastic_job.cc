#include "pliant/runtime/elastic_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace pliant {
namespace {

// What the roster hears of a message of a worker.
std::optional<RosterEvent::Any> roster_event(PeerId peer, const Message& message) {
  if (const auto* met = std::get_if<Met>(&message)) return RosterEvent::Met{peer, met->peers};
  if (std::holds_alternative<Alive>(message)) return RosterEvent::Alive{peer};
  if (const auto* progress = std::get_if<Progress>(&message))
    return RosterEvent::Progress{progress->step, progress->samples};
  if (const auto* proposal = std::get_if<Proposal>(&message))
    return RosterEvent::Proposal{peer, proposal->size};
  if (const auto* recovered = std::get_if<Recovered>(&message))
    return RosterEvent::Recovered{.epoch = recovered->epoch,
                                  .step = recovered->step,
                                  .agree = Duration(recovered->agree_ns),
                                  .redo = Duration(recovered->redo_ns),
                                  .transfer = Duration(recovered->transfer_ns),
                                  .transfer_bytes = recovered->transfer_bytes,
                                  .incomplete = recovered->incomplete};
  // It speaks for itself only.
  if (const auto* notice = std::get_if<Notice>(&message);
      notice != nullptr && notice->host == peer.host && notice->slot == peer.slot)
    return RosterEvent::Notice{peer.host, peer.slot, notice->reason};
  return std::nullopt;
}

}  // namespace

ElasticJob::ElasticJob(JobOptions options, Roster roster, Instant now)
    : options_(options), roster_(std::move(roster)), start_due_(now + options.start_timeout) {
  for (uint32_t host = 0; host < roster_.options().hosts.size(); ++host)
    hosts_.emplace(host, std::nullopt);
}

ElasticJob::ElasticJob(JobOptions options, RosterOptions roster, Instant now)
    : ElasticJob(options, Roster(std::move(roster), now), now) {}

Result<ElasticJob> ElasticJob::resume(JobOptions options, RosterOptions roster, Bytes log,
                                      Instant now) {
  auto restored = Roster::restore(std::move(roster), log, now);
  if (!restored) return restored.error();
  ElasticJob job(options, std::move(*restored), now);
  job.started_ = true;
  return job;
}

std::vector<JobAction::Any> ElasticJob::handle(const JobEvent::Any& event, Instant now) {
  actions_.clear();
  if (!finished_) std::visit([&](const auto& known) { on(known, now); }, event);
  return std::move(actions_);
}

std::optional<Instant> ElasticJob::next_deadline() const {
  if (finished_) return std::nullopt;
  std::optional<Instant> earliest = roster_.next_deadline();
  const auto consider = [&](std::optional<Instant> due) {
    if (due && (!earliest || *due < *earliest)) earliest = due;
  };
  if (!started_) consider(start_due_);
  consider(ending_due_);
  return earliest;
}

ElasticJob::Phase ElasticJob::phase() const {
  if (finished_) return Phase::kFinished;
  if (ending_ != Ending::kNot || user_signal_ != 0) return Phase::kEnding;
  return number(roster_.view().epoch) == 0 ? Phase::kStarting : Phase::kRunning;
}

void ElasticJob::on(const AgentReady& event, Instant now) {
  const auto host = hosts_.find(event.host);
  if (host == hosts_.end()) return;
  if (!event.problem.empty()) {
    if (started_) {
      tell(RosterEvent::HostGone{event.host, event.problem}, now);
    } else {
      finish(event.exit_code == 0 ? 1 : event.exit_code, event.problem);
    }
    return;
  }
  host->second = event;
  const AgentReady& first = hosts_.begin()->second ? *hosts_.begin()->second : event;
  if (started_) {
    // The coordinator or the agent was away.
    actions_.push_back(start_order(first, hosts_));
    for (const WorkerExited& end : event.ended)
      if (end.peer.host == event.host) on(end, now);
    tell(RosterEvent::HostRuns{event.host, event.running}, now);
    tell(RosterEvent::HostReady{event.host, event.notice}, now);
    return;
  }
  const bool all = std::all_of(hosts_.begin(), hosts_.end(),
                               [](const auto& entry) { return entry.second.has_value(); });
  if (!all) return;
  started_ = true;
  actions_.push_back(start_order(first, hosts_));
  for (const auto& [number, ready] : hosts_)
    tell(RosterEvent::HostReady{number, ready->notice}, now);
}

void ElasticJob::on(const JobEvent::AgentGone& event, Instant now) {
  if (!hosts_.contains(event.host)) return;
  if (!started_) {
    finish(1, event.reason);
    return;
  }
  // Its store is gone with it: from here on copies go to those that are there.
  if (auto& ready = hosts_.at(event.host); ready && !ready->store.empty()) {
    ready->store.clear();
    const auto& first = hosts_.begin()->second;
    actions_.push_back(start_order(first ? *first : *ready, hosts_));
  }
  tell(RosterEvent::HostGone{event.host, event.reason}, now);
}

void ElasticJob::on(const JobEvent::Joined& event, Instant now) {
  tell(RosterEvent::Joined{event.member, event.epoch}, now);
}

void ElasticJob::on(const JobEvent::Left& event, Instant now) {
  tell(RosterEvent::Left{event.peer}, now);
}

void ElasticJob::on(const JobEvent::Disconnected& event, Instant now) {
  tell(RosterEvent::Disconnected{event.peer}, now);
}

void ElasticJob::on(const JobEvent::Suspected& event, Instant now) {
  tell(RosterEvent::Suspected{event.by, event.lost.peer, event.lost.reason}, now);
}

void ElasticJob::on(const WorkerExited& event, Instant now) {
  if (user_signal_ != 0 && event.exit_code != 0) {
    ended_badly_ = true;
    // The others get some time to end, too.
    if (!ending_due_) ending_due_ = now + options_.grace;
  }
  tell(RosterEvent::Exited{event.peer, event.pid, event.exit_code, describe_end(event)}, now);
}

void ElasticJob::on(const WorkerDied& event, Instant now) {
  tell(RosterEvent::Died{event.peer}, now);
}

void ElasticJob::on(const Notice& event, Instant now) {
  const auto slot =
      event.slot == Notice::kWholeHost ? std::nullopt : std::optional<uint16_t>(event.slot);
  tell(RosterEvent::Notice{event.host, slot, event.reason}, now);
}

void ElasticJob::on(const JobEvent::Told& event, Instant now) {
  // It heeds our signal and leaves in order, for which it has some time.
  const bool leaves = std::holds_alternative<Notice>(event.message) && user_signal_ == SIGTERM;
  if (leaves && !ending_due_) ending_due_ = now + options_.grace;
  if (const auto known = roster_event(event.peer, event.message)) tell(*known, now);
}

void ElasticJob::on(const JobEvent::UserSignal& event, Instant now) {
  if (!asks_to_end(event.signal)) {
    actions_.push_back(SignalWorkers{event.signal});
    return;
  }
  const bool again = std::exchange(user_signal_, event.signal) != 0;
  if (!started_) {
    finish(128 + event.signal, "interrupted by " + name_signal(event.signal));
    return;
  }
  if (again) {
    ending_ = Ending::kKilled;
    ending_due_ = now + options_.kill_after;
    actions_.push_back(SignalWorkers{SIGKILL});
    return;
  }
  ending_ = Ending::kAsked;
  tell(RosterEvent::Ending{}, now);
  actions_.push_back(SignalWorkers{event.signal});
}

void ElasticJob::on(const JobEvent::Stop&, Instant now) {
  // They were asked by a signal that they do not heed.
  if (ending_ == Ending::kAsked && !ending_due_) escalate(now);
  if (ending_ == Ending::kNot) on(JobEvent::UserSignal{SIGTERM}, now);
  if (!finished_ && !ending_due_) ending_due_ = now + options_.grace;
}

void ElasticJob::on(const JobEvent::Overslept&, Instant now) {
  tell(RosterEvent::Overslept{}, now);
}

void ElasticJob::on(const JobEvent::Settle&, Instant now) { settle(now); }

void ElasticJob::on(const JobEvent::Tick&, Instant now) {
  if (!started_ && now >= start_due_) {
    std::string names;
    for (const auto& [host, ready] : hosts_) {
      if (!ready) names += (names.empty() ? "" : ", ") + roster_.options().hosts[host].name;
    }
    finish(1, fmt::format("no word within {} from the agent on: {}",
                          human_duration(options_.start_timeout), names));
    return;
  }
  settle(now);
  if (!finished_ && ending_due_ && now >= *ending_due_) escalate(now);
}

void ElasticJob::tell(const RosterEvent::Any& event, Instant now) {
  if (roster_.handle(event, now)) unsettled_ = true;
}

void ElasticJob::settle(Instant now) {
  unsettled_ = false;
  for (RosterAction::Any& action : roster_.decide(now)) take(std::move(action));
}

void ElasticJob::take(RosterAction::Any action) {
  if (auto* publish = std::get_if<RosterAction::Publish>(&action)) {
    actions_.push_back(JobAction::Publish{std::move(publish->view), std::move(publish->gone),
                                          std::move(publish->to)});
  } else if (auto* meet = std::get_if<RosterAction::Meet>(&action)) {
    actions_.push_back(JobAction::Send{std::move(meet->to), Meet{std::move(meet->members)}});
  } else if (auto* pause = std::get_if<RosterAction::Pause>(&action)) {
    actions_.push_back(JobAction::Send{std::move(pause->to), Paused{std::move(pause->reason)}});
  } else if (const auto* start = std::get_if<RosterAction::Start>(&action)) {
    actions_.push_back(JobAction::Start{start->peer, start->number});
  } else if (const auto* signal = std::get_if<RosterAction::Signal>(&action)) {
    actions_.push_back(SignalWorker{signal->peer, signal->signal});
  } else if (auto* refusal = std::get_if<RosterAction::Refuse>(&action)) {
    actions_.push_back(
        JobAction::Refuse{refusal->peer, {refusal->code, std::move(refusal->reason)}});
  } else if (auto* event = std::get_if<RosterAction::Event>(&action)) {
    actions_.push_back(
        JobAction::Event{std::move(event->kind), std::move(event->text), std::move(event->fields)});
  } else if (auto* say = std::get_if<RosterAction::Say>(&action)) {
    actions_.push_back(JobAction::Say{std::move(say->text)});
  } else if (auto* end = std::get_if<RosterAction::Finish>(&action)) {
    if (ended_badly_) {
      finish(128 + user_signal_, "interrupted by " + name_signal(user_signal_) + "; the job ends");
    } else {
      finish(end->exit_code, std::move(end->message));
    }
  }
}

void ElasticJob::escalate(Instant now) {
  ending_due_ = now + options_.kill_after;
  if (ending_ == Ending::kNot || ending_ == Ending::kAsked) {
    ending_ = Ending::kTerminated;
    actions_.push_back(SignalWorkers{SIGTERM});
  } else if (ending_ == Ending::kTerminated) {
    ending_ = Ending::kKilled;
    actions_.push_back(SignalWorkers{SIGKILL});
  } else {
    // Not even SIGKILL ends them, or their agent is silent: the job does not wait for that.
    finish(128 + user_signal_, "interrupted by " + name_signal(user_signal_) + "; the job ends");
  }
}

void ElasticJob::finish(int exit_code, std::string message) {
  finished_ = true;
  actions_.push_back(JobAction::Finish{exit_code, std::move(message)});
}

Status ElasticJob::resize(uint32_t size, Instant now) {
  unsettled_ = true;
  return roster_.resize(size, now);
}

Status ElasticJob::drain_host(const std::string& name, Instant now) {
  unsettled_ = true;
  return roster_.drain_host(name, now);
}

Status ElasticJob::drain_peer(PeerId peer, Instant now) {
  unsettled_ = true;
  return roster_.drain_peer(peer, now);
}

}  // namespace pliant
