// `pliant convert`: a checkpoint on disk in another format.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_convert(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
