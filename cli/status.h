// `pliant status`: what a running job is doing.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_status(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
