// `pliant completion`: prints a completion script, made from the program's own options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace pliant::cli {

enum class Shell { kBash, kZsh, kFish };

// The script for all subcommands that `app` has.
std::string completion_script(const CLI::App& app, Shell shell);

void add_completion(CLI::App& app, int& exit_code);

}  // namespace pliant::cli
