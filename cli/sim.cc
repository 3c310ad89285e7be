#include "cli/sim.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "cli/job_client.h"
#include "pliant/base/time.h"
#include "pliant/sim/campaign.h"
#include "pliant/sim/scale.h"

namespace pliant::cli {
namespace {

constexpr const char* kExplanation = R"(Examples:
  pliant sim --seed 7                     one history
  pliant sim --seeds 1..2000 --json       many, and one object about them all
  pliant sim --sweep --seed 3             a kill before each delivery of a history
  pliant sim --seeds 1..2000 --defect local_commit   must fail: the defect is deliberate
  pliant sim --scale 10000                what a change of the view costs the coordinator

The production code of membership, steps, sampler and collectives runs over a simulated clock and
network, on one thread. The seed draws the job, the latencies and the faults. Exit code 0: no
promise was broken; 1: one was, and the command that shows it again is printed.
The JSON object has: histories, steps, commits, deliveries, views, redealt (commits that asked for
more samples), handed_on (results that a member took from another of its host), faults (by kind),
ends (of training loops, by reason), violations (by promise), failed_seeds.)";

struct Arguments {
  uint64_t seed = 1;
  std::string seeds;
  uint32_t members = 0;
  uint64_t steps = sim::CampaignOptions{}.steps;
  bool sweep = false;
  bool calm = false;
  uint64_t kill_at = 0;
  std::string defect = "none";
  bool first = false;
  bool json = false;
  uint32_t scale = 0;
  uint32_t failures = 1000;
};

void show(const sim::Failure& failure) {
  fmt::print(stderr, "seed {}: a promise was broken\n", failure.history.seed);
  for (const sim::Violation& violation : failure.history.violations)
    fmt::print(stderr, "  {}: {}\n", sim::to_string(violation.promise), violation.text);
  fmt::print(stderr, "the last events:\n");
  for (const std::string& line : failure.history.trace) fmt::print(stderr, "  {}\n", line);
  fmt::print(stderr, "again: {}\n\n", failure.command);
}

// Reads "1..2000" or "7".
std::optional<std::pair<uint64_t, uint64_t>> parse_seeds(const std::string& text) {
  const auto number = [](const std::string& digits) -> std::optional<uint64_t> {
    if (digits.empty() || digits.size() > 18) return std::nullopt;
    if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    return std::stoull(digits);
  };
  const size_t dots = text.find("..");
  const auto first = number(text.substr(0, dots));
  const auto last = dots == std::string::npos ? first : number(text.substr(dots + 2));
  if (!first || !last || *last < *first) return std::nullopt;
  return std::pair(*first, *last);
}

int scale(const Arguments& arguments) {
  if (arguments.scale < 16 || arguments.scale > 60000)
    return usage("sim", "--scale takes 16 to 60000 members");
  const auto results =
      sim::run_scales({.members = arguments.scale, .failures = arguments.failures, .seed = 1});
  if (arguments.json) {
    fmt::print("{}\n", sim::to_json(results));
    return 0;
  }
  fmt::print("{:>8} {:>8} {:>9} {:>12} {:>11} {:>10} {:>10} {:>8} {:>10} {:>12} {:>8}\n", "members",
             "changes", "messages", "bytes/change", "reports us", "decide us", "encode us",
             "log us", "log bytes", "bytes/join", "join us");
  for (const sim::ScaleResult& result : results)
    fmt::print(
        "{:>8} {:>8} {:>9.0f} {:>12.0f} {:>11.0f} {:>10.0f} {:>10.0f} {:>8.0f} {:>10.0f} {:>12.0f} "
        "{:>8.0f}\n",
        result.members, result.changes, result.messages_per_change, result.bytes_per_change,
        result.reports_us_per_change, result.cpu_us_per_change, result.encode_us_per_change,
        result.log_us_per_change, result.log_bytes_per_change, result.bytes_per_join,
        result.cpu_us_per_join);
  return 0;
}

int simulate(const Arguments& arguments) {
  if (arguments.scale != 0) return scale(arguments);
  const auto seeds = arguments.seeds.empty() ? std::pair(arguments.seed, arguments.seed)
                                             : parse_seeds(arguments.seeds);
  if (!seeds) return usage("sim", fmt::format("--seeds takes A..B, not '{}'", arguments.seeds));
  const auto defect = parse_defect(arguments.defect);
  if (!defect) {
    std::string names;
    for (const Defect known : all_defects())
      names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(known));
    return usage("sim",
                 fmt::format("there is no defect '{}'; there are {}", arguments.defect, names));
  }
  if (arguments.members != 0 && (arguments.members < 2 || arguments.members > 32))
    return usage("sim", "--members takes 2 to 32");
  sim::CampaignOptions options;
  options.first_seed = seeds->first;
  options.last_seed = seeds->second;
  options.members = arguments.members;
  options.steps = arguments.steps;
  options.sweep = arguments.sweep;
  options.calm = arguments.calm;
  if (arguments.kill_at != 0) options.kill_at = arguments.kill_at;
  options.defect = *defect;
  options.stop_at_first = arguments.first;
  const Instant began = now();
  const auto result = sim::run_campaign(options, show);
  const double time = seconds(now() - began);
  if (arguments.json) {
    fmt::print("{}\n", sim::to_json(result));
  } else {
    std::string faults;
    std::string ends;
    for (const auto& [reason, count] : result.ends) ends += fmt::format(" {} {}", reason, count);
    for (const auto& [kind, count] : result.faults) faults += fmt::format(" {} {}", kind, count);
    fmt::print(
        "{} histories, {} steps committed {} times, {} views, {} deliveries, {:.1f} s ({:.2f} "
        "ms a history)\nfaults:{}\nends of training loops:{}\n{} histories broke a promise\n",
        result.histories, result.steps, result.commits, result.epochs, result.deliveries, time,
        1e3 * time / static_cast<double>(result.histories), faults.empty() ? " none" : faults,
        ends.empty() ? " none" : ends, result.failed_seeds.size());
  }
  return result.failed_seeds.empty() ? 0 : 1;
}

}  // namespace

void add_sim(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("sim", "Simulate jobs under faults and check the promises");
  command->footer(kExplanation);
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("--seed", arguments->seed, "one history");
  command->add_option("--seeds", arguments->seeds, "histories A..B");
  command->add_option("--members", arguments->members, "initial members (default: drawn, 2 to 8)");
  command->add_option("--steps", arguments->steps,
                      "steps that all must commit after the world has healed");
  command->add_flag("--sweep", arguments->sweep, "a kill before each delivery of each history");
  command->add_option("--kill-at", arguments->kill_at, "one kill, before this delivery");
  command->add_flag("--calm", arguments->calm, "no faults");
  command->add_flag("--first", arguments->first, "stop at the first broken promise");
  command->add_flag("--json", arguments->json, "one JSON object instead of text");
  command->add_option("--defect", arguments->defect, "with a deliberate defect, for tests");
  command->add_option("--scale", arguments->scale, "the coordinator alone, with so many members");
  command->add_option("--failures", arguments->failures, "of --scale");
  command->callback([arguments, &exit_code] { exit_code = simulate(*arguments); });
}

}  // namespace pliant::cli
