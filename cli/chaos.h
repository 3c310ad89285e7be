// `pliant chaos`: real workers train a small model while they are killed, stopped and resized; at
// the end every commit is compared with a serial replay.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

void add_chaos(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
