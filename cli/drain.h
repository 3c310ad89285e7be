// `pliant drain`: lets the workers of a host, or one worker, leave in order.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_drain(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
