// What a change of the view costs the coordinator of a large job: the production roster and the
// production messages, with as many members as asked for, and nothing else. Measures; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pliant/base/time.h"

namespace pliant::sim {

struct ScaleOptions {
  uint32_t members = 10000;
  uint32_t failures = 1000;
  uint64_t seed = 1;
};

struct ScaleResult {
  uint32_t members = 0;
  uint32_t failures = 0;
  uint32_t changes = 0;            // views that were decided because of them
  double messages_per_change = 0;  // from the coordinator to workers
  double bytes_per_message = 0;
  double bytes_per_change = 0;       // all messages together
  double reports_us_per_change = 0;  // processor time for hearing of the loss from every member
  double cpu_us_per_change = 0;      // of the decision
  double encode_us_per_change = 0;
  double log_bytes_per_change = 0;
  double log_us_per_change = 0;

  uint32_t joins = 0;  // after the failures, one at a time, each one a change
  double messages_per_join = 0;
  double bytes_per_join = 0;
  double cpu_us_per_join = 0;  // all of it
};

ScaleResult run_scale(const ScaleOptions& options);
// An eighth, a quarter, a half, and the number asked for.
std::vector<ScaleResult> run_scales(const ScaleOptions& options);
std::string to_json(const std::vector<ScaleResult>& results);

}  // namespace pliant::sim
