#include "pliant/runtime/agent.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "pliant/base/log.h"
#include "pliant/transport/socket.h"

namespace pliant {
namespace {

// Below the ports that Linux gives to outgoing connections, so that none of those takes it between
// our look and torch's listen().
constexpr uint16_t kFreePortFirst = 20000;
constexpr uint16_t kFreePortCount = 12000;
constexpr int kFreePortTries = 100;
// Two, so that one is complete while the next is handed over.
constexpr size_t kStoreVersions = 2;

uint16_t find_free_port(const std::string& address) {
  for (int i = 0; i < kFreePortTries; ++i) {
    uint16_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return 0;
    const auto port = static_cast<uint16_t>(kFreePortFirst + random % kFreePortCount);
    const auto parsed = parse_address(address, port);
    if (parsed && listen_tcp(*parsed).ok()) return port;
  }
  return 0;
}

bool is_directory(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::string in_directory(const std::string& path, const std::string& directory) {
  return path.starts_with('/') || directory.empty() ? path : directory + "/" + path;
}

// What `pliant run` itself may have from a job that it is a worker of.
bool is_of_one_worker(const std::string& variable) {
  return variable == "PLIANT_LIFE_FD" || variable == "PLIANT_STORE" ||
         variable == "PLIANT_ELASTIC" || variable == "PLIANT_SCHEDULE" ||
         variable == "PLIANT_MEMBERS_MIN" || variable == "PLIANT_MEMBERS_MAX";
}

uint64_t machine_memory() {
  return static_cast<uint64_t>(std::max(1L, sysconf(_SC_PHYS_PAGES))) *
         static_cast<uint64_t>(std::max(1L, sysconf(_SC_PAGESIZE)));
}

Program cannot_run(int exit_code, std::string problem) {
  return {"", exit_code, std::move(problem)};
}

}  // namespace

Program find_program(const std::string& name, const std::string& directory,
                     const std::string& search_path) {
  if (name.empty()) return cannot_run(127, "the program's name is empty");
  if (name.find('/') != std::string::npos) {
    const std::string path = in_directory(name, directory);
    if (is_directory(path)) return cannot_run(126, fmt::format("'{}' is a directory", path));
    if (access(path.c_str(), F_OK) != 0)
      return cannot_run(127, fmt::format("'{}' cannot be run: {}", path, std::strerror(errno)));
    if (access(path.c_str(), X_OK) != 0)
      return cannot_run(126, fmt::format("'{}' is not executable", path));
    return {path, 0, ""};
  }
  bool seen = false;
  for (size_t start = 0; start <= search_path.size();) {
    const size_t end = std::min(search_path.find(':', start), search_path.size());
    const std::string folder = search_path.substr(start, end - start);
    const std::string path = in_directory((folder.empty() ? "." : folder) + "/" + name, directory);
    start = end + 1;
    if (is_directory(path) || access(path.c_str(), F_OK) != 0) continue;
    if (access(path.c_str(), X_OK) == 0) return {path, 0, ""};
    seen = true;
  }
  if (seen) return cannot_run(126, fmt::format("'{}' is not executable", name));
  const bool here = access(in_directory(name, directory).c_str(), F_OK) == 0;
  return cannot_run(127,
                    here ? fmt::format("'{0}' is not in PATH; for the one here write ./{0}", name)
                         : fmt::format("'{}' is not in PATH", name));
}

std::map<std::string, std::string> worker_environment(const AgentSpec& spec,
                                                      const StartWorkers& start,
                                                      const StartWorker& worker) {
  std::map<std::string, std::string> variables = spec.environment;
  const PeerId self = {.host = spec.host,
                       .slot = worker.slot,
                       .incarnation = static_cast<uint16_t>(worker.incarnation)};
  variables["PLIANT_COORDINATOR"] = spec.coordinator;
  variables["PLIANT_TOKEN"] = spec.token;
  variables["PLIANT_PEER"] = to_string(self);
  variables["PLIANT_HOST"] = spec.host_name;
  variables["PLIANT_ADDRESS"] = spec.address;
  variables["RANK"] = std::to_string(worker.rank);
  variables["WORLD_SIZE"] = std::to_string(spec.world_size);
  variables["LOCAL_RANK"] = std::to_string(worker.slot);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(spec.worker_count);
  variables["GROUP_RANK"] = std::to_string(spec.group_rank);
  variables["MASTER_ADDR"] = start.master_address;
  variables["MASTER_PORT"] = std::to_string(start.master_port);
  return variables;
}

Agent::Agent(Surroundings surroundings, AgentSpec spec, Reports reports)
    : surroundings_(surroundings), spec_(std::move(spec)), reports_(std::move(reports)) {}

AgentReady Agent::prepare() {
  AgentReady ready{
      .host = spec_.host, .address = spec_.address, .free_port = 0, .exit_code = 0, .problem = ""};
  const auto fail = [&](int exit_code, const std::string& why) {
    ready.exit_code = exit_code;
    ready.problem = fmt::format("host {}: {}", spec_.host_name, why);
    return ready_ = ready;
  };
  if (!is_directory(spec_.directory))
    return fail(1, fmt::format("the directory '{}' does not exist", spec_.directory));
  const auto given = spec_.environment.find("PATH");
  const char* const own = std::getenv("PATH");
  const std::string search_path = given != spec_.environment.end() ? given->second
                                  : own != nullptr                 ? own
                                                                   : "/usr/bin:/bin";
  const Program program = find_program(spec_.command.at(0), spec_.directory, search_path);
  if (!program.problem.empty()) return fail(program.exit_code, program.problem);
  program_ = program.path;
  if (!spec_.output.log_directory.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(in_directory(spec_.output.log_directory, spec_.directory),
                                        problem);
    if (problem)
      return fail(1, fmt::format("the log directory '{}' cannot be made: {}",
                                 spec_.output.log_directory, problem.message()));
  }
  // A listener on an address that is not this host's fails too, and the workers would as well.
  ready.free_port = find_free_port(spec_.address);
  if (ready.free_port == 0)
    return fail(1, fmt::format("cannot listen on its address {}", spec_.address));
  if (const Status opened = open_store(); !opened.ok())
    return fail(1, "its store cannot be opened: " + opened.error().message);
  ready.store = store_->copies_endpoint();
  ready.store_http = store_->endpoint();
  return ready_ = ready;
}

Status Agent::open_store() {
  const auto job = spec_.environment.find("PLIANT_JOB");
  StoreService::Options options;
  options.job = job == spec_.environment.end() ? "" : job->second;
  options.token = spec_.token;
  options.host = spec_.host;
  options.host_name = spec_.host_name;
  options.http_address = spec_.address;
  options.vault = {.bytes_max = spec_.store.bytes_max, .versions_max = spec_.store.versions_max};
  if (options.vault.bytes_max == 0) options.vault.bytes_max = machine_memory() / 2;
  if (options.vault.versions_max == 0) options.vault.versions_max = kStoreVersions;
  if (!spec_.store.directory.empty()) {
    std::string file = spec_.host_name + ".safetensors";
    std::replace(file.begin(), file.end(), '/', '_');
    options.file = in_directory(spec_.store.directory, spec_.directory) + "/" + file;
  }
  auto opened = StoreService::open(std::move(options));
  if (!opened) return opened.error();
  store_ = std::move(*opened);
  return {};
}

AgentReady Agent::report() const {
  AgentReady ready = ready_;
  for (const auto& [slot, running] : children_) ready.running.push_back(running.peer);
  for (const auto& [slot, end] : ended_) ready.ended.push_back(end);
  ready.notice = notice_;
  return ready;
}

// Copies go to the next hosts, in a ring of those that are there.
void Agent::copy_store_to(const std::vector<std::string>& stores) {
  if (!store_) return;
  std::vector<StorePeer> peers;
  for (uint32_t k = 1; k < stores.size(); ++k) {
    const auto host = static_cast<uint32_t>((spec_.host + k) % stores.size());
    if (host != spec_.host && !stores[host].empty()) peers.push_back({host, stores[host]});
  }
  const auto copies = static_cast<ptrdiff_t>(
      std::min<size_t>(peers.size(), std::max<uint32_t>(spec_.store.copies, 1) - 1));
  store_->know(peers, {peers.begin(), peers.begin() + copies});
}

void Agent::start(const StartWorkers& start) {
  copy_store_to(start.stores);
  if (start_) return;
  start_ = start;
  if (spec_.elastic) return watch_revocation();
  for (uint32_t slot = 0; slot < spec_.worker_count; ++slot)
    start_worker({static_cast<uint16_t>(slot), 1, spec_.first_rank + slot});
}

void Agent::start_worker(const StartWorker& order) {
  const PeerId peer = {.host = spec_.host,
                       .slot = order.slot,
                       .incarnation = static_cast<uint16_t>(order.incarnation)};
  uint32_t& newest = newest_[order.slot];
  if (order.incarnation <= newest) return;
  newest = order.incarnation;
  const Status status = try_start(peer, order);
  if (status.ok()) return;
  report_end({.peer = peer,
              .pid = 0,
              .exit_code = 126,
              .signal = 0,
              .problem = "could not be started: " + status.error().message});
}

Status Agent::try_start(PeerId peer, const StartWorker& order) {
  if (children_.contains(order.slot)) return invalid("its slot is not free");
  ChildOptions options = child_options(order);
  std::optional<LifeLock> lock;
  if (spec_.elastic) {
    auto made = LifeLock::make();
    if (!made) return made.error();
    lock.emplace(std::move(*made));
    options.inherited = {lock->fd()};
    options.environment.push_back(fmt::format("PLIANT_LIFE_FD={}", lock->fd()));
  }
  auto child = Child::start(surroundings_.loop, options,
                            [this, peer](const ChildEnd& end) { on_end(peer, end); });
  if (!child) return child.error();
  Running& running = children_[order.slot];
  running.peer = peer;
  running.child = std::move(*child);
  if (!lock) return {};
  running.watch = std::make_unique<LifeWatch>(surroundings_.loop, lock->mapping(),
                                              [this, peer](LifeWatch::News news) {
                                                if (news == LifeWatch::News::kDied)
                                                  reports_.on_died(WorkerDied{peer});
                                              });
  return {};
}

ChildOptions Agent::child_options(const StartWorker& order) const {
  const auto variables = worker_environment(spec_, start_.value_or(StartWorkers{}), order);
  ChildOptions options;
  options.program = program_;
  options.arguments = spec_.command;
  for (const auto& [name, value] : variables)
    options.environment.push_back(fmt::format("{}={}", name, value));
  if (store_) options.environment.push_back("PLIANT_STORE=" + store_->name());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    if (!variables.contains(name) && !is_of_one_worker(name)) options.environment.push_back(text);
  }
  options.directory = spec_.directory;
  options.group = surroundings_.group.id();
  if (spec_.output.prefix) options.prefix = fmt::format("[{}] ", order.rank);
  if (!spec_.output.quiet) {
    options.out = &surroundings_.out;
    options.error = &surroundings_.error;
  }
  if (!spec_.output.log_directory.empty())
    options.log_file = in_directory(
        fmt::format("{}/rank-{}.log", spec_.output.log_directory, order.rank), spec_.directory);
  return options;
}

void Agent::on_end(PeerId peer, const ChildEnd& end) {
  // The child is destroyed here, in its own callback, which it allows.
  children_.erase(peer.slot);
  report_end({.peer = peer,
              .pid = end.pid,
              .exit_code = end.exit_code,
              .signal = end.signal,
              .problem = ""});
}

void Agent::report_end(const WorkerExited& end) {
  ended_[end.peer.slot] = end;
  reports_.on_exit(end);
}

void Agent::signal_worker(const SignalWorker& order) {
  const auto at = children_.find(order.peer.slot);
  if (at != children_.end() && at->second.peer == order.peer)
    at->second.child->signal(order.signal);
}

// What cannot be read was refused by the launcher.
void Agent::watch_revocation() {
  const auto provider = parse_cloud_provider(spec_.revocation.provider);
  if (!provider || *provider == CloudProvider::kNone) return;
  const auto base = parse_http_base(spec_.revocation.metadata_url);
  if (!base) return log(LogLevel::kWarning, "no word of revocations: " + base.error().message);
  revocation_ = std::make_unique<RevocationWatch>(
      surroundings_.loop,
      RevocationWatch::Options{*provider, *base, Duration(spec_.revocation.poll_ns)},
      [this](const std::string& reason) {
        revocation_.reset();
        give_notice(reason);
      });
}

void Agent::give_notice(const std::string& reason) {
  if (!notice_.empty()) return;
  notice_ = reason;
  reports_.on_notice({spec_.host, Notice::kWholeHost, reason});
}

}  // namespace pliant
