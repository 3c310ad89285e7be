#include "cli/plan.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "cli/job_client.h"
#include "cli/plan_report.h"
#include "cli/plan_request.h"
#include "pliant/base/time.h"
#include "pliant/tensor/plan_json.h"

namespace pliant::cli {
namespace {

constexpr int kGone = 1;
constexpr int kDiffers = 1;

constexpr const char* kExplanation = R"(Examples:
  pliant plan A.json B.json                       from the layout of one file to that of another
  pliant plan --model gpt3-6.7b --from dp=8,tp=8 --to dp=8,tp=16
  pliant plan --model gpt3-175b --from dp=8,tp=8,pp=16 --to dp=16,tp=8,pp=16 --remap --json
  pliant plan --model llama3-8b --from dp=4,tp=2,zero=1 --to dp=3,tp=2,zero=1 --lost 6,7
  pliant plan A.json B.json --save before.plan    then, later: --diff before.plan

Sizes of axes: dp, tp, pp, ep (experts, spread over ep of the dp ranks), cp, zero (0 to 3),
interleave (runs of layers on each pipeline stage). docs/TENSORS.md describes layouts in JSON.
Nothing is moved. What a process has already stays in place; every other piece comes from the
cheapest replica. The lower bound is what the members lack: no plan can move less. With --remap the
processes are given the ranks for which they have most; with --relay a host fetches once what
several of its ranks lack.
Exit code 0; 1 if pieces are gone with the --lost ranks, or if the plan differs from that of --diff;
2 if a layout or an option is wrong.
The JSON object has: bytes_total, bytes_in_place, bytes_moved, bytes_lower_bound,
bytes_inside_hosts, bytes_between_hosts, bytes_received_max, bytes_sent_max, predicted_s, plan_ms,
memory_bytes, moves, members, links (from, to, bytes; of hosts), hosts, gone.)";

uint64_t peak_memory() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

Status save(const tensor::Plan& plan, const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << to_json(plan);
  file.flush();
  if (!file) return system_error(path);
  return {};
}

int compare(const tensor::Plan& plan, const std::string& path) {
  const auto text = read_text(path);
  if (!text) return usage("plan", "--diff: " + text.error().message);
  const auto saved = tensor::parse_plan(*text);
  if (!saved) return usage("plan", fmt::format("--diff: {}: {}", path, saved.error().message));
  const tensor::PlanDiff difference = tensor::diff(*saved, plan);
  const Status printed = print(diff_text(difference, path));
  if (!printed.ok()) return kUsageError;
  return difference.is_empty() ? 0 : kDiffers;
}

int make_and_show(const PlanArguments& arguments) {
  const auto options = plan_options(arguments);
  if (!options) return usage("plan", options.error().message);
  const Instant began = now();
  const auto layouts = load_layouts(arguments);
  if (!layouts) return usage("plan", layouts.error().message);
  const auto plan = tensor::make_plan(layouts->from, layouts->to, *options);
  if (!plan) return usage("plan", plan.error().message);
  const PlanCost cost{.plan_ms = 1e3 * seconds(now() - began), .memory_bytes = peak_memory()};
  if (!arguments.save.empty())
    if (const Status saved = save(*plan, arguments.save); !saved.ok())
      return usage("plan", "--save: " + saved.error().message);
  if (!arguments.diff.empty()) return compare(*plan, arguments.diff);
  const Status printed = print(arguments.json ? plan_summary_json(*layouts, *plan, cost)
                                              : plan_table(arguments, *layouts, *plan, cost));
  if (!printed.ok()) return kUsageError;
  return plan->is_complete() ? 0 : kGone;
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("plan", "Tell what a change of parallelism would move");
  command->footer(kExplanation);
  const auto arguments = std::make_shared<PlanArguments>();
  command->add_option("layouts", arguments->files, "the old layout and the new one, as JSON")
      ->expected(0, 2);
  command->add_option("--model", arguments->model, "a known model instead of files");
  command->add_option("--from", arguments->from, "sizes of its axes before: dp=8,tp=8");
  command->add_option("--to", arguments->to, "sizes of its axes after");
  command->add_option("--dtype", arguments->dtype, "of its parameters: bf16, f16 or f32");
  command->add_option("--slots", arguments->slots, "its ranks on each host (default 8)");
  command->add_flag("--remap", arguments->remap, "choose which process becomes which rank");
  command->add_flag("--relay", arguments->relay,
                    "what several ranks of a host lack is fetched once, and copied inside");
  command->add_option("--members", arguments->members,
                      "the old rank of each new one, - for a newcomer: 0,1,-,2");
  command->add_option("--lost", arguments->lost, "old ranks whose memory is gone: 3,8-15");
  command->add_option("--network", arguments->network_gbit,
                      "Gbit/s of a host, each way, for the prediction (default 100)");
  command->add_option("--copy", arguments->copy_gbyte,
                      "GB/s inside a host, for the prediction (default 10)");
  command->add_option("--save", arguments->save, "write the plan, move by move, to this file");
  command->add_option("--diff", arguments->diff, "compare with a plan that was saved");
  command->add_flag("--json", arguments->json, "one JSON object instead of a table");
  command->callback([arguments, &exit_code] { exit_code = make_and_show(*arguments); });
}

}  // namespace pliant::cli
