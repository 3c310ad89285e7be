#include "pliant/runtime/launch.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "pliant/base/log.h"
#include "pliant/base/thread.h"
#include "pliant/runtime/agent.h"
#include "pliant/runtime/child.h"
#include "pliant/runtime/control_api.h"
#include "pliant/runtime/coordinator.h"
#include "pliant/runtime/job_files.h"
#include "pliant/runtime/job_watch.h"
#include "pliant/runtime/output.h"
#include "pliant/runtime/process_group.h"
#include "pliant/runtime/steady_link.h"
#include "pliant/runtime/supervisor.h"

namespace pliant {
namespace {

constexpr size_t kTokenBytes = 32;
// For agents to end and their last output to arrive, after the job has ended.
constexpr Duration kWindDownMax = std::chrono::seconds(5);
// For the coordinator to end the job after the user has asked twice.
constexpr Duration kLastWordWait = std::chrono::seconds(10);
// Before the agent of a host is started again; twice as long each time.
constexpr Duration kAgentRestartMin = std::chrono::milliseconds(500);
constexpr Duration kAgentRestartMax = std::chrono::seconds(30);
// An agent that served for so long starts with a short wait again.
constexpr Duration kAgentProvenAfter = std::chrono::seconds(10);
constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

Result<std::string> random_token() {
  std::array<unsigned char, kTokenBytes> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != std::ssize(bytes))
    return system_error("cannot draw a random token");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

// The signals of the user, as events of the loop. Those of before are back when it is destroyed.
class SignalWatch final {
 public:
  SignalWatch(Loop& loop, std::function<void(int)> on_signal) : loop_(loop) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : kForwarded) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
    pipe_before_ = std::signal(SIGPIPE, SIG_IGN);
    fd_ = Fd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    PLIANT_CHECK(fd_.valid(), "out of file descriptors");
    loop_.watch(fd_.get(), EPOLLIN, [this, on_signal = std::move(on_signal)](uint32_t) {
      signalfd_siginfo info{};
      while (read(fd_.get(), &info, sizeof info) == sizeof info)
        on_signal(static_cast<int>(info.ssi_signo));
    });
  }
  ~SignalWatch() {
    loop_.unwatch(fd_.get());
    std::signal(SIGPIPE, pipe_before_);
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  Loop& loop_;
  sigset_t mask_before_;
  void (*pipe_before_)(int);
  Fd fd_;
};

std::string machine_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

Result<std::string> address_towards(const Host& host) {
  const auto error = [&](const std::string& why) {
    return invalid(fmt::format(
        "cannot tell by which address host '{}' reaches this machine: {}; check the host's name, "
        "or give --address",
        host.name, why));
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string& name = host.address.empty() ? host.name : host.address;
  if (const int failed = getaddrinfo(name.c_str(), "9", &hints, &found); failed != 0)
    return error(fmt::format("'{}' is not known here ({})", name, gai_strerror(failed)));
  Address target;
  std::memcpy(&target.storage, found->ai_addr, found->ai_addrlen);
  target.size_bytes = found->ai_addrlen;
  freeaddrinfo(found);
  const auto local = address_towards(target);
  if (!local) return error(local.error().message);
  return host_text(*local);
}

// A job in the making and its parts, in the order in which they depend on each other.
class Launch final {
 public:
  Launch(const LaunchOptions& options, Loop& loop)
      : options_(options), loop_(loop), out_(loop, STDOUT_FILENO), error_(loop, STDERR_FILENO) {}

  Status plan();
  Status plan_elastic();
  Status plan_places();
  Result<LaunchResult> run();

 private:
  std::string program_name() const;
  std::string name() const;
  Status open_coordinator();
  Status open_control();
  Status open_supervisor();
  void publish_job();
  Coordinator::Callbacks callbacks();
  void on_user_signal(int signal);
  AgentSpec spec_for(uint32_t host) const;
  Status start_local(uint32_t host);
  void link_local(uint32_t host);
  void obey(uint32_t host, const Message& order);
  Status start_remote(uint32_t host);
  void on_remote_end(uint32_t host, const std::string& what, const ChildEnd& end);
  void restart_remote_later(uint32_t host, const std::string& reason);
  void turn(Duration longest);
  void wind_down();

  const LaunchOptions& options_;
  Loop& loop_;
  std::vector<Host> hosts_;
  std::vector<WorkerPlace> places_;       // of a job of fixed size
  std::optional<RosterOptions> elastic_;  // of another
  std::vector<bool> local_;               // by host
  std::string address_;                   // of the coordinator
  std::string token_;
  std::string control_token_;
  std::string control_endpoint_;  // of the HTTP interface
  int ending_signals_ = 0;        // so many times the user asked the job to end

  Output out_;
  Output error_;
  std::unique_ptr<ProcessGroup> workers_;
  std::unique_ptr<ProcessGroup> launchers_;  // of ssh and the like; not sent the user's signals
  JobWatch watch_;
  std::unique_ptr<Coordinator> coordinator_;  // of a job of fixed size
  std::unique_ptr<ControlApi> api_;
  std::unique_ptr<Supervisor> supervisor_;  // of the coordinator of an elastic one
  std::unique_ptr<JobFile> file_;
  std::map<uint32_t, std::unique_ptr<SteadyLink>> links_;  // of our agents to that coordinator
  std::map<uint32_t, std::unique_ptr<Agent>> agents_;
  std::optional<Loop::TimerId> last_word_;
  std::map<uint32_t, std::unique_ptr<Child>> remotes_;
  // How the agent of a host fared, in an elastic job.
  struct Restarts {
    Instant started{};
    Duration wait = kAgentRestartMin;
    std::optional<Loop::TimerId> timer;
  };
  std::map<uint32_t, Restarts> restarts_;
  std::optional<LaunchResult> result_;
};

Status Launch::plan_elastic() {
  auto roster = elastic_roster(*options_.elastic, options_.count, options_.hosts);
  if (!roster) return roster.error();
  elastic_ = std::move(*roster);
  elastic_->join_timeout = options_.session.join_timeout;
  hosts_ = options_.hosts;
  if (hosts_.empty()) hosts_.push_back({"localhost", elastic_->hosts[0].slots, ""});
  for (const Host& host : hosts_)
    PLIANT_TRY(revocation_for(options_.elastic->revocation, host.name));
  return {};
}

Status Launch::plan_places() {
  hosts_ = options_.hosts;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (hosts_.empty()) {
    if (options_.count > cores)
      log(LogLevel::kInfo, fmt::format("{} workers share {} cores", options_.count, cores));
    hosts_.push_back({"localhost", std::max({options_.count, cores, 1}), ""});
  }
  int slots = 0;
  for (const Host& host : hosts_) slots += host.slots;
  auto places = place_workers(hosts_, options_.count == 0 ? slots : options_.count);
  if (!places) return places.error();
  places_ = std::move(*places);
  hosts_.resize(places_.back().id.host + 1);
  return {};
}

Status Launch::plan() {
  if (options_.command.empty()) return invalid("no program to run");
  PLIANT_TRY(options_.elastic ? plan_elastic() : plan_places());
  const std::string machine = machine_name();
  for (const Host& host : hosts_) local_.push_back(is_local(host, machine));
  const auto remote = std::find(local_.begin(), local_.end(), false);
  if (!options_.address.empty()) {
    address_ = options_.address;
  } else if (remote == local_.end()) {
    address_ = "127.0.0.1";
  } else {
    const auto address = address_towards(hosts_[static_cast<size_t>(remote - local_.begin())]);
    if (!address) return address.error();
    address_ = *address;
  }
  auto token = random_token();
  if (!token) return token.error();
  token_ = std::move(*token);
  // Workers have the one; it does not let them command the job.
  auto control_token = random_token();
  if (!control_token) return control_token.error();
  control_token_ = std::move(*control_token);
  return {};
}

std::string Launch::program_name() const {
  return std::filesystem::path(options_.command[0]).filename().string();
}

std::string Launch::name() const { return options_.name.empty() ? program_name() : options_.name; }

Status Launch::open_coordinator() {
  const auto address = parse_address(address_, 0);
  if (!address) return address.error();
  CoordinatorOptions options;
  options.address = *address;
  options.token = token_;
  options.job.join_timeout = options_.session.join_timeout;
  options.job.grace = options_.grace;
  options.workers = places_;
  options.name = name();
  auto coordinator = Coordinator::open(loop_, std::move(options), callbacks());
  if (!coordinator) return coordinator.error();
  coordinator_ = std::move(*coordinator);
  return open_control();
}

Status Launch::open_control() {
  if (!options_.control) return {};
  const auto address = parse_endpoint(options_.control->endpoint);
  if (!address) return address.error();
  ControlOptions options;
  options.http.address = *address;
  options.http.token = control_token_;
  auto api = ControlApi::open(loop_, watch_.events(), watch_.backend(*coordinator_), options);
  if (!api) return api.error();
  api_ = std::move(*api);
  control_endpoint_ = api_->endpoint();
  return {};
}

Status Launch::open_supervisor() {
  const auto address = parse_address(address_, 0);
  if (!address) return address.error();
  Supervisor::Options options;
  options.address = *address;
  if (options_.control) {
    const auto control = parse_endpoint(options_.control->endpoint);
    if (!control) return control.error();
    options.control = *control;
  }
  options.program = options_.coordinator_program;
  if (options.program.empty()) {
    auto program = own_program();
    if (!program) return program.error();
    options.program = *program;
  }
  options.spec.token = token_;
  options.spec.control_token = control_token_;
  options.spec.name = name();
  options.spec.verbose = options_.verbose;
  options.spec.grace = options_.grace;
  options.spec.join_timeout = options_.session.join_timeout;
  options.spec.roster = *elastic_;
  auto supervisor =
      Supervisor::open(loop_, error_, std::move(options), [this](const JobFinished& finished) {
        if (!result_) result_ = LaunchResult{finished.exit_code, finished.message};
      });
  if (!supervisor) return supervisor.error();
  supervisor_ = std::move(*supervisor);
  control_endpoint_ = supervisor_->control_endpoint();
  return {};
}

// Without the file the job runs as well; only the commands for people do not find it.
void Launch::publish_job() {
  if (!options_.control || options_.control->folder.empty()) return;
  JobEntry entry{
      .job = name(), .endpoint = control_endpoint_, .token = control_token_, .pid = getpid()};
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    JobStore& store = entry.stores.emplace_back();
    store.host = hosts_[host].name;
    store.number = host;
    store.job = spec_for(host).environment["PLIANT_JOB"];
    store.token = token_;
    const auto agent = agents_.find(host);
    if (agent == agents_.end() || agent->second->store() == nullptr) continue;
    store.name = agent->second->store()->name();
    store.endpoint = agent->second->store()->endpoint();
  }
  auto file = JobFile::write(options_.control->folder, entry);
  if (file) {
    file_ = std::move(*file);
  } else {
    log(LogLevel::kWarning, "`pliant status` will not find this job: " + file.error().message);
  }
}

void Launch::on_user_signal(int signal) {
  if (result_) return;
  if (coordinator_) return coordinator_->tell(JobEvent::UserSignal{signal});
  supervisor_->signal(signal);
  const bool asks_to_end = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  if (!asks_to_end || ++ending_signals_ < 2) return;
  // The coordinator orders this as well, unless it is not there.
  if (workers_) workers_->signal(SIGKILL);
  if (last_word_) return;
  last_word_ = loop_.at(now() + kLastWordWait, [this, signal] {
    last_word_.reset();
    if (!result_) result_ = LaunchResult{128 + signal, "interrupted; the job ends"};
  });
}

Coordinator::Callbacks Launch::callbacks() {
  Coordinator::Callbacks callbacks;
  callbacks.on_start = [this](const StartWorkers& start) {
    for (auto& [host, agent] : agents_) agent->start(start);
  };
  callbacks.on_signal = [this](int signal) {
    if (workers_) workers_->signal(signal);
  };
  callbacks.on_finish = [this](const JobAction::Finish& finish) {
    result_ = LaunchResult{finish.exit_code, finish.message};
  };
  return callbacks;
}

AgentSpec Launch::spec_for(uint32_t host) const {
  const auto here = [&](const WorkerPlace& place) { return place.id.host == host; };
  const auto first = std::find_if(places_.begin(), places_.end(), here);
  SessionOptions session = options_.session;
  if (session.job.empty()) session.job = program_name();
  AgentSpec spec;
  spec.coordinator = coordinator_ ? coordinator_->endpoint() : supervisor_->endpoint();
  spec.token = token_;
  spec.host_name = hosts_[host].name;
  spec.address = hosts_[host].address;
  if (spec.address.empty() && local_[host]) spec.address = address_;
  spec.host = host;
  spec.group_rank = host;
  if (elastic_) {
    spec.elastic = true;
    spec.revocation = revocation_for(options_.elastic->revocation, spec.host_name).value();
    spec.worker_count = elastic_->hosts[host].slots;
    spec.world_size = elastic_->initial;
  } else {
    spec.first_rank = static_cast<uint32_t>(first - places_.begin());
    spec.worker_count = static_cast<uint32_t>(std::count_if(first, places_.end(), here));
    spec.world_size = static_cast<uint32_t>(places_.size());
  }
  spec.command = options_.command;
  std::error_code ignored;
  spec.directory = std::filesystem::current_path(ignored).string();
  spec.environment = to_environment(session);
  if (elastic_) {
    spec.environment["PLIANT_ELASTIC"] = "1";
    spec.environment["PLIANT_HEARTBEAT"] = fmt::format("{}", seconds(elastic_->heartbeat));
    spec.environment["PLIANT_SCHEDULE"] = options_.elastic->schedule;
    if (options_.elastic->schedule.empty()) spec.environment.erase("PLIANT_SCHEDULE");
    spec.environment["PLIANT_MEMBERS_MIN"] = std::to_string(elastic_->min);
    spec.environment["PLIANT_MEMBERS_MAX"] = std::to_string(elastic_->max);
  }
  for (const auto& [name, value] : options_.environment) spec.environment[name] = value;
  spec.output = options_.output;
  spec.store = options_.store;
  return spec;
}

Status Launch::start_local(uint32_t host) {
  if (!workers_) {
    auto group = ProcessGroup::make();
    if (!group) return group.error();
    workers_ = std::move(*group);
  }
  auto& agent = agents_[host];
  agent =
      std::make_unique<Agent>(Agent::Surroundings{loop_, *workers_, out_, error_}, spec_for(host),
                              Agent::Reports{[this, host](const WorkerExited& end) {
                                               if (coordinator_) return coordinator_->tell(end);
                                               if (links_.contains(host))
                                                 links_.at(host)->send(end);
                                             },
                                             [this, host](const WorkerDied& died) {
                                               if (links_.contains(host))
                                                 links_.at(host)->send(died);
                                             },
                                             [this, host](const Notice& notice) {
                                               if (links_.contains(host))
                                                 links_.at(host)->send(notice);
                                             }});
  const AgentReady ready = agent->prepare();
  if (coordinator_) {
    coordinator_->tell(ready);
  } else if (!ready.problem.empty()) {
    result_ = LaunchResult{ready.exit_code == 0 ? 1 : ready.exit_code, ready.problem};
  }
  return {};
}

// Our own agents talk to the coordinator's process as those of other hosts do.
void Launch::link_local(uint32_t host) {
  const auto address = parse_endpoint(supervisor_->endpoint());
  PLIANT_CHECK(address.ok(), "the supervisor listens nowhere");
  links_[host] = std::make_unique<SteadyLink>(
      loop_, *address, token_,
      SteadyLink::Callbacks{
          [this, host]() -> std::vector<Message> { return {agents_.at(host)->report()}; },
          [this, host](const Message& order) { obey(host, order); }});
}

void Launch::obey(uint32_t host, const Message& order) {
  Agent& agent = *agents_.at(host);
  if (const auto* start = std::get_if<StartWorkers>(&order)) {
    agent.start(*start);
  } else if (const auto* one = std::get_if<StartWorker>(&order)) {
    agent.start_worker(*one);
  } else if (const auto* signal_one = std::get_if<SignalWorker>(&order)) {
    agent.signal_worker(*signal_one);
  } else if (const auto* signal = std::get_if<SignalWorkers>(&order)) {
    // All our agents share a group, and each is told.
    if (host == agents_.begin()->first) workers_->signal(signal->signal);
  }
}

Status Launch::start_remote(uint32_t host) {
  if (!launchers_) {
    auto group = ProcessGroup::make();
    if (!group) return group.error();
    launchers_ = std::move(*group);
  }
  auto words = launcher_words(options_.launcher, hosts_[host].name);
  if (!words) return words.error();
  const char* const path = std::getenv("PATH");
  const Program program = find_program((*words)[0], "", path == nullptr ? "/usr/bin:/bin" : path);
  if (!program.problem.empty()) return invalid("the launcher " + program.problem);
  const auto agent =
      options_.agent_program.empty() ? own_program() : Result<std::string>(options_.agent_program);
  if (!agent) return agent.error();
  words->push_back(*agent);
  words->push_back("agent");

  ChildOptions child;
  child.program = program.path;
  child.arguments = *words;
  for (char** entry = environ; *entry != nullptr; ++entry) child.environment.emplace_back(*entry);
  child.group = launchers_->id();
  child.wants_input = true;
  child.out = &out_;
  child.error = &error_;
  const std::string what = fmt::format("host {}: '{}'", hosts_[host].name, fmt::join(*words, " "));
  auto started = Child::start(
      loop_, child, [this, host, what](const ChildEnd& end) { on_remote_end(host, what, end); });
  if (!started) return started.error();
  PLIANT_TRY((*started)->write_input(encode_message(spec_for(host))));
  remotes_[host] = std::move(*started);
  restarts_[host].started = now();
  return {};
}

void Launch::on_remote_end(uint32_t host, const std::string& what, const ChildEnd& end) {
  remotes_.erase(host);
  if (result_) return;
  const std::string reason = fmt::format("{} ended with code {}", what, end.exit_code);
  if (coordinator_) return coordinator_->tell(JobEvent::AgentGone{host, reason});
  // If the job has not begun yet, this ends it.
  supervisor_->agent_ended(host, reason);
  // It was told to end, or was refused.
  if (end.exit_code == 0) return;
  Restarts& restarts = restarts_[host];
  if (now() - restarts.started >= kAgentProvenAfter) restarts.wait = kAgentRestartMin;
  restart_remote_later(host, reason);
}

void Launch::restart_remote_later(uint32_t host, const std::string& reason) {
  Restarts& restarts = restarts_[host];
  error_.write(fmt::format("pliant: {}; the agent is started again in {}\n", reason,
                           human_duration(restarts.wait)));
  restarts.timer = loop_.at(now() + restarts.wait, [this, host] {
    restarts_[host].timer.reset();
    if (result_) return;
    supervisor_->agent_returns(host);
    if (const Status status = start_remote(host); !status)
      restart_remote_later(host, status.error().message);
  });
  restarts.wait = std::min(2 * restarts.wait, kAgentRestartMax);
}

Result<LaunchResult> Launch::run() {
  {
    SignalWatch signals(loop_, [this](int signal) { on_user_signal(signal); });
    PLIANT_TRY(elastic_ ? open_supervisor() : open_coordinator());
    // Local hosts first: if the program is missing, nothing is started anywhere.
    for (const bool local : {true, false}) {
      for (uint32_t host = 0; host < hosts_.size() && !result_; ++host) {
        if (local_[host] == local) PLIANT_TRY(local ? start_local(host) : start_remote(host));
      }
      if (local && !result_) publish_job();
      if (!local || !supervisor_ || result_) continue;
      PLIANT_TRY(supervisor_->start());
      for (const auto& [host, agent] : agents_) link_local(host);
    }
    run_promptly();
    while (!result_) turn(std::chrono::hours(1));
    wind_down();
  }
  out_.drain();
  error_.drain();
  return *result_;
}

void Launch::turn(Duration longest) {
  loop_.unlock();
  loop_.wait(longest);
  loop_.lock();
  loop_.turn();
}

// Agents end when their launcher hangs up; the last lines of their workers come before that.
void Launch::wind_down() {
  if (workers_) workers_->signal(SIGKILL);
  file_.reset();
  if (last_word_) loop_.cancel(*last_word_);
  for (auto& [host, restarts] : restarts_)
    if (restarts.timer) loop_.cancel(*restarts.timer);
  api_.reset();
  coordinator_.reset();
  links_.clear();
  agents_.clear();
  for (auto& [host, child] : remotes_) child->close_input();
  const Instant deadline = now() + kWindDownMax;
  while (!remotes_.empty() && now() < deadline) turn(deadline - now());
  remotes_.clear();
  supervisor_.reset();
  launchers_.reset();
  workers_.reset();
}

}  // namespace

Result<std::string> own_program() {
  std::error_code problem;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", problem).string();
  if (problem) return invalid("cannot find this program itself: " + problem.message());
  return path;
}

Result<LaunchResult> launch(const LaunchOptions& options) {
  Loop loop;
  const std::lock_guard guard(loop);
  Launch job(options, loop);
  PLIANT_TRY(job.plan());
  return job.run();
}

}  // namespace pliant
