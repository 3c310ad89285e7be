#include "cli/chaos.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/chaos_check.h"
#include "cli/chaos_job.h"
#include "cli/chaos_network.h"
#include "cli/chaos_report.h"
#include "pliant/base/text.h"
#include "pliant/base/time.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant chaos                         one minute of faults on 4 workers
  pliant chaos -n 8 --minutes 30 --seed 7 --json
  pliant chaos --faults kill,resize --gradient 16M
  pliant chaos --hosts 2               agents are killed, too, with all that they started
  pliant chaos --hosts 3 --partitions  hosts are network namespaces and lose each other (root)

Workers train an integer-valued model. At random moments some are killed, stopped and continued,
the job is resized, and its coordinator is killed; with several hosts, which are all on this
machine, their agents are killed and their links are cut. After the last fault the job must go on;
then every commit of every worker is compared, bit by bit, with a serial replay of the history. The
exit code is 0 if nothing diverged and nothing hung, 1 otherwise.)";

constexpr Duration kHang = std::chrono::seconds(30);
constexpr Duration kWarmUp = std::chrono::seconds(2);
constexpr Duration kPoll = std::chrono::milliseconds(50);
constexpr double kPartitionMin = 0.2;  // seconds
constexpr double kPartitionMax = 3;
// A coordinator that dies more than ten times within a minute ends the job, and rightly so.
constexpr size_t kCoordinatorKillsMax = 8;
constexpr Duration kCoordinatorWindow = std::chrono::minutes(1);
// No host is set aside: that is for workers that fail by themselves.
constexpr const char* kHostFailures = "1000000";
constexpr std::array kKinds = {"kill", "stop", "resize", "coordinator", "agent", "partition"};

struct ChaosOptions {
  int members = 4;
  double minutes = 1;
  uint64_t seed = 1;
  double interval_min = 0.5;
  double interval_max = 2;
  std::string gradient = "256K";
  std::string state = "1M";
  double compute_ms = 1;
  bool constant_batch = false;
  double heartbeat = 0.5;
  int hosts = 1;
  bool partitions = false;
  std::string faults;  // empty: all that the hosts allow
  bool json = false;
  bool keep = false;
  bool quiet = false;
};

// The faults that were asked for, or all that the hosts allow.
std::vector<std::string> kinds_of(const ChaosOptions& options) {
  if (!options.faults.empty()) return comma_separated(options.faults);
  std::vector<std::string> kinds(kKinds.begin(), kKinds.end());
  std::erase_if(kinds, [&](const std::string& kind) {
    return (kind == "agent" && options.hosts < 2) || (kind == "partition" && !options.partitions);
  });
  return kinds;
}

class Chaos final {
 public:
  // `network` is that of the hosts; null: they are all on loopback.
  Chaos(const ChaosOptions& options, Interrupts& interrupts, const ChaosNetwork* network)
      : options_(options),
        interrupts_(interrupts),
        network_(network),
        random_(options.seed),
        kinds_(kinds_of(options)) {}

  Result<nlohmann::json> run();

 private:
  double uniform(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random_);
  }
  size_t below(size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random_);
  }
  void sleep(double time_s) { interrupts_.sleep(from_seconds(time_s)); }
  ChaosJob::Options job_options(int members, const char* purpose) const;
  std::vector<std::string> host_options() const;
  std::string draw_kind();
  void inflict(ChaosJob& job, const std::string& kind);
  void inflict_kill(ChaosJob& job, size_t count);
  void inflict_stop(ChaosJob& job);
  void inflict_coordinator(ChaosJob& job);
  void inflict_agent(ChaosJob& job);
  void inflict_partition(ChaosJob& job);
  std::vector<std::string> dispensable_hosts(ChaosJob& job) const;
  void torment(ChaosJob& job, Instant end);
  nlohmann::json report(const std::map<int, std::vector<ChaosRecord>>& workers,
                        const ChaosVerdict& verdict, double faulty_s, double calm_rate) const;
  double calm_rate(int members);
  void say(const std::string& text) const {
    if (!options_.quiet) fmt::print(stderr, "chaos: {}\n", text);
  }

  const ChaosOptions options_;
  Interrupts& interrupts_;
  const ChaosNetwork* const network_;
  std::mt19937_64 random_;
  const std::vector<std::string> kinds_;
  std::vector<ChaosFault> faults_;
  std::deque<Instant> coordinator_kills_;  // within the last minute
  uint64_t hangs_ = 0;
  double size_sum_ = 0;  // over the samples of the size
  uint64_t size_samples_ = 0;
};

// Agents are processes of their own even on this machine, as they are elsewhere.
std::vector<std::string> Chaos::host_options() const {
  if (options_.hosts < 2) return {};
  const int slots = (options_.members + options_.hosts - 1) / options_.hosts;
  std::string hosts;
  for (size_t host = 0; host < static_cast<size_t>(options_.hosts); ++host) {
    hosts += fmt::format("{}{}:{}@{}", host == 0 ? "" : ",",
                         network_ ? network_->hosts()[host] : fmt::format("chaos{}", host), slots,
                         network_ ? ChaosNetwork::address(host) : "127.0.0.1");
  }
  const std::string launcher = fmt::format("env {}={{host}}{}", ChaosJob::kHostVariable,
                                           network_ ? " ip netns exec {host}" : "");
  return {"-H",
          hosts,
          "--address",
          network_ ? ChaosNetwork::hub_address() : "127.0.0.1",
          "--launcher",
          launcher,
          "--host-failures",
          kHostFailures};
}

ChaosJob::Options Chaos::job_options(int members, const char* purpose) const {
  ChaosJob::Options options;
  options.name = fmt::format("{}-{}", purpose, getpid());
  options.run = {"-n",
                 std::to_string(members),
                 "--min",
                 "1",
                 "--max",
                 std::to_string(options_.members),
                 "--restart",
                 "--heartbeat",
                 fmt::format("{}", options_.heartbeat)};
  const auto hosts = host_options();
  options.run.insert(options.run.end(), hosts.begin(), hosts.end());
  options.worker = {"--gradient",   options_.gradient, "--state",
                    options_.state, "--compute-ms",    fmt::format("{}", options_.compute_ms)};
  if (options_.constant_batch) options.worker.push_back("--constant-batch");
  options.quiet = options_.quiet;
  return options;
}

std::string Chaos::draw_kind() {
  // Kills are what users meet most.
  if (uniform(0, 1) < 0.4 && std::find(kinds_.begin(), kinds_.end(), "kill") != kinds_.end())
    return "kill";
  return kinds_[below(kinds_.size())];
}

// One that has the state stays, or there would be nothing left to go on with.
void Chaos::inflict_kill(ChaosJob& job, size_t count) {
  std::vector<ChaosJob::Member> members = job.members();
  std::shuffle(members.begin(), members.end(), random_);
  std::stable_partition(members.begin(), members.end(),
                        [](const ChaosJob::Member& member) { return !member.seasoned; });
  if (members.size() < 2 || !members.back().seasoned) return;
  members.resize(members.size() - 1);
  std::shuffle(members.begin(), members.end(), random_);
  members.resize(std::min(count, members.size()));
  const int64_t at = nanoseconds();
  for (const ChaosJob::Member& member : members) kill(member.pid, SIGKILL);
  faults_.push_back({members.size() > 1 ? "kill several" : "kill", at});
}

void Chaos::inflict_stop(ChaosJob& job) {
  const std::vector<ChaosJob::Member> members = job.members();
  if (members.empty()) return;
  const size_t chosen = below(members.size());
  bool others = false;
  for (size_t i = 0; i < members.size(); ++i) others |= i != chosen && members[i].seasoned;
  const int pid = members[chosen].pid;
  if (!others || kill(pid, SIGSTOP) != 0) return;
  faults_.push_back({"stop", nanoseconds()});
  sleep(uniform(0.05, 3 * options_.heartbeat));
  kill(pid, SIGCONT);
}

void Chaos::inflict_coordinator(ChaosJob& job) {
  std::erase_if(coordinator_kills_, [](Instant at) { return now() - at > kCoordinatorWindow; });
  if (coordinator_kills_.size() >= kCoordinatorKillsMax) return;
  const int pid = job.coordinator_pid();
  if (pid <= 0 || kill(pid, SIGKILL) != 0) return;
  coordinator_kills_.push_back(now());
  faults_.push_back({"coordinator", nanoseconds()});
}

// Hosts without which somebody is left who has the state.
std::vector<std::string> Chaos::dispensable_hosts(ChaosJob& job) const {
  std::map<std::string, size_t> seasoned;
  size_t all = 0;
  for (const ChaosJob::Member& member : job.members()) {
    seasoned[member.host] += member.seasoned ? 1 : 0;
    all += member.seasoned ? 1 : 0;
  }
  std::vector<std::string> hosts;
  for (const auto& [host, count] : seasoned)
    if (count < all) hosts.push_back(host);
  return hosts;
}

void Chaos::inflict_agent(ChaosJob& job) {
  const std::vector<std::string> hosts = dispensable_hosts(job);
  if (hosts.empty()) return;
  const std::string& host = hosts[below(hosts.size())];
  for (const ChaosJob::AgentProcess& agent : job.agents()) {
    if (agent.host != host || kill(agent.pid, SIGKILL) != 0) continue;
    faults_.push_back({"agent", nanoseconds()});
    return;
  }
}

void Chaos::inflict_partition(ChaosJob& job) {
  const std::vector<std::string> hosts = dispensable_hosts(job);
  if (hosts.empty()) return;
  const auto& names = network_->hosts();
  const auto at = std::find(names.begin(), names.end(), hosts[below(hosts.size())]);
  if (at == names.end()) return;
  const auto host = static_cast<size_t>(at - names.begin());
  using Cut = ChaosNetwork::Cut;
  constexpr std::array kCuts = {Cut::kAll, Cut::kPeers, Cut::kWords};
  const Cut how = kCuts[below(kCuts.size())];
  if (const Status cut = network_->cut(host, how); !cut) return say(cut.error().message);
  faults_.push_back({"partition", nanoseconds()});
  sleep(uniform(kPartitionMin, kPartitionMax));
  if (const Status healed = network_->heal(host, how); !healed) say(healed.error().message);
}

void Chaos::inflict(ChaosJob& job, const std::string& kind) {
  if (kind == "kill") {
    inflict_kill(job, uniform(0, 1) < 0.2 ? 1 + below(static_cast<size_t>(options_.members)) : 1);
  } else if (kind == "stop") {
    inflict_stop(job);
  } else if (kind == "resize") {
    const int size = 1 + static_cast<int>(below(static_cast<size_t>(options_.members)));
    if (job.resize(size).ok()) faults_.push_back({"resize", nanoseconds()});
  } else if (kind == "coordinator") {
    inflict_coordinator(job);
  } else if (kind == "agent") {
    inflict_agent(job);
  } else if (kind == "partition") {
    inflict_partition(job);
  }
}

// Steps a second of an undisturbed job of this size.
double Chaos::calm_rate(int members) {
  auto job = ChaosJob::start(job_options(members, "calm"), interrupts_);
  if (!job || !(*job)->progresses(0, kHang)) return 0;
  interrupts_.sleep(kWarmUp);
  const Instant began = now();
  sleep(std::min(20.0, options_.minutes * 15));
  const double passed = seconds(now() - began);
  (*job)->end();
  const auto workers = read_chaos_records((*job)->folder());
  if (!workers) return 0;
  const int64_t from = began.time_since_epoch().count();
  uint64_t most = 0;
  for (const auto& [pid, records] : *workers)
    most = std::max<uint64_t>(most, static_cast<uint64_t>(std::count_if(
                                        records.begin(), records.end(), [&](const auto& record) {
                                          return record.committed_ns >= from;
                                        })));
  return static_cast<double>(most) / passed;
}

// Faults until the end, unless the job hangs, ends, or the user has seen enough.
void Chaos::torment(ChaosJob& job, Instant end) {
  Instant next = now();
  Instant last_growth = now();
  uint64_t bytes = 0;
  while (now() < end && job.running() && hangs_ == 0 && !interrupts_.happened()) {
    if (now() >= next) {
      inflict(job, draw_kind());
      next = now() + from_seconds(uniform(options_.interval_min, options_.interval_max));
    }
    interrupts_.sleep(kPoll);
    const size_t members = job.members().size();
    if (members > 0) {
      size_sum_ += static_cast<double>(members);
      ++size_samples_;
    }
    if (const uint64_t grown = job.record_bytes(); grown > bytes) {
      bytes = grown;
      last_growth = now();
    } else if (now() - last_growth > kHang) {
      ++hangs_;
    }
  }
}

Result<nlohmann::json> Chaos::run() {
  auto started = ChaosJob::start(job_options(options_.members, "chaos"), interrupts_);
  if (!started) return started.error();
  ChaosJob& job = **started;
  if (options_.keep) job.keep();
  if (!job.progresses(0, kHang)) return invalid("the job did not commit a single step");
  interrupts_.sleep(kWarmUp);
  const Instant began = now();
  torment(job, began + from_seconds(options_.minutes * 60));
  const double faulty_s = seconds(now() - began);
  if (!job.running()) {
    job.keep();
    return invalid(fmt::format("the job ended by itself; its records are in {}", job.folder()));
  }
  // The world is whole again: training must go on.
  if (hangs_ == 0 && !job.progresses(job.record_bytes(), kHang) && !interrupts_.happened())
    ++hangs_;
  job.end();
  const auto workers = read_chaos_records(job.folder());
  if (!workers) return workers.error();
  const ChaosVerdict verdict = judge_chaos(*workers, {.samples = kChaosSamples});
  if (!verdict.divergences.empty() || hangs_ > 0) {
    job.keep();
    say(fmt::format("the records are kept in {}", job.folder()));
  }
  for (const std::string& sentence : verdict.divergences) say(sentence);
  const double size =
      size_samples_ == 0 ? options_.members : size_sum_ / static_cast<double>(size_samples_);
  const double calm =
      interrupts_.happened() ? 0 : calm_rate(std::max(1, static_cast<int>(size + 0.5)));
  return report(*workers, verdict, faulty_s, calm);
}

nlohmann::json Chaos::report(const std::map<int, std::vector<ChaosRecord>>& workers,
                             const ChaosVerdict& verdict, double faulty_s, double calm) const {
  std::map<std::string, uint64_t> kinds;
  for (const ChaosFault& fault : faults_) ++kinds[fault.kind];
  const double rate = static_cast<double>(verdict.steps) / (faulty_s + seconds(kWarmUp));
  return {{"seed", options_.seed},
          {"members", options_.members},
          {"hosts", options_.hosts},
          {"seconds", faulty_s},
          {"faults", kinds},
          {"commits", verdict.steps},
          {"records", verdict.commits},
          {"lost_commits", verdict.lost_commits},
          {"epochs_complete", verdict.epochs_complete},
          {"workers", workers.size()},
          {"divergences", verdict.divergences.size()},
          {"hangs", hangs_},
          {"mean_size", size_samples_ == 0 ? 0 : size_sum_ / static_cast<double>(size_samples_)},
          {"recovery_ms", chaos_recovery(workers, faults_)},
          {"steps_per_second", rate},
          {"undisturbed_steps_per_second", calm},
          {"throughput_share", calm > 0 ? rate / calm : 0}};
}

Result<nlohmann::json> carry_out(const ChaosOptions& options, Interrupts& interrupts) {
  std::unique_ptr<ChaosNetwork> network;
  if (options.partitions) {
    auto made = ChaosNetwork::make(options.hosts);
    if (!made) return made.error();
    network = std::move(*made);
  }
  return Chaos(options, interrupts, network.get()).run();
}

int run_chaos(ChaosOptions options) {
  if (options.partitions) options.hosts = std::max(options.hosts, 2);
  const auto fail = [](const std::string& why) {
    fmt::print(stderr, "pliant chaos: {}\n", why);
    return 1;
  };
  const auto kinds = kinds_of(options);
  const auto wanted = [&](const char* kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  if (wanted("agent") && options.hosts < 2) return fail("agents are killed with --hosts 2 or more");
  if (wanted("partition") && !options.partitions) return fail("partitions need --partitions");
  if (options.hosts > options.members) return fail("there are more hosts than members");
  Interrupts interrupts;
  const auto result = carry_out(options, interrupts);
  if (!result) return fail(result.error().message);
  if (options.json) {
    fmt::print("{}\n", result->dump());
  } else {
    print_chaos_table(*result);
  }
  if (interrupts.happened()) return 128 + interrupts.signal();
  return (*result)["divergences"] == 0 && (*result)["hangs"] == 0 ? 0 : 1;
}

}  // namespace

void add_chaos(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ChaosOptions>();
  CLI::App* command = app.add_subcommand("chaos", "Train under faults and check every commit");
  command->footer(kExamples);
  command->add_option("-n,--members", options->members, "Workers, and the most there will be")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  command->add_option("--minutes", options->minutes, "How long faults are inflicted")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the faults")->capture_default_str();
  command->add_option("--every-min", options->interval_min, "Seconds between faults, at least")
      ->capture_default_str();
  command->add_option("--every-max", options->interval_max, "Seconds between faults, at most")
      ->capture_default_str();
  command->add_option("--gradient", options->gradient, "Bytes reduced in a step")
      ->capture_default_str();
  command->add_option("--state", options->state, "Bytes that newcomers get")->capture_default_str();
  command->add_option("--compute-ms", options->compute_ms, "Computation of a step")
      ->capture_default_str();
  command->add_flag("--constant-batch", options->constant_batch,
                    "Survivors compute the samples of lost workers in the same step");
  command->add_option("--heartbeat", options->heartbeat, "Seconds of silence that mean a loss")
      ->check(CLI::Range(0.1, 60.0))
      ->capture_default_str();
  command->add_option("--hosts", options->hosts, "Hosts on this machine, each with its agent")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_flag("--partitions", options->partitions,
                    "Hosts are network namespaces whose links are cut; at least two; needs root");
  command
      ->add_option("--faults", options->faults,
                   "Some of kill,stop,resize,coordinator,agent,partition (default: all that the "
                   "hosts allow)")
      ->check([](const std::string& text) -> std::string {
        for (const std::string& kind : comma_separated(text)) {
          if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end())
            return fmt::format("'{}' is no fault: choose from {}", kind, fmt::join(kKinds, ", "));
        }
        return "";
      });
  command->add_flag("--json", options->json, "One JSON object at the end");
  command->add_flag("--keep", options->keep, "Keep the records");
  command->add_flag("-q,--quiet", options->quiet, "Nothing but the result");
  command->callback([options, &exit_code] { exit_code = run_chaos(*options); });
}

}  // namespace pliant::cli
