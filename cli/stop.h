// `pliant stop`: ends a running job.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_stop(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
