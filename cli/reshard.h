// `pliant reshard`: writes a checkpoint on disk for another layout of its tensors.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_reshard(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
