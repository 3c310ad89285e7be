#include "pliant/sim/campaign.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace pliant::sim {
namespace {

constexpr size_t kFailuresKept = 10;

std::string command_of(const CampaignOptions& options, const HistoryOptions& history) {
  std::string text = fmt::format("pliant sim --seed {}", history.seed);
  if (options.members != 0) text += fmt::format(" --members {}", options.members);
  if (options.steps != CampaignOptions{}.steps) text += fmt::format(" --steps {}", options.steps);
  if (history.kill_at) text += fmt::format(" --kill-at {}", *history.kill_at);
  if (history.calm) text += " --calm";
  if (options.defect != Defect::kNone)
    text += fmt::format(" --defect {}", pliant::to_string(options.defect));
  return text;
}

}  // namespace

CampaignResult run_campaign(const CampaignOptions& options,
                            const std::function<void(const Failure&)>& on_failure) {
  CampaignResult total;
  for (const Promise promise :
       {Promise::kS1, Promise::kS2, Promise::kS3, Promise::kS5, Promise::kS6, Promise::kS7})
    total.violations[to_string(promise)] = 0;
  // True if the campaign goes on.
  const auto run = [&](const HistoryOptions& wanted) {
    const HistoryResult history = History(wanted).run();
    ++total.histories;
    total.steps += history.steps;
    total.commits += history.commits;
    total.deliveries += history.deliveries;
    total.redealt += history.redealt;
    total.handed_on += history.handed_on;
    total.epochs += history.epochs;
    for (const auto& [kind, count] : history.faults) total.faults[kind] += count;
    for (const auto& [reason, count] : history.ends) total.ends[reason] += count;
    if (history.violations.empty()) return std::pair(true, history.deliveries);
    for (const Violation& violation : history.violations)
      ++total.violations[to_string(violation.promise)];
    if (total.failed_seeds.empty() || total.failed_seeds.back() != wanted.seed)
      total.failed_seeds.push_back(wanted.seed);
    const Failure failure{history, command_of(options, wanted)};
    if (on_failure) on_failure(failure);
    if (total.failures.size() < kFailuresKept) total.failures.push_back(failure);
    return std::pair(!options.stop_at_first, history.deliveries);
  };
  set_test_defect(options.defect);
  bool goes_on = true;
  for (uint64_t seed = options.first_seed; seed <= options.last_seed && goes_on; ++seed) {
    HistoryOptions wanted{.seed = seed,
                          .members = options.members,
                          .steps = options.steps,

                          .calm = options.calm || options.sweep,
                          .kill_at = options.kill_at};
    uint64_t deliveries = 0;
    std::tie(goes_on, deliveries) = run(wanted);
    if (!options.sweep) continue;
    wanted.calm = false;
    for (uint64_t at = 1; at <= deliveries && goes_on; ++at) {
      wanted.kill_at = at;
      goes_on = run(wanted).first;
    }
  }
  set_test_defect(Defect::kNone);
  return total;
}

std::string to_json(const CampaignResult& result) {
  nlohmann::json json;
  json["histories"] = result.histories;
  json["steps"] = result.steps;
  json["commits"] = result.commits;
  json["deliveries"] = result.deliveries;
  json["redealt"] = result.redealt;
  json["handed_on"] = result.handed_on;
  json["views"] = result.epochs;
  json["faults"] = result.faults;
  json["ends"] = result.ends;
  json["violations"] = result.violations;
  json["failed_seeds"] = result.failed_seeds;
  return json.dump();
}

}  // namespace pliant::sim
