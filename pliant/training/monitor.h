// The Monitor of a training loop: gathers what the members measure in a step, with one small
// all-reduce that is a part of the step, into Signals (policy/signals.h) that have the same bits on
// every member once the step is committed. Owned by whoever trains; called by the thread that does.
//
//   monitor->begin(step);
//   ... compute ...
//   monitor->gradients(gradients, samples, GradientForm::kSum);
//   monitor->loss(mean_loss, samples);
//   ... step.all_reduce(...) of the gradients ...
//   if (!monitor->hand_in(step) || !step.commit()) break;
//   const Signals& signals = monitor->committed(step);
//
// A step that has more() samples goes through gradients(), loss() and hand_in() again.
//
// How members agree. Everyone hands in one row of numbers for each member of the view in which the
// step was first begun, all zero but its own, and the rows are added: adding zeros is exact, so all
// get every member's numbers as they were. The step knows that view whatever happens inside of it
// (Step::begun_by), and rows of members that were lost without a trace stay zero. Means over
// steps are registered state, and the last signals a note, so that newcomers have them too.
//
// A commit cannot tell how long it took before it is over, so all times are those of the step
// before. They are unknown (0) in the first step of a view, whose step before was made by others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/dtype.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/policy/noise_scale.h"
#include "pliant/policy/signals.h"
#include "pliant/policy/straggler.h"
#include "pliant/runtime/session.h"

namespace pliant {

struct MonitorOptions {
  // Norms of gradients are taken in every so many steps; 0: never, the noise stays unknown.
  uint64_t noise_every = 10;
  double noise_decay = 0.95;  // see NoiseScale
  StragglerOptions straggler = {};
};

// A part of the gradients as it is handed in: floating-point numbers.
struct GradientSpan {
  std::string_view name;  // of the all-reduce; only committed(step) needs it
  const void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::kF32;
};

// What stands in the gradients: the sum over the member's samples, or their mean.
enum class GradientForm : uint8_t { kSum, kMean };

// What the monitor itself has cost this member so far. The all-reduce of the signals is not in it:
// it runs beside the others, inside of commit().
struct MonitorCosts {
  uint64_t steps = 0;
  double norms_seconds = 0;    // norms of gradients, in all steps together
  double signals_seconds = 0;  // everything else
  uint64_t signal_bytes = 0;   // handed in by the last step
};

class Monitor final {
 public:
  // Before the first step of the session, which it borrows. One a session.
  static Result<std::unique_ptr<Monitor>> make(Session& session,
                                               const MonitorOptions& options = {});
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // The step has just been begun.
  void begin(const Step& step);
  // True if gradients() takes norms in this step; otherwise it costs nothing.
  bool takes_norms() const { return takes_norms_; }
  // Of this member in the step, as the sampler dealt them; 0 without one.
  uint64_t samples(const Step& step) const;
  // This member's own gradients, complete and before anything is averaged. With more() samples:
  // of all of them again.
  void gradients(std::span<const GradientSpan> gradients, uint64_t samples, GradientForm form);
  // The mean loss over so many samples; of several calls in a step, the mean over all.
  void loss(double mean, uint64_t samples);
  // Somebody else found a loss (Nonfinite::kLoss) or a gradient that is not finite.
  void nonfinite(int tensor);
  // For whoever acts inside of steps: this member could not do what all decided. Once the step is
  // committed, refused() is true on every member.
  void refuse() { refuses_ = true; }
  bool refused() const { return refused_; }
  // How models are kept together, for the signals; the same on all members.
  void synchronisation(Synchronisation synchronisation) { synchronisation_ = synchronisation; }

  // After all other inputs of the step were handed in, before commit().
  Status hand_in(Step& step);
  // After a commit() that ended the step. The results of the names given to gradients(), which were
  // handed in with Op::kMean, are the mean gradient; or it is given here, the same on all members.
  const Signals& committed(const Step& step);
  const Signals& committed(const Step& step, std::span<const GradientSpan> mean_gradient);

  // Of the last committed step; newcomers get them with the state.
  const Signals& signals() const { return signals_; }
  const MonitorCosts& costs() const { return costs_; }

 private:
  // What newcomers get byte by byte.
  struct State {
    NoiseScale noise;
    StragglerDetector straggler;
    uint64_t samples_committed = 0;
    uint64_t batch = 0;  // of the last step
    double change_seconds = 0;
  };
  struct Named {  // a GradientSpan that outlives the call
    std::string name;
    DType dtype = DType::kF32;
  };

  Monitor(Session& session, const MonitorOptions& options);
  void fill_rows(const Step& step);
  // Members of the step before that were lost before this one was begun.
  int losses_before(const Step& step) const;
  void read_rows(const Step& step, std::span<const double> rows);
  void read_times(std::span<const double> rows);
  void read_noise(const Step& step, std::span<const double> rows, double mean_squared_norm);
  double mean_squared_norm(const Step& step) const;
  void note_times(const Step& step);
  const Signals& complete(const Step& step, double mean_squared_norm);

  Session& session_;
  const MonitorOptions options_;
  State state_;
  Signals signals_;
  MonitorCosts costs_;
  Synchronisation synchronisation_ = Synchronisation::kSynchronous;

  // Of the open step.
  bool takes_norms_ = false;
  uint64_t data_epoch_ = 0;
  uint64_t dealt_samples_ = 0;  // by the sampler
  std::optional<uint64_t> gradient_samples_;
  double squared_norm_ = 0;  // of the own mean gradient
  bool norm_known_ = false;
  GradientForm form_ = GradientForm::kSum;
  std::vector<Named> names_;
  double loss_sum_ = 0;
  uint64_t loss_samples_ = 0;
  int nonfinite_ = kAllFinite;
  static constexpr int kAllFinite = -2;
  bool refuses_ = false;
  bool refused_ = false;  // by somebody in the last step
  std::vector<double> rows_;
  uint64_t reduced_bytes_ = 0;
  Instant begun_{};
  Instant handed_in_{};

  // Of the last committed step, as this member saw it; 0: not known.
  uint64_t last_step_ = 0;
  uint32_t last_view_ = 0;
  Instant last_commit_{};
  double last_compute_seconds_ = 0;
  double last_wait_seconds_ = 0;
  double last_step_seconds_ = 0;
  double change_seconds_ = 0;
};

}  // namespace pliant
