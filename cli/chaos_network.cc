#include "cli/chaos_network.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace pliant::cli {
namespace {

constexpr const char* kHubAddress = "10.77.0.254";
// A hardware address that nobody has.
constexpr const char* kNobody = "02:00:00:00:00:01";

Status run_ip(std::vector<std::string> words) {
  words.insert(words.begin(), "ip");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, "ip", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    errno = failed;
    return system_error("partitions need the program `ip` of iproute2");
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return invalid(fmt::format("`{}` failed", fmt::join(words, " ")));
}

std::string port_of(size_t host) { return fmt::format("port{}", host); }

}  // namespace

std::string ChaosNetwork::address(size_t host) { return fmt::format("10.77.0.{}", host + 1); }
const char* ChaosNetwork::hub_address() { return kHubAddress; }

Result<std::unique_ptr<ChaosNetwork>> ChaosNetwork::make(int hosts) {
  if (geteuid() != 0)
    return invalid("partitions need network namespaces, which only root may make");
  std::unique_ptr<ChaosNetwork> network(new ChaosNetwork());
  PLIANT_TRY(network->build(hosts));
  return network;
}

ChaosNetwork::~ChaosNetwork() {
  if (outside_.valid()) setns(outside_.get(), CLONE_NEWNET);
  for (auto name = made_.rbegin(); name != made_.rend(); ++name)
    (void)run_ip({"netns", "del", *name});
}

Status ChaosNetwork::add_namespace(const std::string& name) {
  PLIANT_TRY(run_ip({"netns", "add", name}));
  made_.push_back(name);
  return run_ip({"-n", name, "link", "set", "lo", "up"});
}

Status ChaosNetwork::build(int hosts) {
  hub_ = fmt::format("pliant{}hub", getpid());
  PLIANT_TRY(add_namespace(hub_));
  PLIANT_TRY(run_ip({"-n", hub_, "link", "add", "bridge", "type", "bridge"}));
  PLIANT_TRY(
      run_ip({"-n", hub_, "addr", "add", fmt::format("{}/24", kHubAddress), "dev", "bridge"}));
  PLIANT_TRY(run_ip({"-n", hub_, "link", "set", "bridge", "up"}));
  for (int host = 0; host < hosts; ++host) PLIANT_TRY(add_host(static_cast<size_t>(host)));
  Fd outside(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  const Fd hub(open(fmt::format("/var/run/netns/{}", hub_).c_str(), O_RDONLY | O_CLOEXEC));
  if (!outside.valid() || !hub.valid() || setns(hub.get(), CLONE_NEWNET) != 0)
    return system_error("cannot enter the network namespace " + hub_);
  outside_ = std::move(outside);
  return {};
}

Status ChaosNetwork::add_host(size_t host) {
  const std::string name = fmt::format("pliant{}h{}", getpid(), host);
  hosts_.push_back(name);
  PLIANT_TRY(add_namespace(name));
  const std::string port = port_of(host);
  PLIANT_TRY(run_ip(
      {"-n", hub_, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name}));
  PLIANT_TRY(run_ip({"-n", hub_, "link", "set", port, "master", "bridge"}));
  PLIANT_TRY(run_ip({"-n", hub_, "link", "set", port, "up"}));
  PLIANT_TRY(
      run_ip({"-n", name, "addr", "add", fmt::format("{}/24", address(host)), "dev", "eth0"}));
  return run_ip({"-n", name, "link", "set", "eth0", "up"});
}

// Isolated ports of a bridge reach the bridge itself, and no other isolated port.
Status ChaosNetwork::set_isolated(const char* state) const {
  for (size_t host = 0; host < hosts_.size(); ++host)
    PLIANT_TRY(run_ip(
        {"-n", hub_, "link", "set", port_of(host), "type", "bridge_slave", "isolated", state}));
  return {};
}

Status ChaosNetwork::cut(size_t host, Cut how) const {
  switch (how) {
    case Cut::kAll: return run_ip({"-n", hub_, "link", "set", port_of(host), "down"});
    case Cut::kPeers: return set_isolated("on");
    case Cut::kWords: break;
  }
  return run_ip({"-n", hosts_.at(host), "neigh", "replace", kHubAddress, "lladdr", kNobody, "dev",
                 "eth0", "nud", "permanent"});
}

Status ChaosNetwork::heal(size_t host, Cut how) const {
  switch (how) {
    case Cut::kAll: return run_ip({"-n", hub_, "link", "set", port_of(host), "up"});
    case Cut::kPeers: return set_isolated("off");
    case Cut::kWords: break;
  }
  return run_ip({"-n", hosts_.at(host), "neigh", "del", kHubAddress, "dev", "eth0"});
}

}  // namespace pliant::cli
