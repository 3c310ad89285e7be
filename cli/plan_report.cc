#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "pliant/base/bytes.h"

namespace pliant::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kHostRowsMax = 16;
constexpr size_t kGoneRowsMax = 20;

std::string axes_of(const tensor::Mesh& mesh) {
  std::string text;
  for (const tensor::Axis& axis : mesh.axes())
    if (axis.size != 1)
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", axis.name, axis.size);
  return text.empty() ? "one" : text;
}

size_t hosts_of(const std::vector<uint32_t>& hosts) {
  return std::set<uint32_t>(hosts.begin(), hosts.end()).size();
}

// "1 host", "8 hosts"
std::string counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string percent_of(uint64_t part, uint64_t whole) {
  if (whole == 0) return "";
  return fmt::format("{:5.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string row(const char* name, uint64_t bytes, const std::string& remark) {
  std::string line = fmt::format("  {:<16} {:>10}   {}", name, human_bytes(bytes), remark);
  while (line.ends_with(' ')) line.pop_back();
  return line + "\n";
}

std::string host_table(const tensor::Plan& plan) {
  std::string text = fmt::format("\n  {:>5} {:>12} {:>11} {:>11} {:>11} {:>11}\n", "host", "ranks",
                                 "in place", "inside", "in", "out");
  size_t shown = 0;
  size_t hidden = 0;
  for (size_t host = 0; host < plan.hosts.size(); ++host) {
    const tensor::HostLoad& load = plan.hosts[host];
    if (load.ranks_before == 0 && load.ranks_after == 0) continue;
    if (shown++ >= kHostRowsMax) {
      ++hidden;
      continue;
    }
    text += fmt::format("  {:>5} {:>12} {:>11} {:>11} {:>11} {:>11}\n", host,
                        fmt::format("{} -> {}", load.ranks_before, load.ranks_after),
                        human_bytes(load.bytes_in_place), human_bytes(load.bytes_inside),
                        human_bytes(load.bytes_in), human_bytes(load.bytes_out));
  }
  if (hidden != 0) text += fmt::format("  and {} hosts more\n", hidden);
  return text;
}

uint64_t bytes_of(const tensor::Plan& plan, const tensor::Gone& gone) {
  return volume(gone.box) * size_of((*plan.collection)[gone.tensor].dtype);
}

std::string gone_table(const tensor::Plan& plan) {
  if (plan.is_complete()) return "";
  uint64_t bytes = 0;
  for (const tensor::Gone& gone : plan.gone) bytes += bytes_of(plan, gone);
  std::string text = fmt::format("\nGone: {} pieces, {}, which no member has any more:\n",
                                 plan.gone.size(), human_bytes(bytes));
  for (size_t i = 0; i < std::min(plan.gone.size(), kGoneRowsMax); ++i)
    text += fmt::format("  {} {}\n", (*plan.collection)[plan.gone[i].tensor].name,
                        to_string(plan.gone[i].box));
  if (plan.gone.size() > kGoneRowsMax)
    text += fmt::format("  and {} more (--json has all)\n", plan.gone.size() - kGoneRowsMax);
  return text + "Restore these from a snapshot, or the whole state.\n";
}

size_t count_stayed(const tensor::Plan& plan) {
  return plan.members.size() -
         static_cast<size_t>(std::ranges::count(plan.members, tensor::kNewcomer));
}

}  // namespace

std::string changed_axes(const tensor::Mesh& from, const tensor::Mesh& to) {
  std::string text;
  const auto add = [&](const std::string& name, uint32_t before, uint32_t after) {
    if (before != after)
      text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", name, before, after);
  };
  const auto size_in = [](const tensor::Mesh& mesh, const std::string& name) {
    const auto axis = mesh.find(name);
    return axis ? mesh.axes()[*axis].size : 1;
  };
  for (const tensor::Axis& axis : from.axes()) add(axis.name, axis.size, size_in(to, axis.name));
  for (const tensor::Axis& axis : to.axes())
    if (!from.find(axis.name)) add(axis.name, 1, axis.size);
  return text.empty() ? "nothing" : text;
}

std::string plan_table(const PlanArguments& arguments, const PlanLayouts& layouts,
                       const tensor::Plan& plan, const PlanCost& cost) {
  const tensor::PlanTotals& totals = plan.totals;
  const tensor::Mesh& before = layouts.from.mesh();
  const tensor::Mesh& after = layouts.to.mesh();
  std::string text = fmt::format("{} tensors, {}\n", plan.collection->size(),
                                 human_bytes(plan.collection->bytes()));
  text += fmt::format("from     {} ({}, {})\n", axes_of(before), counted(before.size(), "rank"),
                      counted(hosts_of(before.hosts()), "host"));
  text += fmt::format("to       {} ({}, {}; {} were there before)\n", axes_of(after),
                      counted(after.size(), "rank"), counted(hosts_of(plan.to_hosts), "host"),
                      count_stayed(plan));
  const bool same_rules = layouts.from.spec().rules == layouts.to.spec().rules &&
                          layouts.from.spec().pipeline == layouts.to.spec().pipeline;
  text += fmt::format("changed  {}{}\n\n", changed_axes(before, after),
                      same_rules ? "" : "; rules differ");
  text += row("new layout", totals.bytes_total, "replicas included");
  text +=
      row("in place", totals.bytes_in_place, percent_of(totals.bytes_in_place, totals.bytes_total));
  text += row("moved", totals.bytes_moved, percent_of(totals.bytes_moved, totals.bytes_total));
  text += row("  inside hosts", totals.bytes_inside, "");
  text += row("  between hosts", totals.bytes_network, "");
  text += row("lower bound", totals.bytes_lower_bound, "what the members lack");
  text +=
      row("busiest", totals.bytes_received_max,
          fmt::format("received by one rank, {} sent by one", human_bytes(totals.bytes_sent_max)));
  text += fmt::format(
      "  predicted        {:>8.2f} s   at {:g} GB/s inside a host, {:g} Gbit/s between\n",
      totals.predicted_s, arguments.copy_gbyte, arguments.network_gbit);
  text += fmt::format("  planned in       {:>7.1f} ms   {} moves, {} of memory\n", cost.plan_ms,
                      plan.moves.size() + plan.relays.size(), human_bytes(cost.memory_bytes));
  return text + host_table(plan) + gone_table(plan);
}

std::string plan_summary_json(const PlanLayouts& layouts, const tensor::Plan& plan,
                              const PlanCost& cost) {
  const tensor::PlanTotals& totals = plan.totals;
  Json json = {{"tensors", plan.collection->size()},
               {"ranks_from", plan.from_ranks},
               {"ranks_to", plan.to_ranks},
               {"changed", changed_axes(layouts.from.mesh(), layouts.to.mesh())},
               {"bytes_total", totals.bytes_total},
               {"bytes_in_place", totals.bytes_in_place},
               {"bytes_moved", totals.bytes_moved},
               {"bytes_lower_bound", totals.bytes_lower_bound},
               {"bytes_inside_hosts", totals.bytes_inside},
               {"bytes_between_hosts", totals.bytes_network},
               {"bytes_received_max", totals.bytes_received_max},
               {"bytes_sent_max", totals.bytes_sent_max},
               {"predicted_s", totals.predicted_s},
               {"plan_ms", cost.plan_ms},
               {"memory_bytes", cost.memory_bytes},
               {"moves", plan.moves.size() + plan.relays.size()},
               {"members", plan.members},
               {"links", Json::array()},
               {"hosts", Json::array()},
               {"gone", Json::array()}};
  for (const tensor::HostLink& link : plan.links)
    json["links"].push_back({{"from", link.from}, {"to", link.to}, {"bytes", link.bytes}});
  for (size_t host = 0; host < plan.hosts.size(); ++host) {
    const tensor::HostLoad& load = plan.hosts[host];
    if (load.ranks_before == 0 && load.ranks_after == 0) continue;
    json["hosts"].push_back({{"host", host},
                             {"ranks_from", load.ranks_before},
                             {"ranks_to", load.ranks_after},
                             {"bytes_in_place", load.bytes_in_place},
                             {"bytes_inside", load.bytes_inside},
                             {"bytes_in", load.bytes_in},
                             {"bytes_out", load.bytes_out}});
  }
  for (const tensor::Gone& gone : plan.gone) {
    Json item = {{"tensor", (*plan.collection)[gone.tensor].name},
                 {"begin", Json::array()},
                 {"end", Json::array()},
                 {"bytes", bytes_of(plan, gone)}};
    for (uint32_t d = 0; d < gone.box.dims; ++d) {
      item["begin"].push_back(gone.box.begin[d]);
      item["end"].push_back(gone.box.end[d]);
    }
    json["gone"].push_back(std::move(item));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string diff_text(const tensor::PlanDiff& diff, const std::string& saved) {
  if (diff.is_empty()) return fmt::format("the plan of {} makes the same moves\n", saved);
  std::string text;
  const auto add = [&](const tensor::PlanDiff::Side& side, const char* sign,
                       const std::string& whose) {
    text += fmt::format("{} moves, {}, in {} alone\n", side.moves, human_bytes(side.bytes), whose);
    for (const std::string& line : side.lines) text += fmt::format("{} {}\n", sign, line);
    if (side.moves > side.lines.size())
      text += fmt::format("{} and {} more\n", sign, side.moves - side.lines.size());
  };
  add(diff.only_first, "-", saved);
  add(diff.only_second, "+", "the new plan");
  return text;
}

}  // namespace pliant::cli
