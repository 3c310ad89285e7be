#include "cli/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "cli/bench_plan.h"
#include "cli/bench_report.h"
#include "cli/bench_worker.h"
#include "cli/job_client.h"
#include "pliant/runtime/launch.h"
#include "pliant/runtime/process_group.h"

namespace pliant::cli {
namespace {

constexpr const char* kExplanation = R"(Examples:
  pliant bench all_reduce --np 2,4,8 --sizes 1K,64K,1M,16M
  pliant bench all_reduce --transport tcp --buffer plain --strategy ring
  pliant bench all_gather --np 4 --sizes 64K --json
  pliant bench broadcast --np 8 --dtype bf16 --explain

Each cell: warm-up calls, then calls timed one by one on rank 0, after a barrier; operations with a
root have a barrier before each call, and rank 0 is on the receiving side. send_recv sends to the
next rank while it receives from the one before. The last call of each cell is checked element by
element; a wrong result ends the benchmark with exit code 1.
algbw is size over median time (for blocks, the size of all of them); busbw is what the busiest rank
must at least send or receive in that time.
The JSON objects have: op, np, bytes, dtype, op_kind, strategy, transport, buffer, repetitions,
min_us, median_us, p99_us. With --json, explanations go to standard error.)";

void say(const std::string& message) {
  // Over what may be left of a progress line.
  const char* const clear = isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "";
  const std::string line = fmt::format("{}pliant bench: {}\n", clear, message);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

Result<LaunchOptions> launch_options(const BenchPlan& plan) {
  auto session = options_from_environment();
  if (!session) return session.error();
  auto variables = to_environment(*session);
  variables["PLIANT_TRANSPORT"] = plan.arguments.transport;
  variables["PLIANT_STRATEGY"] = plan.arguments.strategy;
  session = options_from(variables);
  if (!session) return session.error();
  const auto program = own_program();
  if (!program) return program.error();

  LaunchOptions options;
  options.session = std::move(*session);
  options.session.job = "bench";
  options.output.prefix = false;
  BenchArguments arguments = plan.arguments;
  arguments.progress = isatty(STDERR_FILENO) == 1;
  options.command = {*program, "bench-worker"};
  for (std::string& word : to_words(arguments)) options.command.push_back(std::move(word));
  return options;
}

int bench(const BenchArguments& arguments) {
  const auto plan = make_bench_plan(arguments);
  if (!plan) {
    say(plan.error().message);
    return kUsageError;
  }
  auto options = launch_options(*plan);
  if (!options) {
    say(options.error().message);
    return kUsageError;
  }
  if (!plan->arguments.json) {
    fmt::print("{}", table_header(*plan));
    std::fflush(stdout);
  }
  adopt_orphans();
  int exit_code = 0;
  for (const int np : plan->nps) {
    options->count = np;
    const auto result = launch(*options);
    if (result && result->exit_code == 0) continue;
    say(result ? result->message : result.error().message);
    exit_code = result ? result->exit_code : kUsageError;
    break;
  }
  end_orphans();
  return exit_code;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand("bench", "Measure a collective on this machine");
  const auto arguments = std::make_shared<BenchArguments>();
  command->footer(kExplanation);
  add_bench_options(*command, *arguments);
  command->callback([arguments, &exit_code] { exit_code = bench(*arguments); });
  add_bench_worker(app, exit_code);
}

}  // namespace pliant::cli
