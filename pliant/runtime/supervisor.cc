#include "pliant/runtime/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "pliant/base/log.h"

namespace pliant {
namespace {

constexpr size_t kRestartsMax = 10;
constexpr Duration kRestartWindow = std::chrono::minutes(1);
constexpr Duration kRestartAfterMin = std::chrono::milliseconds(20);
constexpr Duration kRestartAfterMax = std::chrono::seconds(5);
constexpr int kEndWaitMs = 1000;

// The journal matters for as long as this machine runs, since the launcher ends with it. In memory
// it costs no time before a view.
Result<std::unique_ptr<JobFolder>> make_folder() {
  std::error_code ignored;
  return JobFolder::make({"/dev/shm", std::filesystem::temp_directory_path(ignored).string()});
}

Result<std::string> name_of(const Fd& listener) {
  const auto address = local_address(listener);
  if (!address) return address.error();
  return to_string(*address);
}

}  // namespace

Result<std::unique_ptr<Supervisor>> Supervisor::open(Loop& loop, Output& error, Options options,
                                                     OnFinish on_finish) {
  std::unique_ptr<Supervisor> supervisor(
      new Supervisor(loop, error, std::move(options), std::move(on_finish)));
  PLIANT_TRY(supervisor->prepare());
  return supervisor;
}

Status Supervisor::prepare() {
  auto listener = listen_tcp(options_.address);
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  auto endpoint = name_of(listener_);
  if (!endpoint) return endpoint.error();
  endpoint_ = std::move(*endpoint);
  options_.spec.listener = listener_.get();
  if (options_.control) {
    auto control = listen_tcp(*options_.control);
    if (!control) return control.error();
    control_listener_ = std::move(*control);
    auto name = name_of(control_listener_);
    if (!name) return name.error();
    control_endpoint_ = std::move(*name);
    options_.spec.control_listener = control_listener_.get();
  }
  auto folder = make_folder();
  if (!folder) return folder.error();
  folder_ = std::move(*folder);
  options_.spec.journal = folder_->path() + "/journal";
  return {};
}

Supervisor::~Supervisor() {
  if (restart_) loop_.cancel(*restart_);
  link_.reset();
  if (child_) {
    // It ends by itself when its input does, and prints its last lines.
    child_->close_input();
    const Fd ended(static_cast<int>(syscall(SYS_pidfd_open, child_->pid(), 0)));
    pollfd entry{ended.get(), POLLIN, 0};
    poll(&entry, 1, kEndWaitMs);
    child_->read_now();
    child_.reset();
  }
}

Status Supervisor::start() {
  PLIANT_TRY(spawn());
  const auto address = local_address(listener_);
  if (!address) return address.error();
  link_ = std::make_unique<SteadyLink>(
      loop_, *address, options_.spec.token,
      SteadyLink::Callbacks{[this] { return introduction(); },
                            [this](const Message& message) { on_message(message); }});
  return {};
}

std::vector<Message> Supervisor::introduction() const {
  std::vector<Message> messages = {LauncherSignal{ending_signal_}};
  for (const auto& [host, reason] : ended_agents_) messages.push_back(AgentEnded{host, reason});
  return messages;
}

Status Supervisor::spawn() {
  ChildOptions child;
  child.program = options_.program;
  child.arguments = {options_.program, "coordinator"};
  for (char** entry = environ; *entry != nullptr; ++entry) child.environment.emplace_back(*entry);
  child.group = 0;  // its own: the terminal's signals are ours to pass on
  child.wants_input = true;
  child.error = &error_;
  child.inherited = {listener_.get(), folder_->lock().get()};
  if (control_listener_.valid()) child.inherited.push_back(control_listener_.get());
  auto started = Child::start(loop_, child, [this](const ChildEnd& end) { on_end(end); });
  if (!started) return started.error();
  const std::string order = spec_json(options_.spec);
  PLIANT_TRY((*started)->write_input(std::as_bytes(std::span(order))));
  child_ = std::move(*started);
  return {};
}

void Supervisor::on_end(const ChildEnd& end) {
  child_.reset();
  if (finished_) return;
  ++options_.spec.life;
  ends_.push_back(now());
  while (ends_.back() - ends_.front() > kRestartWindow) ends_.pop_front();
  const std::string how = end.signal != 0 ? fmt::format("was killed by signal {}", end.signal)
                                          : fmt::format("ended with code {}", end.exit_code);
  if (end.exit_code == kCoordinatorHopeless)
    return finish({1, "the job's coordinator cannot go on; the job ends"});
  if (ends_.size() > kRestartsMax)
    return finish({1, fmt::format("the job's coordinator {}, and {} before it within a minute; "
                                  "the job ends",
                                  how, ends_.size() - 1)});
  error_.write(
      fmt::format("pliant: the coordinator (pid {}) {}; another one takes over\n", end.pid, how));
  const Duration wait =
      std::min(kRestartAfterMax, kRestartAfterMin * (int64_t{1} << (ends_.size() - 1)));
  restart_ = loop_.at(now() + wait, [this] {
    restart_.reset();
    if (const Status status = spawn(); !status) finish({1, status.error().message});
  });
}

void Supervisor::on_message(const Message& message) {
  if (const auto* finished = std::get_if<JobFinished>(&message)) {
    finish(*finished);
  } else if (const auto* signal = std::get_if<SignalWorkers>(&message)) {
    remember(signal->signal);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    log(LogLevel::kWarning, "the coordinator refused the launcher: " + refused->reason);
  }
}

void Supervisor::remember(int signal) {
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) ending_signal_ = signal;
}

void Supervisor::signal(int signal) {
  remember(signal);
  if (link_) link_->send(LauncherSignal{signal});
}

void Supervisor::agent_ended(uint32_t host, const std::string& reason) {
  ended_agents_[host] = reason;
  if (link_) link_->send(AgentEnded{host, reason});
}

void Supervisor::finish(const JobFinished& finished) {
  if (std::exchange(finished_, true)) return;
  on_finish_(finished);
}

}  // namespace pliant
