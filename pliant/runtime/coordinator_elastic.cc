// The part of the coordinator that people and elastic jobs need.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "pliant/base/log.h"
#include "pliant/runtime/coordinator.h"

namespace pliant {
namespace {

Error not_elastic() {
  return invalid("the job has a fixed size; run it with --min, --max or --restart");
}

const char* name_of(ElasticJob::Phase phase) {
  switch (phase) {
    case ElasticJob::Phase::kStarting: return "starting";
    case ElasticJob::Phase::kRunning: return "running";
    case ElasticJob::Phase::kEnding: return "ending";
    case ElasticJob::Phase::kFinished: break;
  }
  return "finished";
}

}  // namespace

JobStatus Coordinator::status() const {
  loop_.assert_held();
  JobStatus status;
  status.name = options_.name;
  const View& view = herald_.newest();
  status.epoch = number(view.epoch);
  for (const Member& member : view.members) {
    status.members.push_back({.rank = static_cast<Rank>(status.members.size()),
                              .member = member,
                              .since = member_since_.at(member.id)});
  }
  if (elastic_ == nullptr) {
    status.state = finished_ ? "finished" : status.epoch == 0 ? "starting" : "running";
    status.target = status.min = status.max = static_cast<uint32_t>(options_.workers.size());
    return status;
  }
  const Roster& roster = elastic_->roster();
  status.state = name_of(elastic_->phase());
  status.paused = roster.paused();
  if (status.state == "running" && !status.paused.empty()) status.state = "paused";
  status.target = roster.target();
  status.min = roster.options().min;
  status.max = roster.options().max;
  status.step = roster.step();
  status.samples = roster.samples();
  return status;
}

Status Coordinator::wish(const JobWish::Any& wish) {
  loop_.assert_held();
  if (std::holds_alternative<JobWish::Stop>(wish)) {
    if (elastic_ == nullptr) {
      tell(JobEvent::UserSignal{SIGTERM});
    } else {
      tell(JobEvent::Stop{});
    }
    return {};
  }
  if (elastic_ == nullptr) return not_elastic();
  Status status;
  if (const auto* resize = std::get_if<JobWish::Resize>(&wish)) {
    status = elastic_->resize(resize->size, now());
  } else if (const auto* peer = std::get_if<JobWish::DrainPeer>(&wish)) {
    status = elastic_->drain_peer(peer->peer, now());
  } else if (const auto* host = std::get_if<JobWish::DrainHost>(&wish)) {
    status = elastic_->drain_host(host->host, now());
  }
  // Before it is acknowledged: a wish that was granted survives us.
  if (status.ok()) keep_now();
  settle_soon();
  return status;
}

void Coordinator::hear_launcher(const Message& message) {
  if (const auto* signal = std::get_if<LauncherSignal>(&message)) {
    if (signal->signal != 0) tell(JobEvent::UserSignal{signal->signal});
  } else if (const auto* ended = std::get_if<AgentEnded>(&message)) {
    // Its next agent may have been faster than this news; it dials again and introduces itself.
    drop_agent(ended->host, "its agent has ended");
    tell(JobEvent::AgentGone{ended->host, ended->reason});
  }
}

void Coordinator::send_to_launcher(const Message& message) {
  for (auto& [id, connection] : connections_)
    if (connection.role == Connection::Role::kLauncher) connection.socket->send(message);
}

// Decides once for all that is told in this turn of the loop: many losses make one view.
void Coordinator::settle_soon() {
  if (*settling_) return;
  *settling_ = true;
  loop_.post([this, settling = settling_] {
    // False if the coordinator is gone.
    if (std::exchange(*settling, false)) tell(JobEvent::Settle{});
  });
}

// Who seems silent may have spoken while this process was not running.
void Coordinator::hear_silent() {
  if (elastic_ == nullptr) return;
  for (const PeerId peer : elastic_->silent(now()))
    if (Connection* const connection = connection_of(peer)) connection->socket->read_now();
}

void Coordinator::keep_log(const std::vector<JobAction::Any>& actions) {
  const auto matters = [](const JobAction::Any& action) {
    return !std::holds_alternative<JobAction::Say>(action);
  };
  if (std::any_of(actions.begin(), actions.end(), matters)) keep_now();
}

void Coordinator::keep_now() {
  if (callbacks_.on_log) callbacks_.on_log(elastic_->roster().snapshot());
}

void Coordinator::start_worker(const JobAction::Start& start) {
  const StartWorker order{start.peer.slot, start.peer.incarnation, start.number};
  if (send_to_agent(start.peer.host, order)) return;
  // Told later, when what is being done now is done.
  events_.push_back(WorkerExited{.peer = start.peer,
                                 .pid = 0,
                                 .exit_code = 1,
                                 .signal = 0,
                                 .problem = "could not be started: the agent of its host is gone"});
}

void Coordinator::signal_worker(const SignalWorker& signal) {
  send_to_agent(signal.peer.host, signal);
}

void Coordinator::drop_agent(uint32_t host, const std::string& why) {
  for (const auto& [id, connection] : connections_) {
    if (connection.role != Connection::Role::kAgent || connection.host != host) continue;
    drop(id, why);
    return;
  }
}

bool Coordinator::send_to_agent(uint32_t host, const Message& message) {
  for (auto& [id, connection] : connections_) {
    if (connection.role != Connection::Role::kAgent || connection.host != host) continue;
    connection.socket->send(message);
    return true;
  }
  return false;
}

void Coordinator::publish_news(const JobAction::Event& event) {
  log(LogLevel::kDebug, fmt::format("{}: {}", event.kind, event.text));
  if (!callbacks_.on_news) return;
  callbacks_.on_news({.sequence = ++news_,
                      .time = std::chrono::system_clock::now(),
                      .kind = event.kind,
                      .text = event.text,
                      .fields = event.fields});
}

}  // namespace pliant
