// A Prefetcher reads the samples of steps before they are due, with threads of its own.
//
// It is told what the next steps are likely to have and begins to read it. Members that come, go or
// are lost, and another batch, make guesses wrong: those are thrown away, and what a step really
// has is read when it is asked for. So it is always right, and usually fast. It holds no more than
// the guesses and the batches that the caller keeps.
//
// Owned and called by one thread, the one that trains; the dataset is read by all of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/base/task_pool.h"
#include "pliant/data/dataset.h"
#include "pliant/data/sampler.h"

namespace pliant {

struct PrefetchOptions {
  size_t batches = 2;  // read ahead at most; 0: nothing is, but threads read each batch together
  int threads = 1;     // besides the caller's; 0: none, and nothing is read ahead
  uint64_t seed = 0;   // of the job, for what samples draw
};

// The samples of one member in one step, one behind the other. Immutable.
class LoadedBatch final {
 public:
  uint64_t epoch() const { return wanted_.epoch; }
  std::span<const uint64_t> samples() const { return wanted_.samples; }
  size_t size() const { return wanted_.samples.size(); }
  Bytes bytes() const { return {bytes_.get(), size() * sample_bytes_}; }
  Bytes sample(size_t index) const { return bytes().subspan(index * sample_bytes_, sample_bytes_); }

 private:
  friend class Prefetcher;
  LoadedBatch(UpcomingSamples wanted, size_t sample_bytes);

  const UpcomingSamples wanted_;
  const size_t sample_bytes_;
  const std::unique_ptr<std::byte[]> bytes_;
};

class Prefetcher final {
 public:
  struct Counts {
    uint64_t guessed = 0;      // batches that had been asked for before they were due
    uint64_t read_now = 0;     // that had not
    uint64_t thrown_away = 0;  // guesses that were wrong
  };

  // The dataset is borrowed and outlives it.
  Prefetcher(const Dataset& dataset, const PrefetchOptions& options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  const PrefetchOptions& options() const { return options_; }

  // These are the next batches, the nearest first; more of them than are read ahead are ignored.
  // Earlier guesses that are not among them are thrown away.
  void expect(std::span<const UpcomingSamples> upcoming);

  // The samples of a step. The caller reads what nobody has begun to read. An error is that of the
  // first sample that cannot be read; a sample outside the dataset is one.
  Result<std::shared_ptr<const LoadedBatch>> take(const UpcomingSamples& wanted);

  const Counts& counts() const { return counts_; }

 private:
  class Reading;

  std::shared_ptr<Reading> begin(const UpcomingSamples& wanted, int threads);

  const Dataset& dataset_;
  const PrefetchOptions options_;
  Counts counts_;
  std::deque<std::shared_ptr<Reading>> guesses_;  // the nearest first
  std::unique_ptr<TaskPool> pool_;                // the last: its threads end first
};

}  // namespace pliant
