// `pliant sim`: simulated histories of a job under faults, judged against the promises.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_sim(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
