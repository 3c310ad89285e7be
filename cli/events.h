// `pliant events`: what happened in a running job, and what happens.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_events(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
