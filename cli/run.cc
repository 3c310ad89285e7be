#include "cli/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/job_client.h"
#include "pliant/base/log.h"
#include "pliant/base/result.h"
#include "pliant/collective/strategy.h"
#include "pliant/membership/view.h"
#include "pliant/runtime/hosts.h"
#include "pliant/runtime/launch.h"
#include "pliant/runtime/options.h"
#include "pliant/runtime/process_group.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant run -n 4 -- ./train --epochs 10          four workers on this machine
  pliant run -n 4 -- python3 train.py             torch's variables are set, too
  pliant run -H a:8,b:8 -- ./train                sixteen workers on two hosts, by ssh
  pliant run -n 6 --hostfile hosts -- ./train     hosts from a file, a line each: a slots=8
  pliant run -n 4 --min 2 --max 8 --restart -- ./train
                                                  an elastic job: workers may die, join and leave
  pliant run -H a:2@10.0.0.1,b:2@10.0.0.2 --address 10.0.0.254 \
             --launcher 'ip netns exec {host}' -- ./train
                                                  hosts that are network namespaces

The exit code is 0 if all workers end well, that of the first that fails otherwise (128 + n if
signal n ended it), 127 if the program does not exist, 2 if the command line is wrong.)";

// The options as they are written; made into LaunchOptions when all are known.
struct RunArguments {
  int count = 0;
  std::string hosts;
  std::string hostfile;
  std::string transport;
  std::string strategy;
  std::string timeout;
  std::string join_timeout;
  std::string grace = "5s";
  uint32_t min = 0;
  uint32_t max = 0;
  int restarts = 0;
  std::string schedule;
  std::string heartbeat;
  uint32_t host_failures = 0;
  std::string revocation = "off";
  std::string metadata_url;
  std::string revocation_poll;
  std::string launcher;
  std::string address;
  std::string agent_program;
  std::string job;
  std::string control;
  std::string store_limit;
  uint32_t store_versions = 0;
  uint32_t store_copies = 1;
  std::string store_directory;
  std::string log_directory;
  bool no_prefix = false;
  bool quiet = false;
  bool verbose = false;
  std::vector<std::string> environment;
  std::vector<std::string> command;
};

class RunFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: pliant run [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n";
  }
};

// The first mark ends the options; in the program's own arguments it is an ordinary word again.
std::vector<std::string> command_of(std::vector<std::string> words) {
  if (!words.empty() && words[0] == kProgramMark) words.erase(words.begin());
  std::replace(words.begin(), words.end(), std::string(kProgramMark), std::string("--"));
  return words;
}

Error named(const char* option, const Error& error) {
  return invalid(fmt::format("{}: {}", option, error.message));
}

Result<std::vector<Host>> read_hosts(const RunArguments& arguments) {
  if (!arguments.hosts.empty()) {
    auto hosts = parse_hosts(arguments.hosts);
    if (!hosts) return named("-H", hosts.error());
    return hosts;
  }
  if (arguments.hostfile.empty()) return std::vector<Host>{};
  std::ifstream file(arguments.hostfile);
  if (!file) return system_error("cannot read the hostfile " + arguments.hostfile);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  auto hosts = parse_hostfile(text);
  if (!hosts) return named(arguments.hostfile.c_str(), hosts.error());
  return hosts;
}

// The user's PLIANT_* variables hold unless an option says otherwise.
Result<SessionOptions> session_options(const RunArguments& arguments) {
  auto session = options_from_environment();
  if (!session) return session;
  const auto override_with = [&](const char* variable, const std::string& value) -> Status {
    if (value.empty()) return {};
    auto variables = to_environment(*session);
    variables[variable] = value;
    session = options_from(variables);
    if (!session) return session.error();
    return {};
  };
  PLIANT_TRY(override_with("PLIANT_TRANSPORT", arguments.transport));
  PLIANT_TRY(override_with("PLIANT_STRATEGY", arguments.strategy));
  PLIANT_TRY(override_with("PLIANT_TIMEOUT", arguments.timeout));
  PLIANT_TRY(override_with("PLIANT_JOIN_TIMEOUT", arguments.join_timeout));
  PLIANT_TRY(parse_strategy(session->strategy));
  session->job.clear();
  return session;
}

Result<std::map<std::string, std::string>> read_environment(const std::vector<std::string>& given) {
  std::map<std::string, std::string> variables;
  for (const std::string& text : given) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (name.empty())
      return invalid(fmt::format("--env: '{}' has no name; write NAME=VALUE", text));
    if (equals != std::string::npos) {
      variables[name] = text.substr(equals + 1);
    } else if (const char* const value = std::getenv(name.c_str())) {
      variables[name] = value;
    } else {
      return invalid(fmt::format("--env: {} is not set here; write {}=VALUE", name, name));
    }
  }
  return variables;
}

// Any of its options makes a job elastic.
Result<std::optional<ElasticOptions>> elastic_options(const RunArguments& arguments) {
  if (arguments.min == 0 && arguments.max == 0 && arguments.restarts == 0 &&
      arguments.schedule.empty()) {
    if (arguments.host_failures != 0)
      return invalid(
          "--host-failures is for elastic jobs: give --min, --max, --restart or --schedule");
    if (!arguments.heartbeat.empty())
      return invalid("--heartbeat is for elastic jobs: give --min, --max, --restart or --schedule");
    if (arguments.revocation != "off")
      return invalid(
          "--revocation is for elastic jobs: give --min, --max, --restart or --schedule");
    return std::optional<ElasticOptions>();
  }
  ElasticOptions options;
  options.min = arguments.min;
  options.max = arguments.max;
  options.restarts = arguments.restarts;
  options.schedule = arguments.schedule;
  options.host_failures = arguments.host_failures;
  options.revocation.provider = arguments.revocation;
  options.revocation.metadata_url = arguments.metadata_url;
  if (!arguments.revocation_poll.empty()) {
    const auto poll = parse_duration(arguments.revocation_poll);
    if (!poll) return named("--revocation-poll", poll.error());
    options.revocation.poll_ns = poll->count();
  }
  if (!arguments.heartbeat.empty()) {
    const auto heartbeat = parse_duration(arguments.heartbeat);
    if (!heartbeat) return named("--heartbeat", heartbeat.error());
    options.heartbeat = *heartbeat;
  }
  return std::optional(options);
}

Result<StoreOptions> store_options(const RunArguments& arguments) {
  StoreOptions options;
  options.versions_max = arguments.store_versions;
  options.copies = arguments.store_copies;
  // Agents of other hosts work in the same directory.
  options.directory = arguments.store_directory;
  if (arguments.store_limit.empty()) return options;
  const auto limit = parse_bytes(arguments.store_limit);
  if (!limit) return named("--store-limit", limit.error());
  if (*limit == 0) return invalid("--store-limit: nothing fits into 0 bytes");
  options.bytes_max = *limit;
  return options;
}

// What people call the job, and where they reach it.
Status name_job(const RunArguments& arguments, LaunchOptions& options) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  if (std::any_of(arguments.job.begin(), arguments.job.end(), control))
    return invalid("--job: the name holds characters that cannot be shown");
  if (!arguments.job.empty() && std::all_of(arguments.job.begin(), arguments.job.end(), digit))
    return invalid(
        fmt::format("--job {0}: a number means the launcher with this pid; write "
                    "job-{0} or the like",
                    arguments.job));
  options.name = options.session.job = arguments.job;
  if (options.name.empty()) {
    const auto program = std::filesystem::path(options.command[0]).filename().string();
    options.name = fmt::format("{}-{}", program, getpid());
  }
  options.control.emplace();
  if (!arguments.control.empty()) {
    if (const auto address = parse_endpoint(arguments.control); !address)
      return named("--control", address.error());
    options.control->endpoint = arguments.control;
  }
  if (const auto folder = job_folder_here(); folder) {
    options.control->folder = *folder;
  } else {
    log(LogLevel::kWarning, "`pliant status` will not find this job: " + folder.error().message);
  }
  return {};
}

Result<LaunchOptions> launch_options(const RunArguments& arguments) {
  LaunchOptions options;
  if (arguments.command.empty())
    return invalid("run which program? write pliant run -n 4 -- ./train; --help tells more");
  if (arguments.command[0].starts_with('-'))
    return invalid(fmt::format("unknown option {}; --help lists them", arguments.command[0]));
  auto hosts = read_hosts(arguments);
  if (!hosts) return hosts.error();
  options.hosts = std::move(*hosts);
  options.count = arguments.count;
  auto elastic = elastic_options(arguments);
  if (!elastic) return elastic.error();
  options.elastic = std::move(*elastic);
  if (options.count == 0 && options.hosts.empty() && !options.elastic)
    return invalid("how many workers? give -n N, or hosts with -H or --hostfile");
  auto session = session_options(arguments);
  if (!session) return session.error();
  options.session = std::move(*session);
  auto grace = parse_duration(arguments.grace);
  if (!grace) return named("--grace", grace.error());
  options.grace = *grace;
  auto environment = read_environment(arguments.environment);
  if (!environment) return environment.error();
  options.environment = std::move(*environment);
  options.output = {.prefix = !arguments.no_prefix,
                    .quiet = arguments.quiet,
                    .log_directory = arguments.log_directory};
  auto store = store_options(arguments);
  if (!store) return store.error();
  options.store = std::move(*store);
  options.address = arguments.address;
  if (!arguments.launcher.empty()) options.launcher = arguments.launcher;
  options.agent_program = arguments.agent_program;
  options.command = arguments.command;
  options.verbose = arguments.verbose;
  PLIANT_TRY(name_job(arguments, options));
  return options;
}

void say(const std::string& message) {
  const std::string line = "pliant: " + message + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

int run(const RunArguments& arguments) {
  if (arguments.verbose) set_log_level(LogLevel::kInfo);
  const auto options = launch_options(arguments);
  if (!options) {
    say(options.error().message);
    return kUsageError;
  }
  adopt_orphans();
  const auto result = launch(*options);
  end_orphans();
  if (!result) {
    say(result.error().message);
    return kUsageError;
  }
  if (!result->message.empty()) say(result->message);
  return result->exit_code;
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  CLI::App* const run_app = app.add_subcommand("run", "Run a program as the workers of a job");
  const auto arguments = std::make_shared<RunArguments>();
  run_app->footer(kExamples);
  run_app->formatter(std::make_shared<RunFormatter>());
  // The first word that is no option is the program, and what follows is its own.
  run_app->prefix_command();

  run_app
      ->add_option("-n,--workers", arguments->count,
                   "Number of workers (default: one in each slot of the hosts)")
      ->check(CLI::Range(1, static_cast<int>(kMembersMax)));
  auto* const hosts = run_app->add_option(
      "-H,--hosts", arguments->hosts,
      "Hosts: name:slots[@address],... (default: this machine, with room for all)");
  run_app->add_option("--hostfile", arguments->hostfile, "File with one host a line")
      ->excludes(hosts);
  run_app->add_option("--launcher", arguments->launcher,
                      "Command that runs another one on a host; {host} stands for its name "
                      "(default: ssh -o BatchMode=yes {host})");
  run_app->add_option("--agent-program", arguments->agent_program,
                      "Path of pliant on the other hosts (default: the same as here)");
  run_app->add_option("--address", arguments->address,
                      "Address on which the other hosts reach this machine");
  run_app
      ->add_option("--transport", arguments->transport,
                   "How workers talk: auto (shm inside a host, tcp between hosts), shm or tcp")
      ->check(CLI::IsMember({"auto", "shm", "tcp"}));
  run_app->add_option(
      "--strategy", arguments->strategy,
      "How collectives are carried out: " + strategy_names() + " (docs/STRATEGIES.md)");
  run_app->add_option("--timeout", arguments->timeout,
                      "Deadline of every operation, as in 500ms or 2m (default: 60s)");
  run_app->add_option("--join-timeout", arguments->join_timeout,
                      "Deadline for all workers to join (default: 60s)");
  run_app
      ->add_option("--grace", arguments->grace,
                   "Time that the others get to end after one has failed")
      ->capture_default_str();
  run_app
      ->add_option("--min", arguments->min,
                   "Elastic: with fewer members than this the job pauses (default: 1)")
      ->check(CLI::Range(1, static_cast<int>(kMembersMax)));
  run_app
      ->add_option("--max", arguments->max,
                   "Elastic: the most members (default: as many as there are slots)")
      ->check(CLI::Range(1, static_cast<int>(kMembersMax)));
  run_app->add_flag("--restart{-1}", arguments->restarts,
                    "Elastic: replace failed workers; --restart=N: at most N of them");
  run_app->add_option("--schedule", arguments->schedule,
                      "Elastic: sizes from given steps on, as in 2@0,4@100");
  run_app->add_option("--heartbeat", arguments->heartbeat,
                      "Elastic: a member that is silent for so long is lost (default: 2s)");
  run_app
      ->add_option("--host-failures", arguments->host_failures,
                   "Elastic: a host on which so many workers fail within a minute is set aside "
                   "for a while (default: 3)")
      ->check(CLI::Range(1, 1000000));
  run_app
      ->add_option("--revocation", arguments->revocation,
                   "Elastic: the cloud that may take hosts away, whose metadata service each host "
                   "asks; its workers leave first: off, aws, gcp or azure")
      ->check(CLI::IsMember({"off", "aws", "gcp", "azure"}))
      ->capture_default_str();
  run_app->add_option("--metadata-url", arguments->metadata_url,
                      "Elastic: base URL of that service; {host} stands for the host's name "
                      "(default: http://169.254.169.254)");
  run_app->add_option("--revocation-poll", arguments->revocation_poll,
                      "Elastic: how often it is asked (default: 5s)");
  run_app->add_option("--job", arguments->job,
                      "Name of the job for status, resize and so on (default: PROGRAM-PID)");
  run_app->add_option("--control", arguments->control,
                      "ADDRESS:PORT of the job's HTTP interface (default: a free one on loopback)");
  run_app
      ->add_option("--env", arguments->environment,
                   "NAME=VALUE for the workers; NAME alone passes on its value here")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  run_app->add_option("--store-limit", arguments->store_limit,
                      "Memory for snapshots on each host, as in 16G (default: half of it)");
  run_app
      ->add_option("--store-versions", arguments->store_versions,
                   "Complete snapshots that each host keeps (default: 2)")
      ->check(CLI::Range(1, 1000));
  run_app
      ->add_option("--store-copies", arguments->store_copies,
                   "Hosts that keep each snapshot: its own and the next ones")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  run_app->add_option("--store-dir", arguments->store_directory,
                      "Keep the newest snapshot of each host in a file there, too, and begin with "
                      "those that are there");
  run_app->add_option("--log-dir", arguments->log_directory,
                      "Write each worker's output to rank-N.log in this directory, too");
  run_app->add_flag("--no-prefix", arguments->no_prefix, "No [rank] before each line");
  run_app->add_flag("-q,--quiet", arguments->quiet, "Do not show the workers' output");
  run_app->add_flag("-v,--verbose", arguments->verbose, "Say what the launcher does");
  run_app->callback([arguments, run_app, &exit_code] {
    arguments->command = command_of(run_app->remaining());
    exit_code = run(*arguments);
  });
}

}  // namespace pliant::cli
