#include "cli/chaos_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace pliant::cli {
namespace {

nlohmann::json percentiles(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {{"p50", at(0.5)}, {"p99", at(0.99)}, {"max", values.back()}};
}

}  // namespace

nlohmann::json chaos_recovery(const std::map<int, std::vector<ChaosRecord>>& workers,
                              const std::vector<ChaosFault>& faults) {
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
  for (const ChaosFault& fault : faults) {
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

void print_chaos_table(const nlohmann::json& json) {
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

}  // namespace pliant::cli
