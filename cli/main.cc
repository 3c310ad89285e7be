// The `pliant` program: each subcommand adds itself.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "cli/agent.h"
#include "cli/bench.h"
#include "cli/chaos.h"
#include "cli/chaos_worker.h"
#include "cli/completion.h"
#include "cli/convert.h"
#include "cli/coordinator.h"
#include "cli/drain.h"
#include "cli/events.h"
#include "cli/plan.h"
#include "cli/reshard.h"
#include "cli/resize.h"
#include "cli/run.h"
#include "cli/sim.h"
#include "cli/status.h"
#include "cli/stop.h"
#include "cli/store_files.h"
#include "cli/top.h"

namespace {

std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "run") {
    const auto mark = std::find(arguments.begin(), arguments.end(), "--");
    if (mark != arguments.end()) *mark = pliant::cli::kProgramMark;
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Pliant: training jobs that change shape while they train", "pliant");
  app.set_version_flag("--version", "pliant " PLIANT_VERSION);
  app.require_subcommand(1);
  app.footer(R"(Examples:
  pliant run -n 4 -- ./train          run four workers on this machine
  pliant run --help                   all about running jobs
  pliant status                       what a running job is doing
  pliant resize 8                     change its number of members)");
  int exit_code = 0;
  pliant::cli::add_run(app, exit_code);
  pliant::cli::add_agent(app, exit_code);
  pliant::cli::add_coordinator(app, exit_code);
  pliant::cli::add_completion(app, exit_code);
  pliant::cli::add_bench(app, exit_code);
  pliant::cli::add_plan(app, exit_code);
  pliant::cli::add_sim(app, exit_code);
  pliant::cli::add_status(app, exit_code);
  pliant::cli::add_top(app, exit_code);
  pliant::cli::add_events(app, exit_code);
  pliant::cli::add_resize(app, exit_code);
  pliant::cli::add_drain(app, exit_code);
  pliant::cli::add_stop(app, exit_code);
  pliant::cli::add_convert(app, exit_code);
  pliant::cli::add_reshard(app, exit_code);
  pliant::cli::add_store(app, exit_code);
  pliant::cli::add_chaos(app, exit_code);
  pliant::cli::add_chaos_worker(app, exit_code);
  try {
    app.parse(arguments_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" to CLI11 as well, and go to standard output.
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
}
