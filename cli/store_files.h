// `pliant store ls|stat|verify`: what a checkpoint on disk holds, and whether it is sound.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_store(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
