// The policy `best_size`: finds the number of members with which the job gets on best, and moves
// there when it pays. Owned by the member that runs it; its thread alone calls it.
//
// The value of a size n, in samples per second, is
//
//   V(n) = G(n) A(n) - price u n,   G(n) = batch / T(n) (F + M0) / (F + M),   A(n) = 1 / (1 + n r
//   t)
//
// T: the step time, measured or by the model of scaling_model.h. F: the noise scale of the
// gradients if it is known, M the batch at this size and M0 that at the start: a sample of a batch
// beyond the noise scale is worth less. r: revocations of a member per second, t: what one costs.
// u: the goodput per member at the first size, so that a price of 0.3 asks each member to add 30 %
// of what a member did then.
//
// The search looks at a table of measured sizes and is the same from any start:
//
//   1. up      twice the largest size, unless larger ones were worse already
//   2. down    half of the smallest, likewise
//   3. refine  between the best and its measured neighbours, the middle one of the sizes that may
//   be
//              better by model and uncertainty
//   4. settle  on the best one measured
//
// Each look costs two changes of size and the steps at a worse one; it is taken only if what it may
// gain within the horizon is more. A move is made only if the gain is significant and pays for the
// change within the horizon. After that it watches: a throughput that leaves what was predicted for
// three windows opens the search anew, and so does a noise scale that changed by half.
#pragma once

#include <array>
#include <vector>

#include "pliant/policy/policy.h"
#include "pliant/policy/scaling_model.h"

namespace pliant {

struct BestSizeOptions {
  int members_min = 1;
  int members_max = 64;
  double price = 0;                  // of a member, in units of u above
  double revocations_per_hour = -1;  // of a member; negative: as measured from losses
  double repair_seconds = 0;         // what a revocation costs; 0: as a change of size
  double resize_seconds = 1;         // what a change of size costs, until one was measured
  double horizon_seconds = 1800;     // within which a change must have paid
  double patience_seconds = 120;     // for members that were asked for
  int window = 20;                   // steps of a measurement, at least; eight times that at most
  double precision = 0.02;           // relative standard error with which a measurement is done
  double confidence = 1.64;          // standard errors that a gain must have
  double drift = 0.8;                // of the predicted throughput
};

class BestSize final : public Policy {
 public:
  explicit BestSize(BestSizeOptions options);

  std::string_view name() const override { return "best_size"; }
  std::span<std::byte> state() override;
  Decision after_step(const Signals& signals) override;

  static constexpr size_t kSizesMax = 64;

 private:
  struct State {
    int64_t members = 0;  // of the last step
    int64_t target = 0;   // as decided
    int64_t skip = 0;     // steps that are not counted, since the view has just changed
    int64_t steps_here = 0;
    double waited_seconds = 0;  // for the target
    int64_t ceiling = 0;        // more than this could not be had; 0: no such limit is known
    int64_t is_settled = 0;
    int64_t is_local = 0;  // the search is for a size near this one

    double batch_first = 0;
    double unit = 0;         // u
    double noise_scale = 0;  // 0: unknown
    double change_seconds = 0;
    double member_seconds = 0;
    double members_lost = 0;

    int64_t settled_members = 0;
    int64_t settled_windows = 0;
    double settled_rate = 0;  // samples per second, as predicted when it settled
    double settled_noise_scale = 0;
    double settled_hazard = 0;
    double window_steps = 0;
    double window_seconds = 0;
    double window_samples = 0;
    int64_t odd_windows = 0;
    double drift = 0;  // throughput over the predicted one that opened the search; 0: none did

    int64_t sizes_count = 0;
    std::array<SizeStatistics, kSizesMax> sizes = {};  // in ascending order
  };

  // All that the table says at one moment.
  struct Curve {
    std::vector<SizeStatistics> sizes;  // measured well enough
    StepTimeModel model;
    size_t best = 0;  // index
    double best_value = 0;
  };
  struct Probe {
    int64_t members = 0;
    double hope = 0;  // the value that it may have
    double expected_rate = 0;
  };

  void account(const Signals& signals);
  bool count(const Signals& signals);
  SizeStatistics& statistics_of(int64_t members);
  bool is_waiting(const Signals& signals);
  bool is_measured_well() const;

  double goodput(double seconds, double batch) const;
  double hazard() const;
  double availability(int64_t members) const;
  double change_cost_seconds() const;
  double value(const StepEstimate& estimate, int64_t members) const;
  Curve curve() const;
  int64_t members_limit() const;

  Probe look_at(const Curve& curve, int64_t members) const;
  double hope_beyond(const Curve& curve, int64_t members) const;
  double hope_below(const Curve& curve, int64_t members) const;
  bool is_worth(const Curve& curve, const Probe& probe) const;
  Probe probe_between(const Curve& curve, int64_t from, int64_t to) const;
  Probe next_probe(const Curve& curve) const;
  Decision search();
  Decision settle(const Curve& curve);
  Decision watch(const Signals& signals);
  void reopen();
  std::string drift_note();

  const BestSizeOptions options_;
  State state_;
};

}  // namespace pliant
