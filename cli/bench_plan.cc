#include "cli/bench_plan.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "pliant/base/bytes.h"
#include "pliant/base/text.h"
#include "pliant/collective/strategy.h"

namespace pliant::cli {
namespace {

// More processes than this on one machine measure the scheduler, not us.
constexpr int kRanksMax = 256;
constexpr int64_t kRepetitionsMax = 10'000'000;
constexpr double kSecondsMax = 3600;

constexpr std::array<std::pair<std::string_view, Collective>, 10> kOps = {{
    {"all_reduce", Collective::kAllReduce},
    {"reduce", Collective::kReduce},
    {"broadcast", Collective::kBroadcast},
    {"all_gather", Collective::kAllGather},
    {"gather", Collective::kGather},
    {"scatter", Collective::kScatter},
    {"reduce_scatter", Collective::kReduceScatter},
    {"all_to_all", Collective::kAllToAll},
    {"barrier", Collective::kBarrier},
    {"send_recv", Collective::kSend},
}};

constexpr std::array<std::pair<std::string_view, BenchBuffer>, 3> kBuffers = {{
    {"registered", BenchBuffer::kRegistered},
    {"plain", BenchBuffer::kPlain},
    {"shared", BenchBuffer::kShared},
}};

template <typename Table>
std::string names_of(const Table& table) {
  std::string names;
  for (const auto& [name, value] : table) names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

template <typename Value, size_t size>
Result<Value> find(const std::array<std::pair<std::string_view, Value>, size>& table,
                   const std::string& text, const char* what) {
  for (const auto& [name, value] : table)
    if (name == text) return value;
  return invalid(fmt::format("unknown {} '{}'; use one of {}", what, text, names_of(table)));
}

Result<std::vector<int>> parse_nps(const std::string& text) {
  std::vector<int> nps;
  for (const std::string& item : comma_separated(text)) {
    int np = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), np);
    if (error != std::errc{} || end != item.data() + item.size() || np < 1 || np > kRanksMax)
      return invalid(fmt::format("--np: '{}' is no number of workers from 1 to {}; write 2,4,8",
                                 item, kRanksMax));
    nps.push_back(np);
  }
  return nps;
}

Result<std::vector<uint64_t>> parse_sizes(const std::string& text, DType dtype) {
  std::vector<uint64_t> sizes;
  for (const std::string& item : comma_separated(text)) {
    const auto bytes = parse_bytes(item);
    if (!bytes) return invalid("--sizes: " + bytes.error().message);
    if (*bytes % size_of(dtype) != 0)
      return invalid(fmt::format("--sizes: '{}' is not a multiple of the {} bytes of {}", item,
                                 size_of(dtype), to_string(dtype)));
    sizes.push_back(*bytes);
  }
  return sizes;
}

Status check_plan_strategy(const BenchPlan& plan) {
  const auto strategy = parse_strategy(plan.arguments.strategy);
  if (!strategy) return invalid("--strategy: " + strategy.error().message);
  if (strategy->kind == Strategy::Kind::kDirect && plan.arguments.transport == "tcp")
    return invalid("--strategy: direct needs shared memory, which transport tcp does without");
  for (const int np : plan.nps) {
    std::vector<PeerId> members;
    for (int slot = 0; slot < np; ++slot)
      members.push_back({.host = 0, .slot = static_cast<uint16_t>(slot), .incarnation = 1});
    const Group group = make_group(members, members[0], Epoch{1});
    if (const Status fits = check_strategy(*strategy, group); !fits.ok())
      return invalid(fmt::format("--strategy with {} workers: {}", np, fits.error().message));
  }
  return {};
}

// What only some combinations allow.
Status check_combination(const BenchPlan& plan) {
  const std::string& op = plan.arguments.op;
  if (is_reducing(plan.collective) && !is_reducible(plan.dtype))
    return invalid(fmt::format("--dtype: {} cannot reduce {}, which is only moved; use u8 or f16",
                               op, to_string(plan.dtype)));
  if (plan.buffer == BenchBuffer::kShared && plan.collective != Collective::kAllReduce)
    return invalid(fmt::format("--buffer: only all_reduce can share its result, not {}", op));
  if (plan.collective == Collective::kSend)
    for (const int np : plan.nps)
      if (np < 2) return invalid("--np: send_recv needs two workers or more");
  if (plan.arguments.repetitions < 0 || plan.arguments.repetitions > kRepetitionsMax)
    return invalid(
        fmt::format("--repetitions: give 1 to {}, or 0 to measure for --seconds", kRepetitionsMax));
  if (!(plan.arguments.seconds > 0) || plan.arguments.seconds > kSecondsMax)
    return invalid(fmt::format("--seconds: give more than 0 and at most {}", kSecondsMax));
  return check_plan_strategy(plan);
}

}  // namespace

std::string bench_op_names() { return names_of(kOps); }

bool is_blockwise(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kReduceScatter ||
         collective == Collective::kAllToAll;
}

bool is_reducing(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

Rank bench_root(Collective collective, Rank size) {
  const bool from_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
  return from_root ? size - 1 : 0;
}

void add_bench_options(CLI::App& app, BenchArguments& arguments) {
  app.add_option("OP", arguments.op, "One of " + bench_op_names())->required();
  app.add_option("--np", arguments.np, "Numbers of workers, each measured in turn")
      ->capture_default_str();
  app.add_option("--sizes", arguments.sizes,
                 "Sizes, as in 1K,64K,1M: of the tensor, or of each rank's block for all_gather, "
                 "gather, scatter, reduce_scatter and all_to_all")
      ->capture_default_str();
  app.add_option("--dtype", arguments.dtype,
                 "Element type: i8 to i64, u8 to u64, bool, f16, bf16, "
                 "f32, f64")
      ->capture_default_str();
  app.add_option("--op", arguments.op_kind, "Reduction: sum, mean, min, max or prod")
      ->capture_default_str();
  app.add_option("--strategy", arguments.strategy, "One of " + strategy_names())
      ->capture_default_str();
  app.add_option("--transport", arguments.transport, "How workers talk: auto, shm or tcp")
      ->capture_default_str();
  app.add_option("--buffer", arguments.buffer,
                 "Memory: registered (of session.allocate), plain, or shared (all_reduce whose "
                 "result the ranks share)")
      ->capture_default_str();
  app.add_option("--repetitions", arguments.repetitions,
                 "Timed calls of each cell (default: as many as fit into --seconds)");
  app.add_option("--seconds", arguments.seconds, "Time for each cell, about")
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "One JSON object a cell and line instead of a table");
  app.add_flag("--explain", arguments.explain, "Say which way each size takes, and why");
}

std::vector<std::string> to_words(const BenchArguments& arguments) {
  std::vector<std::string> words = {
      arguments.op,
      "--np=" + arguments.np,
      "--sizes=" + arguments.sizes,
      "--dtype=" + arguments.dtype,
      "--op=" + arguments.op_kind,
      "--strategy=" + arguments.strategy,
      "--transport=" + arguments.transport,
      "--buffer=" + arguments.buffer,
      fmt::format("--repetitions={}", arguments.repetitions),
      fmt::format("--seconds={}", arguments.seconds),
  };
  if (arguments.json) words.emplace_back("--json");
  if (arguments.explain) words.emplace_back("--explain");
  if (arguments.progress) words.emplace_back("--progress");
  return words;
}

Result<BenchPlan> make_bench_plan(const BenchArguments& arguments) {
  BenchPlan plan;
  plan.arguments = arguments;
  const auto collective = find(kOps, arguments.op, "operation");
  if (!collective) return collective.error();
  plan.collective = *collective;
  const auto dtype = parse_dtype(arguments.dtype);
  if (!dtype) return invalid("--dtype: " + dtype.error().message);
  plan.dtype = *dtype;
  const auto op = parse_op(arguments.op_kind);
  if (!op) return invalid("--op: " + op.error().message);
  plan.op = *op;
  const auto buffer = find(kBuffers, arguments.buffer, "memory");
  if (!buffer) return invalid("--buffer: " + buffer.error().message);
  plan.buffer = *buffer;
  if (arguments.transport != "auto" && arguments.transport != "shm" && arguments.transport != "tcp")
    return invalid(fmt::format("--transport: unknown transport '{}'; use one of auto, shm, tcp",
                               arguments.transport));
  auto nps = parse_nps(arguments.np);
  if (!nps) return nps.error();
  plan.nps = std::move(*nps);
  auto sizes = parse_sizes(arguments.sizes, plan.dtype);
  if (!sizes) return sizes.error();
  plan.sizes = std::move(*sizes);
  if (plan.collective == Collective::kBarrier) plan.sizes = {0};
  PLIANT_TRY(check_combination(plan));
  return plan;
}

}  // namespace pliant::cli
