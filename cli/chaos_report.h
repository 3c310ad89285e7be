// What `pliant chaos` says at the end: how long the kills cost, and the table for people. Pure but
// for the printing; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/chaos_record.h"

namespace pliant::cli {

struct ChaosFault {
  std::string kind;
  int64_t at_ns = 0;
};

// From each kill to the first commit in a later view, minus what a step takes anyway: p50, p99 and
// max of total, detect, agree and redo.
nlohmann::json chaos_recovery(const std::map<int, std::vector<ChaosRecord>>& workers,
                              const std::vector<ChaosFault>& faults);

// The result as a table on standard output.
void print_chaos_table(const nlohmann::json& json);

}  // namespace pliant::cli
