// `pliant run`: starts a job and waits for it.
#pragma once

#include <CLI/CLI.hpp>

namespace pliant::cli {

// Stands for the "--" before the program: CLI11 itself would take that for the end of the
// subcommand.
inline constexpr const char* kProgramMark = "\x1f--";

// Adds the subcommand; when it is chosen, parsing runs it and sets the exit code.
void add_run(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
