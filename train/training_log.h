// What a training program tells: a line a few steps for people, and every step as a line of JSON
// for programs. Owned by a program; called by the thread that trains.
//
// The members share one file. The first of the view writes each step; when the members have
// changed, everybody does, and the step before it if the one that should have may have died first.
// Readers take the first line of a step.
#pragma once

#include <cstdint>
#include <string>

#include "pliant/base/time.h"
#include "train/elastic_trainer.h"

namespace pliant::train {

struct TrainingLogOptions {
  std::string file = {};       // for the lines of JSON, to which they are appended; empty: none
  uint64_t report_every = 10;  // steps, on standard output; 0: never
  uint64_t units_per_sample = 1;
  std::string unit = "samples";  // "tokens"
};

class TrainingLog final {
 public:
  // Throws TrainingError if the file cannot be written.
  explicit TrainingLog(TrainingLogOptions options);
  ~TrainingLog();
  TrainingLog(const TrainingLog&) = delete;
  TrainingLog& operator=(const TrainingLog&) = delete;

  // After each step that was committed and applied.
  void committed(ElasticTrainer& trainer);

 private:
  void write(const std::string& line);
  void report(ElasticTrainer& trainer, double units_per_second) const;

  const TrainingLogOptions options_;
  int file_ = -1;
  Instant last_;
  bool first_ = true;
  std::string unwritten_;  // the line of the step before, if another member was to write it
};

}  // namespace pliant::train
