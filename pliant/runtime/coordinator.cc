#include "pliant/runtime/coordinator.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "pliant/base/log.h"

namespace pliant {
namespace {

constexpr size_t kStrangersMin = 64;
constexpr Duration kRefusedWait = std::chrono::seconds(2);
// After a failed accept(), usually for want of descriptors.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

Result<std::unique_ptr<JobDecisions>> make_job(const CoordinatorOptions& options) {
  if (!options.elastic)
    return std::unique_ptr<JobDecisions>(new Job(options.job, options.workers, now()));
  if (options.log.empty())
    return std::unique_ptr<JobDecisions>(new ElasticJob(options.job, *options.elastic, now()));
  auto job = ElasticJob::resume(options.job, *options.elastic, options.log, now());
  if (!job) return job.error();
  return std::unique_ptr<JobDecisions>(new ElasticJob(std::move(*job)));
}

size_t most_workers(const CoordinatorOptions& options) {
  return options.elastic ? options.elastic->max : options.workers.size();
}

}  // namespace

Result<std::unique_ptr<Coordinator>> Coordinator::open(Loop& loop, CoordinatorOptions options,
                                                       Callbacks callbacks) {
  auto listener =
      options.listener >= 0 ? Result<Fd>(Fd(options.listener)) : listen_tcp(options.address);
  if (!listener) return listener.error();
  const auto address = local_address(*listener);
  if (!address) return address.error();
  auto job = make_job(options);
  if (!job) return job.error();
  return std::unique_ptr<Coordinator>(new Coordinator(loop, std::move(options),
                                                      std::move(callbacks), std::move(*listener),
                                                      to_string(*address), std::move(*job)));
}

Coordinator::Coordinator(Loop& loop, CoordinatorOptions options, Callbacks callbacks, Fd listener,
                         std::string endpoint, std::unique_ptr<JobDecisions> job)
    : loop_(loop),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      listener_(std::move(listener)),
      endpoint_(std::move(endpoint)),
      // All workers may dial in the same moment, and none of them has greeted then.
      strangers_max_(kStrangersMin + most_workers(options_)),
      job_(std::move(job)),
      elastic_(options_.elastic ? static_cast<ElasticJob*>(job_.get()) : nullptr) {
  if (elastic_ != nullptr) herald_ = Herald(elastic_->roster().view());
  for (const Member& member : herald_.newest().members) member_since_[member.id] = now();
  listen_again();
  arm_timer();
}

Coordinator::~Coordinator() {
  loop_.assert_held();
  pause_listening();
  if (resume_) loop_.cancel(*resume_);
  if (tick_) loop_.cancel(*tick_);
  *settling_ = false;
  for (auto& [id, connection] : connections_)
    if (connection.deadline) loop_.cancel(*connection.deadline);
}

void Coordinator::listen_again() {
  if (listening_) return;
  listening_ = true;
  loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_waiting(); });
}

void Coordinator::pause_listening() {
  if (!listening_) return;
  listening_ = false;
  loop_.unwatch(listener_.get());
}

void Coordinator::accept_waiting() {
  while (true) {
    // Further ones wait in the kernel until some have greeted or were dropped.
    if (stranger_count() >= strangers_max_) {
      pause_listening();
      return;
    }
    auto fd = accept_from(listener_);
    if (!fd) {
      log(LogLevel::kWarning, fd.error().message);
      pause_listening();
      resume_ = loop_.at(now() + kAcceptPause, [this] { resume_.reset(), listen_again(); });
      return;
    }
    if (!fd->valid()) return;
    const Id id = next_id_++;
    Connection& connection = connections_[id];
    const auto from = remote_address(*fd);
    connection.from = from ? to_string(*from) : "an unknown address";
    connection.deadline = loop_.at(now() + options_.stranger_timeout,
                                   [this, id] { drop(id, "it did not introduce itself"); });
    connection.socket = std::make_unique<ControlSocket>(
        loop_, std::move(*fd), ControlSocket::State::kOpen, kStrangerBytesMax,
        ControlSocket::Callbacks{[this, id](const Message& message) { on_message(id, message); },
                                 [this, id](const Error& error) { on_closed(id, error); }});
  }
}

size_t Coordinator::stranger_count() const {
  return static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(), [](const auto& entry) {
        return entry.second.role == Connection::Role::kStranger ||
               entry.second.role == Connection::Role::kRefused;
      }));
}

void Coordinator::on_message(Id id, const Message& message) {
  Connection& connection = connections_.at(id);
  using Role = Connection::Role;
  switch (connection.role) {
    case Role::kStranger: greet(id, message); return;
    case Role::kRefused: return;
    case Role::kGreeted: introduce(id, message); return;
    case Role::kWorker:
      if (std::holds_alternative<Leave>(message)) {
        tell(JobEvent::Left{connection.peer});
      } else if (const auto* lost = std::get_if<PeerLost>(&message)) {
        tell(JobEvent::Suspected{connection.peer, *lost});
      } else if (elastic_ != nullptr && std::holds_alternative<Join>(message)) {
        join_again(connection.peer, std::get<Join>(message));
      } else if (elastic_ != nullptr) {
        tell(JobEvent::Told{connection.peer, message});
      }
      return;
    case Role::kAgent: hear_agent(connection, message); return;
    case Role::kLauncher: hear_launcher(message); return;
  }
}

// The first message after the greeting says what it is.
void Coordinator::introduce(Id id, const Message& message) {
  Connection& connection = connections_.at(id);
  if (const auto* join = std::get_if<Join>(&message)) {
    admit_worker(id, *join);
  } else if (const auto* ready = std::get_if<AgentReady>(&message)) {
    // Its earlier connection broke, though we do not see that yet.
    drop_agent(ready->host, "its agent has dialled again");
    connection.role = Connection::Role::kAgent;
    connection.host = ready->host;
    tell(*ready);
  } else if (elastic_ != nullptr && std::holds_alternative<LauncherSignal>(message)) {
    connection.role = Connection::Role::kLauncher;
    if (finished_) connection.socket->send(*finished_);
    if (std::get<LauncherSignal>(message).signal == SIGTERM) {
      // The job was ending when the coordinator before this one died, maybe with a deadline.
      tell(JobEvent::Stop{});
    } else {
      hear_launcher(message);
    }
  } else {
    drop(id, "it sent a message out of order");
  }
}

// An agent speaks for its own host only.
void Coordinator::hear_agent(const Connection& agent, const Message& message) {
  if (const auto* exited = std::get_if<WorkerExited>(&message);
      exited != nullptr && exited->peer.host == agent.host)
    tell(*exited);
  if (const auto* died = std::get_if<WorkerDied>(&message);
      died != nullptr && died->peer.host == agent.host)
    tell(*died);
  if (const auto* notice = std::get_if<Notice>(&message);
      notice != nullptr && notice->host == agent.host)
    tell(*notice);
}

void Coordinator::greet(Id id, const Message& message) {
  const auto* const greeting = std::get_if<Greeting>(&message);
  if (greeting == nullptr) {
    drop(id, "it did not greet");
    return;
  }
  if (!equal_in_constant_time(greeting->token, options_.token)) {
    refuse(id, {Code::kInvalid, "the token is not that of this job"});
    return;
  }
  if (greeting->version != kControlVersion) {
    refuse(id, {Code::kInvalid,
                fmt::format("it speaks version {} of the control protocol and this is {}; use one "
                            "release of Pliant on all hosts",
                            greeting->version, kControlVersion)});
    return;
  }
  Connection& connection = connections_.at(id);
  connection.role = Connection::Role::kGreeted;
  connection.socket->set_limit(kControlBytesMax);
  loop_.cancel(*connection.deadline);
  connection.deadline.reset();
  if (!resume_) listen_again();
}

void Coordinator::admit_worker(Id id, const Join& join) {
  const PeerId peer = join.member.id;
  // Its earlier connection may have closed in the same moment.
  if (Connection* const earlier = connection_of(peer)) earlier->socket->read_now();
  if (connection_of(peer) != nullptr) {
    refuse(id, {Code::kInvalid, fmt::format("peer {} has joined already; only one process can be "
                                            "this worker",
                                            to_string(peer))});
    return;
  }
  Connection& connection = connections_.at(id);
  connection.role = Connection::Role::kWorker;
  connection.peer = peer;
  workers_[peer] = id;
  herald_.joined(peer, join.epoch);
  tell(JobEvent::Joined{join.member, join.epoch});
}

// A member could not use what it was told of a view; the answer is the whole of the newest.
void Coordinator::join_again(PeerId peer, const Join& join) {
  if (join.member.id != peer || join.epoch == 0) return;
  log(LogLevel::kWarning, fmt::format("peer {} asks for the whole view; it has that of epoch {}",
                                      to_string(peer), join.epoch));
  herald_.joined(peer, join.epoch);
  tell(JobEvent::Joined{join.member, join.epoch});
}

void Coordinator::refuse(Id id, const Refused& refused) {
  Connection& connection = connections_.at(id);
  log(LogLevel::kInfo, fmt::format("refused {}: {}", connection.from, refused.reason));
  if (connection.role == Connection::Role::kWorker) workers_.erase(connection.peer);
  connection.role = Connection::Role::kRefused;
  connection.socket->send(refused);
  connection.socket->finish_sending();
  if (connection.deadline) loop_.cancel(*connection.deadline);
  connection.deadline = loop_.at(now() + kRefusedWait, [this, id] { drop(id, "it was refused"); });
}

void Coordinator::drop(Id id, const std::string& why) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  log(LogLevel::kInfo, fmt::format("dropped the connection from {}: {}", at->second.from, why));
  if (at->second.deadline) loop_.cancel(*at->second.deadline);
  connections_.erase(at);
  if (!resume_) listen_again();
}

void Coordinator::on_closed(Id id, const Error& error) {
  // The socket is destroyed at the end, by drop().
  const Connection& connection = connections_.at(id);
  const auto role = connection.role;
  const PeerId peer = connection.peer;
  const uint32_t host = connection.host;
  if (role == Connection::Role::kWorker) workers_.erase(peer);
  drop(id, error.message);
  if (role == Connection::Role::kWorker) tell(JobEvent::Disconnected{peer});
  if (role == Connection::Role::kAgent)
    tell(JobEvent::AgentGone{host, "the agent's connection ended (" + error.message + ")"});
}

Coordinator::Connection* Coordinator::connection_of(PeerId peer) {
  const auto at = workers_.find(peer);
  return at == workers_.end() ? nullptr : &connections_.at(at->second);
}

void Coordinator::tell(const JobEvent::Any& event) {
  loop_.assert_held();
  // What a worker said last, whom it missed above all, comes before the news of its end.
  if (const auto* exited = std::get_if<WorkerExited>(&event)) {
    if (Connection* const connection = connection_of(exited->peer)) connection->socket->read_now();
  }
  if (const auto* ready = std::get_if<AgentReady>(&event); ready && !ready->store.empty())
    stores_[ready->host] = {ready->host, ready->store_http, ready->store};
  if (const auto* gone = std::get_if<JobEvent::AgentGone>(&event)) stores_.erase(gone->host);
  events_.push_back(event);
  if (handling_) return;
  drain_events();
  // A heartbeat only moves deadlines away, and comes too often to look at all of them each time.
  // So do the reports of a loss by everybody; the decision about them is due in a moment.
  if (elastic_ != nullptr && elastic_->unsettled()) return;
  const auto* const told = std::get_if<JobEvent::Told>(&event);
  if (told == nullptr || !std::holds_alternative<Alive>(told->message)) arm_timer();
}

void Coordinator::drain_events() {
  handling_ = true;
  while (!events_.empty()) {
    const JobEvent::Any next = std::move(events_.front());
    events_.pop_front();
    const std::vector<JobAction::Any> actions = job_->handle(next, now());
    if (elastic_ != nullptr && !actions.empty()) keep_log(actions);
    for (const JobAction::Any& action : actions) perform(action);
  }
  handling_ = false;
  if (elastic_ != nullptr && elastic_->unsettled()) settle_soon();
}

void Coordinator::perform(const JobAction::Any& action) {
  if (const auto* start = std::get_if<StartWorkers>(&action)) {
    send_to_agents(*start);
    if (callbacks_.on_start) callbacks_.on_start(*start);
  } else if (const auto* view = std::get_if<JobAction::Publish>(&action)) {
    publish(*view);
  } else if (const auto* refusal = std::get_if<JobAction::Refuse>(&action)) {
    if (const auto at = workers_.find(refusal->peer); at != workers_.end())
      refuse(at->second, refusal->refused);
  } else if (const auto* tell_lost = std::get_if<JobAction::TellLost>(&action)) {
    log(LogLevel::kInfo, tell_lost->lost.reason);
    send_to_all(tell_lost->to, tell_lost->lost);
  } else if (const auto* signal = std::get_if<SignalWorkers>(&action)) {
    send_to_agents(*signal);
    // It reminds the next coordinator that the job was ending.
    send_to_launcher(*signal);
    if (callbacks_.on_signal) callbacks_.on_signal(signal->signal);
  } else if (const auto* message = std::get_if<JobAction::Send>(&action)) {
    send_to_all(message->to, message->message);
  } else if (const auto* one = std::get_if<JobAction::Start>(&action)) {
    start_worker(*one);
  } else if (const auto* signal_one = std::get_if<SignalWorker>(&action)) {
    signal_worker(*signal_one);
  } else if (const auto* event = std::get_if<JobAction::Event>(&action)) {
    publish_news(*event);
  } else if (const auto* say = std::get_if<JobAction::Say>(&action)) {
    if (callbacks_.on_line) callbacks_.on_line(say->text);
  } else if (const auto* finish = std::get_if<JobAction::Finish>(&action)) {
    finished_ = JobFinished{finish->exit_code, finish->message};
    send_to_launcher(*finished_);
    if (callbacks_.on_finish) callbacks_.on_finish(*finish);
  }
}

void Coordinator::publish(const JobAction::Publish& publish) {
  for (const Herald::Telling& telling : herald_.tell(publish.view, publish.gone, publish.to))
    send_to_all(telling.to, telling.message);
  for (const Departure& gone : publish.gone) member_since_.erase(gone.peer);
  for (const Member& member : publish.view.members) member_since_.try_emplace(member.id, now());
}

void Coordinator::send_to_all(const std::vector<PeerId>& peers, const Message& message) {
  const std::vector<std::byte> bytes = encode_message(message);
  for (const PeerId peer : peers)
    if (Connection* const connection = connection_of(peer)) connection->socket->send_encoded(bytes);
}

void Coordinator::send_to_agents(const Message& message) {
  for (auto& [id, connection] : connections_)
    if (connection.role == Connection::Role::kAgent) connection.socket->send(message);
}

void Coordinator::arm_timer() {
  if (tick_) loop_.cancel(*tick_);
  tick_.reset();
  const auto due = job_->next_deadline();
  if (!due) return;
  tick_ = loop_.at(*due, [this, due = *due] {
    tick_.reset();
    hear_silent();
    if (elastic_ != nullptr && now() - due > options_.elastic->heartbeat / 8)
      tell(JobEvent::Overslept{});
    tell(JobEvent::Tick{});
  });
}

}  // namespace pliant
