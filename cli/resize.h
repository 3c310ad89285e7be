// `pliant resize`: changes the number of members of a running job.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_resize(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
