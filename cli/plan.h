// `pliant plan`: what a change of layout would move, before anything is moved.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_plan(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
