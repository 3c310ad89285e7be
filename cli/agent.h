// `pliant agent`: the part of a job on another host; `pliant run` starts it.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_agent(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
