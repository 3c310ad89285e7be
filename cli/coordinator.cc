#include "cli/coordinator.h"

#include "pliant/runtime/coordinator_process.h"

namespace pliant::cli {

void add_coordinator(CLI::App& app, int& exit_code) {
  CLI::App* const coordinator = app.add_subcommand(
      "coordinator", "Decide who is a member of an elastic job; `pliant run` calls this");
  coordinator->footer("It reads its order from standard input and ends with the launcher.");
  coordinator->callback([&exit_code] { exit_code = serve_coordinator(); });
}

}  // namespace pliant::cli
