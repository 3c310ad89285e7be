#include "cli/chaos.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cli/chaos_check.h"
#include "cli/job_client.h"
#include "pliant/base/time.h"
#include "pliant/runtime/launch.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant chaos                         one minute of faults on 4 workers
  pliant chaos -n 8 --minutes 30 --seed 7 --json
  pliant chaos --faults kill,resize --gradient 16M

Workers train an integer-valued model. At random moments some are killed, stopped and continued,
the job is resized, and its coordinator is killed. After the last fault the job must go on; then
every commit of every worker is compared, bit by bit, with a serial replay of the history. The exit
code is 0 if nothing diverged and nothing hung, 1 otherwise.)";

constexpr Duration kHang = std::chrono::seconds(30);
constexpr Duration kWarmUp = std::chrono::seconds(2);

struct ChaosOptions {
  int members = 4;
  double minutes = 1;
  uint64_t seed = 1;
  double interval_min = 0.5;
  double interval_max = 2;
  std::string gradient = "256K";
  std::string state = "1M";
  double compute_ms = 1;
  double heartbeat = 0.5;
  std::string faults = "kill,stop,resize,coordinator";
  bool json = false;
  bool keep = false;
  bool quiet = false;
};

struct Fault {
  std::string kind;
  int64_t at_ns = 0;
};

void sleep_for(double time_s) { std::this_thread::sleep_for(from_seconds(time_s)); }

// `pliant run`, its folder of records, and the way to talk to it. Ends both with itself.
class ChaosJob final {
 public:
  static Result<std::unique_ptr<ChaosJob>> start(const ChaosOptions& options, int members,
                                                 const std::string& name) {
    std::string folder = (std::filesystem::temp_directory_path() / "pliant-chaos-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return system_error("cannot make a temporary folder");
    std::unique_ptr<ChaosJob> job(new ChaosJob(folder, name));
    const auto own = own_program();
    if (!own) return own.error();
    const std::string& program = *own;
    const std::vector<std::string> words = {program,
                                            "run",
                                            "-n",
                                            std::to_string(members),
                                            "--min",
                                            "1",
                                            "--max",
                                            std::to_string(options.members),
                                            "--restart",
                                            "--heartbeat",
                                            fmt::format("{}", options.heartbeat),
                                            "--job",
                                            name,
                                            "--quiet",
                                            "--",
                                            program,
                                            "chaos-worker",
                                            "--records",
                                            folder,
                                            "--gradient",
                                            options.gradient,
                                            "--state",
                                            options.state,
                                            "--compute-ms",
                                            fmt::format("{}", options.compute_ms)};
    PLIANT_TRY(job->spawn(words, options.quiet));
    return job;
  }
  ~ChaosJob() {
    end();
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(folder_, ignored);
  }
  ChaosJob(const ChaosJob&) = delete;
  ChaosJob& operator=(const ChaosJob&) = delete;

  const std::string& folder() const { return folder_; }
  void keep() { kept_ = true; }
  bool running() {
    if (pid_ > 0 && waitpid(pid_, &exit_status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ > 0;
  }
  void end() {
    if (!running()) return;
    kill(pid_, SIGINT);
    const Instant give_up = now() + std::chrono::seconds(10);
    while (running() && now() < give_up) sleep_for(0.01);
    if (!running()) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, &exit_status_, 0);
    pid_ = 0;
  }

  // The job's own account of itself; nothing while its coordinator is away.
  std::optional<nlohmann::json> status() const {
    const auto job = choose({.job = name_, .endpoint = ""});
    if (!job.ok()) return {};
    const auto body = ask(*job, "GET", "/v1/status", "");
    if (!body.ok()) return {};
    auto parsed = nlohmann::json::parse(*body, nullptr, false);
    return parsed.is_discarded() ? std::nullopt : std::optional(std::move(parsed));
  }
  Status resize(int members) const {
    const auto job = choose({.job = name_, .endpoint = ""});
    if (!job.ok()) return job.error();
    const auto body =
        ask(*job, "PUT", "/v1/size", wish_json(ResizeWish{static_cast<uint32_t>(members)}));
    return body.ok() ? Status() : Status(body.error());
  }
  std::vector<int> member_pids() const {
    std::vector<int> pids;
    const auto said = status();
    if (!said || !said->contains("members")) return pids;
    for (const auto& member : (*said)["members"]) pids.push_back(member.value("pid", 0));
    return pids;
  }
  int coordinator_pid() const {
    const auto said = status();
    return said ? said->value("coordinator_pid", 0) : 0;
  }
  // Bytes of all records: they grow as long as anybody commits.
  uint64_t record_bytes() const {
    uint64_t bytes = 0;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored))
      bytes += entry.file_size(ignored);
    return bytes;
  }

 private:
  ChaosJob(std::string folder, std::string name)
      : folder_(std::move(folder)), name_(std::move(name)) {}

  Status spawn(const std::vector<std::string>& words, bool quiet) {
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (quiet) posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    const int failed =
        posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    errno = failed;
    return failed == 0 ? Status() : Status(system_error("cannot start " + words[0]));
  }

  const std::string folder_;
  const std::string name_;
  pid_t pid_ = 0;
  int exit_status_ = 0;
  bool kept_ = false;
};

// Waits until the records grow; false if they do not for kHang.
bool progresses(ChaosJob& job, uint64_t before) {
  const Instant give_up = now() + kHang;
  while (job.record_bytes() <= before) {
    if (!job.running() || now() > give_up) return false;
    sleep_for(0.01);
  }
  return true;
}

class Chaos final {
 public:
  explicit Chaos(const ChaosOptions& options) : options_(options), random_(options.seed) {
    for (size_t start = 0; start <= options.faults.size();) {
      const size_t end = std::min(options.faults.find(',', start), options.faults.size());
      kinds_.push_back(options.faults.substr(start, end - start));
      start = end + 1;
    }
  }

  Result<nlohmann::json> run();

 private:
  double uniform(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random_);
  }
  size_t below(size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random_);
  }
  std::string draw_kind();
  void inflict(ChaosJob& job, const std::string& kind);
  void inflict_kill(ChaosJob& job, size_t count);
  void inflict_stop(ChaosJob& job);
  nlohmann::json report(const std::map<int, std::vector<ChaosRecord>>& workers,
                        const ChaosVerdict& verdict, double faulty_s, double calm_rate) const;
  nlohmann::json recovery(const std::map<int, std::vector<ChaosRecord>>& workers) const;
  double calm_rate(int members) const;
  void say(const std::string& text) const {
    if (!options_.quiet) fmt::print(stderr, "chaos: {}\n", text);
  }

  const ChaosOptions options_;
  std::mt19937_64 random_;
  std::vector<std::string> kinds_;
  std::vector<Fault> faults_;
  uint64_t hangs_ = 0;
  double size_sum_ = 0;  // over the samples of the size
  uint64_t size_samples_ = 0;
};

std::string Chaos::draw_kind() {
  // Kills are what users meet most.
  if (uniform(0, 1) < 0.5 && std::find(kinds_.begin(), kinds_.end(), "kill") != kinds_.end())
    return "kill";
  return kinds_[below(kinds_.size())];
}

void Chaos::inflict_kill(ChaosJob& job, size_t count) {
  std::vector<int> pids = job.member_pids();
  std::shuffle(pids.begin(), pids.end(), random_);
  // One stays, or there would be no state left to go on with.
  if (pids.size() < 2) return;
  pids.resize(std::min(count, pids.size() - 1));
  const int64_t at = nanoseconds();
  for (const int pid : pids)
    if (pid > 0) kill(pid, SIGKILL);
  faults_.push_back({pids.size() > 1 ? "kill several" : "kill", at});
}

void Chaos::inflict_stop(ChaosJob& job) {
  const std::vector<int> pids = job.member_pids();
  if (pids.size() < 2) return;
  const int pid = pids[below(pids.size())];
  if (pid <= 0 || kill(pid, SIGSTOP) != 0) return;
  faults_.push_back({"stop", nanoseconds()});
  sleep_for(uniform(0.05, 3 * options_.heartbeat));
  kill(pid, SIGCONT);
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
    const int pid = job.coordinator_pid();
    if (pid > 0 && kill(pid, SIGKILL) == 0) faults_.push_back({"coordinator", nanoseconds()});
  }
}

// Steps a second of an undisturbed job of this size.
double Chaos::calm_rate(int members) const {
  auto job = ChaosJob::start(options_, members, fmt::format("calm-{}", getpid()));
  if (!job || !progresses(**job, 0)) return 0;
  sleep_for(seconds(kWarmUp));
  const Instant began = now();
  sleep_for(std::min(20.0, options_.minutes * 15));
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

Result<nlohmann::json> Chaos::run() {
  auto started = ChaosJob::start(options_, options_.members, fmt::format("chaos-{}", getpid()));
  if (!started) return started.error();
  ChaosJob& job = **started;
  if (options_.keep) job.keep();
  if (!progresses(job, 0)) return invalid("the job did not commit a single step");
  sleep_for(seconds(kWarmUp));
  const Instant began = now();
  const Instant end = began + from_seconds(options_.minutes * 60);
  Instant next = began;
  Instant last_growth = began;
  uint64_t bytes = 0;
  while (now() < end && job.running() && hangs_ == 0) {
    if (now() >= next) {
      inflict(job, draw_kind());
      next = now() + from_seconds(uniform(options_.interval_min, options_.interval_max));
    }
    sleep_for(0.05);
    const size_t members = job.member_pids().size();
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
  const double faulty_s = seconds(now() - began);
  if (!job.running()) {
    job.keep();
    return invalid(fmt::format("the job ended by itself; its records are in {}", job.folder()));
  }
  // The world is whole again: training must go on.
  if (hangs_ == 0 && !progresses(job, job.record_bytes())) ++hangs_;
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
  const double calm = calm_rate(std::max(1, static_cast<int>(size + 0.5)));
  return report(*workers, verdict, faulty_s, calm);
}

nlohmann::json percentiles(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {{"p50", at(0.5)}, {"p99", at(0.99)}, {"max", values.back()}};
}

// From each kill to the first commit in a later view, minus what a step takes anyway.
nlohmann::json Chaos::recovery(const std::map<int, std::vector<ChaosRecord>>& workers) const {
  std::map<int64_t, const ChaosRecord*> commits;
  std::vector<double> calm_steps;
  for (const auto& [pid, records] : workers)
    for (const ChaosRecord& record : records) {
      commits.emplace(record.committed_ns, &record);
      if (record.agree_ns == 0)
        calm_steps.push_back(
            static_cast<double>(record.committed_ns - static_cast<int64_t>(record.begun_ns)));
    }
  std::sort(calm_steps.begin(), calm_steps.end());
  const double step_ns = calm_steps.empty() ? 0 : calm_steps[calm_steps.size() / 2];
  std::map<std::string, std::vector<double>> parts;
  for (const Fault& fault : faults_) {
    if (!fault.kind.starts_with("kill")) continue;
    auto at = commits.upper_bound(fault.at_ns);
    if (at == commits.begin() || at == commits.end()) continue;
    const uint32_t epoch = std::prev(at)->second->epoch;
    while (at != commits.end() && at->second->epoch <= epoch) ++at;
    if (at == commits.end()) continue;
    const ChaosRecord& record = *at->second;
    const auto ms = [](double value_ns) { return std::max(0.0, value_ns / 1e6); };
    parts["total"].push_back(ms(static_cast<double>(record.committed_ns - fault.at_ns) - step_ns));
    parts["agree"].push_back(ms(static_cast<double>(record.agree_ns)));
    parts["redo"].push_back(ms(static_cast<double>(record.redo_ns)));
    parts["detect"].push_back(
        ms(static_cast<double>(record.committed_ns - record.redo_ns - record.agree_ns -
                               record.transfer_ns - fault.at_ns)));
  }
  nlohmann::json json;
  for (const char* part : {"total", "detect", "agree", "redo"})
    json[part] = percentiles(parts[part]);
  json["kills"] = parts["total"].size();
  return json;
}

nlohmann::json Chaos::report(const std::map<int, std::vector<ChaosRecord>>& workers,
                             const ChaosVerdict& verdict, double faulty_s, double calm) const {
  std::map<std::string, uint64_t> kinds;
  for (const Fault& fault : faults_) ++kinds[fault.kind];
  const double rate = static_cast<double>(verdict.steps) / (faulty_s + seconds(kWarmUp));
  return {{"seed", options_.seed},
          {"members", options_.members},
          {"seconds", faulty_s},
          {"faults", kinds},
          {"commits", verdict.steps},
          {"records", verdict.commits},
          {"epochs_complete", verdict.epochs_complete},
          {"workers", workers.size()},
          {"divergences", verdict.divergences.size()},
          {"hangs", hangs_},
          {"mean_size", size_samples_ == 0 ? 0 : size_sum_ / static_cast<double>(size_samples_)},
          {"recovery_ms", recovery(workers)},
          {"steps_per_second", rate},
          {"undisturbed_steps_per_second", calm},
          {"throughput_share", calm > 0 ? rate / calm : 0}};
}

void print_table(const nlohmann::json& json) {
  fmt::print("{} commits by {} workers in {:.0f} s, {} epochs complete\n",
             json["commits"].get<uint64_t>(), json["workers"].get<uint64_t>(),
             json["seconds"].get<double>(), json["epochs_complete"].get<uint64_t>());
  for (const auto& [kind, count] : json["faults"].items())
    fmt::print("  {:14} {}\n", kind, count.get<uint64_t>());
  fmt::print("divergences {}, hangs {}\n", json["divergences"].get<uint64_t>(),
             json["hangs"].get<uint64_t>());
  fmt::print("throughput {:.0f} % of an undisturbed run of the same mean size ({:.1f})\n",
             100 * json["throughput_share"].get<double>(), json["mean_size"].get<double>());
  for (const char* part : {"total", "detect", "agree", "redo"}) {
    const auto& row = json["recovery_ms"][part];
    if (row.is_null()) continue;
    fmt::print("  {:8} p50 {:8.2f} ms   p99 {:8.2f} ms   max {:8.2f} ms\n", part,
               row["p50"].get<double>(), row["p99"].get<double>(), row["max"].get<double>());
  }
}

int run_chaos(const ChaosOptions& options) {
  Chaos chaos(options);
  const auto result = chaos.run();
  if (!result) {
    fmt::print(stderr, "pliant chaos: {}\n", result.error().message);
    return 1;
  }
  if (options.json) {
    fmt::print("{}\n", result->dump());
  } else {
    print_table(*result);
  }
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
  command->add_option("--heartbeat", options->heartbeat, "Seconds of silence that mean a loss")
      ->check(CLI::Range(0.1, 60.0))
      ->capture_default_str();
  command->add_option("--faults", options->faults, "Some of kill,stop,resize,coordinator")
      ->check([](const std::string& text) -> std::string {
        for (size_t start = 0; start <= text.size();) {
          const size_t end = std::min(text.find(',', start), text.size());
          const std::string kind = text.substr(start, end - start);
          if (kind != "kill" && kind != "stop" && kind != "resize" && kind != "coordinator")
            return "'" + kind + "' is no fault: choose from kill, stop, resize, coordinator";
          start = end + 1;
        }
        return "";
      })
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object at the end");
  command->add_flag("--keep", options->keep, "Keep the records");
  command->add_flag("-q,--quiet", options->quiet, "Nothing but the result");
  command->callback([options, &exit_code] { exit_code = run_chaos(*options); });
}

}  // namespace pliant::cli
