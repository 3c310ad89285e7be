// How long a step takes with n members: what was measured at some sizes, and a model that is fitted
// to it for all others. Pure values; any thread. best_size decides with it.
//
// The model is that of synchronous data parallelism over a ring:
//
//   T(n) = c batch(n) / n  +  s 2 (n-1) / n  +  l 2 (n-1)
//
// with c the compute time of a sample, s the time of the tensors through a link, l the latency of a
// hop; none is negative. It is linear in c, s and l, so it is fitted exactly: least squares of the
// relative error, weighted by how well each size is known. Two or three sizes suffice.
//
// A model is only a model: a host boundary, a shared switch or a cache makes curves that no ring
// has. So at measured sizes the measurement stands, and between them the model is scaled by what it
// was wrong by at the neighbours.
//
// No function of the maths library but sqrt is used: its results may differ between processors in
// the last place, and all members must decide alike.
#pragma once

#include <cstdint>
#include <span>

namespace pliant {

// The steps seen at one size.
struct SizeStatistics {
  int64_t members = 0;
  double steps = 0;    // counted; old ones count less
  double seconds = 0;  // mean of a step
  double squares = 0;  // sum of the squared deviations from it
  double batch = 0;    // mean

  // A single pause, of a checkpoint for instance, counts as four usual steps at most.
  void add(double step_seconds, double step_batch);
  // The standard error of `seconds`, relative to it; 1 if nothing is known.
  double relative_error() const;
};

struct StepTimeModel {
  double compute_seconds = 0;   // c, of one sample
  double transfer_seconds = 0;  // s
  double latency_seconds = 0;   // l
  double misfit = 0;            // relative error at the sizes it was fitted to (root mean square)

  double step_seconds(double members, double batch) const;
};

// Sizes that were never seen make no difference; with none at all, every time is 0.
StepTimeModel fit_step_time(std::span<const SizeStatistics> sizes);

// What a step at some size is believed to be.
struct StepEstimate {
  double seconds = 0;
  double batch = 0;
  double relative_error = 1;  // of the seconds, one standard deviation
  bool is_measured = false;
};

// `sizes` in ascending order of members, each seen at least once.
StepEstimate estimate_step(std::span<const SizeStatistics> sizes, const StepTimeModel& model,
                           int64_t members);

}  // namespace pliant
