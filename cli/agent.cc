#include "cli/agent.h"

#include "pliant/runtime/remote_agent.h"

namespace pliant::cli {

void add_agent(CLI::App& app, int& exit_code) {
  CLI::App* const agent = app.add_subcommand(
      "agent", "Start the workers of one host; `pliant run` calls this on other hosts");
  agent->footer("It reads its order from standard input and ends with the launcher.");
  agent->callback([&exit_code] { exit_code = serve_agent(); });
}

}  // namespace pliant::cli
