// The policy `synchronisation_by_size`: averages gradients in a small cluster, models in a larger
// one, and pairs of models in a large one (Spotnik); one way looser while the network is congested;
// or by step (KungFu's AdaptiveSGD). Owned by the member that runs it; its thread alone calls it.
//
// Hysteresis: it goes back to the tighter way only when the size is `slack` below the limit, so
// that a member that comes and goes does not switch it to and fro. Congestion is the share of the
// step that the fastest member waited, over a window of steps. A looser way waits less by itself,
// so it cannot tell from that when the congestion is over: it tries the tighter way again after a
// while, and twice as late after each try that failed.
#pragma once

#include "pliant/policy/policy.h"

namespace pliant {

struct SynchronisationBySizeOptions {
  int synchronous_max = 2;      // members up to which gradients are averaged
  int model_averaging_max = 8;  // members up to which models are averaged
  int slack = 1;
  double congestion = 0;  // share of waiting from which on one way looser is taken; 0: never
  int window = 20;        // steps
  // Before this step `before`, from it on `after`, whatever the size is; 0: by size.
  uint64_t change_step = 0;
  Synchronisation before = Synchronisation::kModelAveraging;
  Synchronisation after = Synchronisation::kSynchronous;
};

class SynchronisationBySize final : public Policy {
 public:
  explicit SynchronisationBySize(SynchronisationBySizeOptions options) : options_(options) {}

  std::string_view name() const override { return "synchronisation_by_size"; }
  std::span<std::byte> state() override;
  Decision before_train(const Signals& signals) override;
  Decision after_step(const Signals& signals) override;

 private:
  struct State {
    int64_t by_size = -1;       // 0 tight ... 2 loose; -1: nothing decided yet
    int64_t by_congestion = 0;  // how much looser than that
    int64_t window_steps = 0;
    double window_seconds = 0;
    double window_wait_seconds = 0;
    double share = 0;       // of the last window
    int64_t windows = 0;    // since the last change by congestion
    int64_t patience = 4;   // windows until a tighter way is tried again
    int64_t is_trying = 0;  // the tighter way is on trial
  };

  int64_t level_for(int members) const;
  void observe_congestion(const Signals& signals);
  void end_window();
  Decision towards(Synchronisation wanted, const Signals& signals, std::string reason) const;

  const SynchronisationBySizeOptions options_;
  State state_;
};

}  // namespace pliant
