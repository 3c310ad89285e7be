// `pliant top`: a running job, live in the terminal.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_top(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
