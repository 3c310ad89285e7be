// How a measured cell is told: summary of the samples, table row, JSON. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_plan.h"

namespace pliant::cli {

struct BenchSummary {
  size_t repetitions = 0;
  double min_us = 0;
  double median_us = 0;
  double p99_us = 0;
};

// Of at least one sample, in seconds.
BenchSummary summarize(std::vector<double> seconds);

struct BenchCell {
  int np = 0;
  uint64_t bytes = 0;
  BenchSummary summary;
};

// Bytes a second at the median: algbw is what the caller sees (size over time; for blocks, the size
// of all of them), busbw what the busiest rank must at least send or receive. Zero if nothing
// travels.
double algorithm_bandwidth(Collective collective, const BenchCell& cell);
double bus_bandwidth(Collective collective, const BenchCell& cell);

std::string table_header(const BenchPlan& plan);
std::string table_row(const BenchPlan& plan, const BenchCell& cell);
std::string json_line(const BenchPlan& plan, const BenchCell& cell);

}  // namespace pliant::cli
