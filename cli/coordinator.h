// `pliant coordinator`: the coordinator of an elastic job, for `pliant run`.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_coordinator(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
