// `pliant store ls|stat|get|put|verify --job NAME`: the tensors that the hosts of a running job
// keep (docs/STORE.md).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace pliant::cli {

struct StoreJobArguments {
  std::string job;
  std::string host;  // empty: all; to put: the first
  std::string path;  // "/", "/STEP" or "/STEP/TENSOR"
  std::string file;
  std::string box;
  bool json = false;
  bool force = false;
  bool given() const { return !job.empty(); }
};

// --job and --host.
void add_store_job_options(CLI::App& command, StoreJobArguments& arguments);
// get and put, which are for jobs alone.
void add_store_job_commands(CLI::App& store, int& exit_code);

// What ls, stat and verify do with a job; each returns the exit code.
int list_store(const StoreJobArguments& arguments);
int stat_store(const StoreJobArguments& arguments);
int verify_store(const StoreJobArguments& arguments);

}  // namespace pliant::cli
