// The worker of `pliant bench`: measures every size of a plan with the other ranks of its job.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

// Adds the subcommand `bench-worker`, which people do not call and do not see.
void add_bench_worker(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
