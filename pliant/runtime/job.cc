#include "pliant/runtime/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

namespace pliant {
namespace {

constexpr size_t kMissingNamedMax = 8;

}  // namespace

bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

std::string name_signal(int signal) {
  const char* const text = sigdescr_np(signal);
  return fmt::format("signal {} ({})", signal, text == nullptr ? "unknown" : text);
}

std::string describe_end(const WorkerExited& end) {
  if (!end.problem.empty()) return end.problem;
  if (end.signal != 0) return "was killed by " + name_signal(end.signal);
  return fmt::format("exited with code {}", end.exit_code);
}

StartWorkers start_order(const AgentReady& first,
                         const std::map<uint32_t, std::optional<AgentReady>>& hosts) {
  StartWorkers order{first.address, first.free_port};
  for (const auto& [host, ready] : hosts) {
    if (!ready || ready->store.empty()) continue;
    order.stores.resize(std::max<size_t>(order.stores.size(), host + size_t{1}));
    order.stores[host] = ready->store;
  }
  return order;
}

Job::Job(JobOptions options, std::vector<WorkerPlace> workers, Instant now)
    : options_(options), start_due_(now + options.start_timeout) {
  for (WorkerPlace& place : workers) {
    hosts_.emplace(place.id.host, std::nullopt);
    ranks_.emplace(place.id, workers_.size());
    workers_.emplace_back().place = std::move(place);
  }
  PLIANT_CHECK(!workers_.empty() && ranks_.size() == workers_.size(), "workers differ");
}

std::vector<JobAction::Any> Job::handle(const JobEvent::Any& event, Instant now) {
  actions_.clear();
  if (!finished_) std::visit([&](const auto& known) { on(known, now); }, event);
  return std::move(actions_);
}

std::optional<Instant> Job::next_deadline() const {
  if (finished_) return std::nullopt;
  std::optional<Instant> earliest;
  const auto consider = [&](std::optional<Instant> due) {
    if (due && (!earliest || *due < *earliest)) earliest = due;
  };
  if (!started_) consider(start_due_);
  consider(join_due_);
  consider(ending_due_);
  for (const Worker& worker : workers_) consider(worker.reason_due);
  return earliest;
}

void Job::on(const AgentReady& event, Instant) {
  const auto host = hosts_.find(event.host);
  if (host == hosts_.end() || started_) return;
  if (!event.problem.empty()) {
    finish(event.exit_code == 0 ? 1 : event.exit_code, event.problem);
    return;
  }
  host->second = event;
  const bool all = std::all_of(hosts_.begin(), hosts_.end(),
                               [](const auto& entry) { return entry.second.has_value(); });
  if (!all) return;
  started_ = true;
  const AgentReady& first = *hosts_.begin()->second;
  actions_.push_back(start_order(first, hosts_));
}

void Job::on(const JobEvent::AgentGone& event, Instant now) {
  if (!hosts_.contains(event.host)) return;
  if (!started_) {
    finish(1, event.reason);
    return;
  }
  for (Worker& worker : workers_) {
    if (worker.place.id.host != event.host || worker.end) continue;
    end_worker(worker,
               {.peer = worker.place.id,
                .pid = worker.pid,
                .exit_code = 1,
                .signal = 0,
                .problem = "was lost with its host: " + event.reason},
               now);
  }
}

void Job::on(const JobEvent::Joined& event, Instant now) {
  const Member& member = event.member;
  Worker* const worker = find(member.id);
  if (worker == nullptr) {
    actions_.push_back(JobAction::Refuse{
        member.id,
        {Code::kInvalid, fmt::format("peer {} is not part of this job", to_string(member.id))}});
    return;
  }
  if (worker->reason_due) declare_lost(*worker, "closed its connection to the coordinator");
  if (worker->waiting || worker->standing == Worker::Standing::kMember) {
    actions_.push_back(JobAction::Refuse{
        member.id,
        {Code::kInvalid, describe(*worker) + " is a member already; a process joins "
                                             "once, and so does a worker's child"}});
    return;
  }
  if (!join_due_) join_due_ = now + options_.join_timeout;
  worker->pid = member.pid;
  worker->waiting = member;
  publish_if_complete();
  refuse_if_hopeless();
}

void Job::on(const JobEvent::Left& event, Instant) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr) return;
  worker->standing = Worker::Standing::kOutside;
  worker->waiting.reset();
  if (waiting_count() == 0) join_due_.reset();
}

void Job::on(const JobEvent::Disconnected& event, Instant now) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr) return;
  worker->waiting.reset();
  if (waiting_count() == 0) join_due_.reset();
  if (worker->standing != Worker::Standing::kMember || worker->end) return;
  add_evidence(event.peer);
  worker->reason_due = now + options_.reason_wait;
}

void Job::on(const JobEvent::Suspected& event, Instant) {
  if (find(event.by) == nullptr || find(event.lost.peer) == nullptr) return;
  add_evidence(event.lost.peer);
  suspicions_.emplace(event.lost.peer, event.lost.reason);
}

void Job::on(const WorkerExited& event, Instant now) {
  Worker* const worker = find(event.peer);
  if (worker == nullptr || worker->end) return;
  end_worker(*worker, event, now);
}

void Job::on(const JobEvent::UserSignal& event, Instant now) {
  const bool again = asks_to_end(event.signal) && user_signal_ != 0;
  if (asks_to_end(event.signal)) user_signal_ = event.signal;
  if (!started_ && asks_to_end(event.signal)) {
    finish(128 + event.signal, "interrupted by " + name_signal(event.signal));
  } else if (again) {
    ending_ = Ending::kKilled;
    ending_due_ = now + options_.kill_after;
    actions_.push_back(SignalWorkers{SIGKILL});
  } else {
    actions_.push_back(SignalWorkers{event.signal});
  }
}

void Job::on(const JobEvent::Tick&, Instant now) {
  if (!started_ && now >= start_due_) {
    std::string names;
    for (const Worker& worker : workers_) {
      if (hosts_.at(worker.place.id.host) || worker.place.id.slot != 0) continue;
      names += (names.empty() ? "" : ", ") + worker.place.host;
    }
    finish(1, fmt::format("no word within {} from the agent on: {}",
                          human_duration(options_.start_timeout), names));
    return;
  }
  for (Worker& worker : workers_) {
    if (worker.reason_due && now >= *worker.reason_due)
      declare_lost(worker, "closed its connection to the coordinator");
  }
  if (join_due_ && now >= *join_due_) {
    refuse_waiting(Code::kTimeout,
                   fmt::format("{} of {} members joined within {}; missing: {}", waiting_count(),
                               workers_.size(), human_duration(options_.join_timeout), missing()));
  }
  if (ending_due_ && now >= *ending_due_) escalate(now);
}

void Job::end_worker(Worker& worker, WorkerExited end, Instant now) {
  // Who ends by our own signal did not fail.
  worker.ended_by_us =
      (ending_ == Ending::kTerminated || ending_ == Ending::kKilled) &&
      (end.signal == SIGTERM || end.signal == SIGKILL || end.exit_code == 128 + SIGTERM);
  if (end.pid != 0) worker.pid = end.pid;
  worker.waiting.reset();
  worker.end = std::move(end);
  if (worker.standing == Worker::Standing::kMember) declare_lost(worker, describe_end(*worker.end));
  if (worker.end->exit_code != 0) {
    add_evidence(worker.place.id);
    if (ending_ == Ending::kNot) {
      ending_ = Ending::kGrace;
      ending_due_ = now + options_.grace;
    }
  }
  refuse_if_hopeless();
  finish_if_ended();
}

void Job::declare_lost(Worker& worker, const std::string& reason) {
  worker.reason_due.reset();
  if (worker.standing != Worker::Standing::kMember) return;
  worker.standing = Worker::Standing::kLost;
  JobAction::TellLost tell{{}, {worker.place.id, describe(worker) + " " + reason}};
  for (const Worker& other : workers_) {
    if (other.standing == Worker::Standing::kMember) tell.to.push_back(other.place.id);
  }
  if (!tell.to.empty()) actions_.push_back(std::move(tell));
}

void Job::add_evidence(PeerId peer) {
  if (std::find(evidence_.begin(), evidence_.end(), peer) == evidence_.end())
    evidence_.push_back(peer);
}

void Job::publish_if_complete() {
  if (waiting_count() < workers_.size()) return;
  View view{Epoch{++epoch_}, {}};
  std::vector<PeerId> to;
  for (Worker& worker : workers_) {
    to.push_back(worker.waiting->id);
    view.members.push_back(std::move(*worker.waiting));
    worker.waiting.reset();
    worker.standing = Worker::Standing::kMember;
    worker.reason_due.reset();
  }
  join_due_.reset();
  actions_.push_back(JobAction::Publish{std::move(view), {}, std::move(to)});
}

// Those that wait for somebody who has ended would wait in vain.
void Job::refuse_if_hopeless() {
  if (waiting_count() == 0) return;
  const auto ended = std::find_if(workers_.begin(), workers_.end(),
                                  [](const Worker& worker) { return worker.end.has_value(); });
  if (ended == workers_.end()) return;
  refuse_waiting(Code::kPeerLost, fmt::format("{} {} before all members had joined",
                                              describe(*ended), describe_end(*ended->end)));
}

void Job::refuse_waiting(Code code, const std::string& reason) {
  for (Worker& worker : workers_) {
    if (!worker.waiting) continue;
    worker.waiting.reset();
    actions_.push_back(JobAction::Refuse{worker.place.id, {code, reason}});
  }
  join_due_.reset();
}

void Job::escalate(Instant now) {
  ending_due_ = now + options_.kill_after;
  switch (ending_) {
    case Ending::kNot:
    case Ending::kGrace:
      ending_ = Ending::kTerminated;
      actions_.push_back(SignalWorkers{SIGTERM});
      return;
    case Ending::kTerminated:
      ending_ = Ending::kKilled;
      actions_.push_back(SignalWorkers{SIGKILL});
      return;
    case Ending::kKilled: break;
  }
  // Not even SIGKILL ends them, or their agent is silent: the job does not wait for that.
  for (Worker& worker : workers_) {
    if (worker.end) continue;
    end_worker(worker,
               {.peer = worker.place.id,
                .pid = worker.pid,
                .exit_code = 128 + SIGKILL,
                .signal = SIGKILL,
                .problem = ""},
               now);
    if (finished_) return;
  }
}

void Job::finish_if_ended() {
  const bool all = std::all_of(workers_.begin(), workers_.end(),
                               [](const Worker& worker) { return worker.end.has_value(); });
  if (!all) return;
  finished_ = true;
  actions_.push_back(verdict());
}

void Job::finish(int exit_code, std::string message) {
  finished_ = true;
  actions_.push_back(JobAction::Finish{exit_code, std::move(message)});
}

// The first that ended badly by itself gives code and sentence; who was seen to be lost before it,
// but did not end by itself, is named as the cause.
JobAction::Finish Job::verdict() const {
  const Worker* blamed = nullptr;
  const Worker* cause = nullptr;
  for (const PeerId peer : evidence_) {
    const Worker* const worker = find(peer);
    if (worker->end->exit_code != 0 && !worker->ended_by_us) {
      blamed = worker;
      break;
    }
    if (cause == nullptr && suspicions_.contains(peer)) cause = worker;
  }
  const bool failed = std::any_of(workers_.begin(), workers_.end(),
                                  [](const Worker& worker) { return worker.end->exit_code != 0; });
  if (!failed) return {};
  // Without one to blame all ended by our signals, and only the user's make us send them
  // unprovoked.
  if (user_signal_ != 0 && (blamed == nullptr || blamed->end->exit_code == 128 + user_signal_))
    return {128 + user_signal_, "interrupted by " + name_signal(user_signal_) + "; the job ends"};
  if (blamed == nullptr) blamed = find(evidence_.front());
  std::string message = describe(*blamed) + " " + describe_end(*blamed->end);
  if (cause != nullptr && cause != blamed)
    message +=
        fmt::format(" after {} was lost: {}", describe(*cause), suspicions_.at(cause->place.id));
  return {blamed->end->exit_code, message + "; the job ends"};
}

Job::Worker* Job::find(PeerId peer) {
  const auto rank = ranks_.find(peer);
  return rank == ranks_.end() ? nullptr : &workers_[rank->second];
}

const Job::Worker* Job::find(PeerId peer) const { return const_cast<Job*>(this)->find(peer); }

std::string Job::describe(const Worker& worker) const {
  const size_t rank = ranks_.at(worker.place.id);
  if (worker.pid == 0) return fmt::format("rank {} (host {})", rank, worker.place.host);
  return fmt::format("rank {} (host {}, pid {})", rank, worker.place.host, worker.pid);
}

std::string Job::missing() const {
  std::string names;
  size_t count = 0;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const Worker& worker = workers_[rank];
    if (worker.waiting || ++count > kMissingNamedMax) continue;
    names += fmt::format("{}rank {} (host {} slot {})", names.empty() ? "" : ", ", rank,
                         worker.place.host, worker.place.id.slot);
  }
  if (count > kMissingNamedMax) names += fmt::format(" and {} more", count - kMissingNamedMax);
  return names;
}

size_t Job::waiting_count() const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(),
                                           [](const Worker& w) { return w.waiting.has_value(); }));
}

}  // namespace pliant
