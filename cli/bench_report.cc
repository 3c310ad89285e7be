#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pliant/base/bytes.h"
#include "pliant/base/check.h"
#include "pliant/base/time.h"

namespace pliant::cli {
namespace {

std::string row(const BenchPlan& plan, const std::vector<std::string>& fields) {
  const size_t strategy = std::max<size_t>(8, plan.arguments.strategy.size());
  return fmt::format(
      "{:<14} {:>3} {:>9}  {:<{}} {:<9} {:<10} {:>11} {:>10} {:>10} {:>10} {:>11} "
      "{:>11}\n",
      fields[0], fields[1], fields[2], fields[3], strategy, fields[4], fields[5], fields[6],
      fields[7], fields[8], fields[9], fields[10], fields[11]);
}

std::string human_microseconds(double value) { return human_duration(from_seconds(value * 1e-6)); }

std::string human_bandwidth(double bytes_a_second) {
  return bytes_a_second == 0 ? "-" : fmt::format("{:.2f} GB/s", bytes_a_second * 1e-9);
}

// Nanoseconds are all that a clock tells.
double rounded(double value) { return std::round(value * 1000) / 1000; }

}  // namespace

BenchSummary summarize(std::vector<double> seconds) {
  PLIANT_CHECK(!seconds.empty(), "a summary needs a sample");
  std::sort(seconds.begin(), seconds.end());
  const size_t count = seconds.size();
  const double middle = (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
  // The smallest sample that 99 of 100 do not exceed.
  const size_t rank99 = (count * 99 + 99) / 100;
  return {.repetitions = count,
          .min_us = seconds[0] * 1e6,
          .median_us = middle * 1e6,
          .p99_us = seconds[rank99 - 1] * 1e6};
}

double algorithm_bandwidth(Collective collective, const BenchCell& cell) {
  if (cell.np < 2 || cell.summary.median_us <= 0) return 0;
  const double blocks = is_blockwise(collective) ? cell.np : 1;
  return blocks * static_cast<double>(cell.bytes) / (cell.summary.median_us * 1e-6);
}

double bus_bandwidth(Collective collective, const BenchCell& cell) {
  const double others = static_cast<double>(cell.np - 1) / cell.np;
  const double bandwidth = algorithm_bandwidth(collective, cell);
  if (collective == Collective::kAllReduce) return 2 * others * bandwidth;
  return is_blockwise(collective) ? others * bandwidth : bandwidth;
}

std::string table_header(const BenchPlan& plan) {
  return row(plan, {"op", "np", "size", "strategy", "transport", "buffer", "repetitions", "min",
                    "median", "p99", "algbw", "busbw"});
}

std::string table_row(const BenchPlan& plan, const BenchCell& cell) {
  const BenchArguments& told = plan.arguments;
  const BenchSummary& summary = cell.summary;
  const bool sized = plan.collective != Collective::kBarrier;
  return row(plan, {told.op, std::to_string(cell.np), sized ? human_bytes(cell.bytes) : "-",
                    told.strategy, told.transport, told.buffer, std::to_string(summary.repetitions),
                    human_microseconds(summary.min_us), human_microseconds(summary.median_us),
                    human_microseconds(summary.p99_us),
                    human_bandwidth(algorithm_bandwidth(plan.collective, cell)),
                    human_bandwidth(bus_bandwidth(plan.collective, cell))});
}

std::string json_line(const BenchPlan& plan, const BenchCell& cell) {
  nlohmann::ordered_json object;
  object["op"] = plan.arguments.op;
  object["np"] = cell.np;
  object["bytes"] = cell.bytes;
  object["dtype"] = to_string(plan.dtype);
  object["op_kind"] = to_string(plan.op);
  object["strategy"] = plan.arguments.strategy;
  object["transport"] = plan.arguments.transport;
  object["buffer"] = plan.arguments.buffer;
  object["repetitions"] = cell.summary.repetitions;
  object["min_us"] = rounded(cell.summary.min_us);
  object["median_us"] = rounded(cell.summary.median_us);
  object["p99_us"] = rounded(cell.summary.p99_us);
  return object.dump() + "\n";
}

}  // namespace pliant::cli
