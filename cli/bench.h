// `pliant bench`: measures a collective over several numbers of workers and sizes.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

// Adds the subcommand, and the hidden one that its workers run.
void add_bench(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
