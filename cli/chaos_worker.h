// The worker of `pliant chaos` and of the measurements of recovery: trains an integer-valued model,
// checks every result, and writes each commit down.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

// Adds the subcommand `chaos-worker`, which people do not call and do not see.
void add_chaos_worker(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
