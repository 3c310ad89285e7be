// Jobs on scaling curves, for the evaluation of policies that choose a size: the time of a step by
// size and time, its noise, what changes and revocations cost. simulate() runs a policy on one;
// best_fixed_size() is brute force. Pure, and the same for the same seed. Tests and bench/policy
// share it; never shipped. The curves themselves stand in test_curves.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "pliant/policy/policy.h"
#include "pliant/policy/test_draws.h"

namespace pliant {

struct ScalingCurve {
  std::string name;
  int members_max = 32;
  std::function<double(int members)> batch;
  std::function<double(int members, double progress)> step_seconds;  // progress: 0 to 1
  double price = 0;                                                  // as best_size has it
  double noise_scale = 0;           // of the gradients; 0: not known
  double revocations_per_hour = 0;  // of a member
  double repair_seconds = 2;

  double throughput(int members, double progress) const {
    return batch(members) / step_seconds(members, progress);
  }
  double efficiency(int members) const {
    if (noise_scale == 0) return 1;
    return (noise_scale + batch(1)) / (noise_scale + batch(members));
  }
  // Samples per second that count, less the price.
  double value(int members, double progress) const {
    const double available = 1 / (1 + members * revocations_per_hour / 3600 * repair_seconds);
    return throughput(members, progress) * efficiency(members) * available -
           price * throughput(1, 0) * members;
  }
  // The mean over a part of the run.
  double mean_value(int members, double from, double to) const {
    constexpr int kPoints = 50;
    double sum = 0;
    for (int i = 0; i < kPoints; ++i)
      sum += value(members, from + (to - from) * (i + 0.5) / kPoints) / kPoints;
    return sum;
  }
};

// Brute force: the size that is best in a part of the run if it never changes.
inline int best_fixed_size(const ScalingCurve& curve, double from, double to) {
  int best = 1;
  for (int members = 2; members <= curve.members_max; ++members)
    if (curve.mean_value(members, from, to) > curve.mean_value(best, from, to)) best = members;
  return best;
}

// What the policy has arrived at is judged by the end of a run from here on.
constexpr double kLastPart = 0.9;

struct SimulatedRun {
  double noise = 0.05;        // relative standard deviation of a step's time
  double seconds = 3600;      // of the job
  double resize_seconds = 2;  // nobody gets on while the view changes
  double start_seconds = 10;  // new members start while the others go on
  int start_members = 1;
  uint64_t seed = 1;
};

struct SimulatedOutcome {
  int members = 0;        // at the end
  int changes = 0;        // of the size
  double mean_value = 0;  // over all the time, changes included
  double last_value = 0;  // the same over the last part of it
};

class SimulatedJob {
 public:
  SimulatedJob(const ScalingCurve& curve, SimulatedRun run)
      : curve_(curve),
        run_(run),
        draws_(run.seed),
        members_(run.start_members),
        wanted_(run.start_members) {}

  SimulatedOutcome simulate(Policy& policy) {
    while (now_ < run_.seconds) {
      arrive();
      const Signals signals = step();
      const Decision decision = policy.after_step(signals);
      if (decision.members && *decision.members != wanted_) {
        wanted_ = std::clamp(*decision.members, 1, curve_.members_max);
        due_ = now_ + (wanted_ > members_ ? run_.start_seconds : 0);
      }
    }
    return {members_, changes_, value_ / now_, last_value_ / last_seconds_};
  }

 private:
  // Time passes, members are paid for, and `samples` get done.
  void pass(double seconds, double samples) {
    now_ += seconds;
    const double value = samples - curve_.price * curve_.throughput(1, 0) * members_ * seconds;
    value_ += value;
    if (now_ < kLastPart * run_.seconds) return;
    last_value_ += value;
    last_seconds_ += seconds;
  }
  void arrive() {
    if (wanted_ == members_ || now_ < due_) return;
    members_ = wanted_;
    ++changes_;
    pass(run_.resize_seconds, 0);
  }
  Signals step() {
    const double progress = std::min(1.0, now_ / run_.seconds);
    const double noise = std::max(0.2, 1 + run_.noise * draws_.normal());
    const double batch = curve_.batch(members_);
    Signals signals;
    signals.step = ++steps_;
    signals.members = members_;
    signals.batch = static_cast<uint64_t>(batch);
    signals.step_seconds = curve_.step_seconds(members_, progress) * noise;
    signals.samples_per_second = batch / signals.step_seconds;
    signals.change_seconds = changes_ > 0 ? run_.resize_seconds : 0;
    if (curve_.noise_scale > 0)
      signals.noise = GradientNoise{.scale = curve_.noise_scale, .variance = 1, .squared_norm = 1};
    pass(signals.step_seconds, batch * curve_.efficiency(members_));
    // A lost member is replaced from a reserve: only the repair costs.
    const double rate = members_ * curve_.revocations_per_hour / 3600;
    if (rate > 0 && draws_.uniform() < rate * signals.step_seconds) {
      signals.members_lost = 1;
      signals.step_seconds += curve_.repair_seconds;
      pass(curve_.repair_seconds, 0);
    }
    return signals;
  }

  const ScalingCurve& curve_;
  const SimulatedRun run_;
  Draws draws_;
  int members_;
  int wanted_;
  double due_ = 0;
  double now_ = 0;
  double value_ = 0;
  double last_value_ = 0;
  double last_seconds_ = 0;
  int changes_ = 0;
  uint64_t steps_ = 0;
};

// What a policy lost against the best fixed size, as shares of it; means over runs.
struct Regret {
  double last = 0;   // in the last part of the run: by the size that was chosen
  double whole = 0;  // over the whole run, with all looks and changes
  double changes = 0;
};

// `make` gives a new policy for jobs of at most so many members.
template <typename Make>
Regret mean_regret(const ScalingCurve& curve, const Make& make, std::vector<double> noises,
                   int seeds, SimulatedRun run = {}) {
  Regret sum;
  const double best_mean = curve.mean_value(best_fixed_size(curve, 0, 1), 0, 1);
  const double best_last = curve.mean_value(best_fixed_size(curve, kLastPart, 1), kLastPart, 1);
  const double runs = static_cast<double>(noises.size()) * seeds;
  for (double noise : noises) {
    for (int seed = 1; seed <= seeds; ++seed) {
      run.noise = noise;
      run.seed = static_cast<uint64_t>(seed);
      const auto policy = make(curve);
      const SimulatedOutcome outcome = SimulatedJob(curve, run).simulate(*policy);
      sum.last += (1 - outcome.last_value / best_last) / runs;
      sum.whole += (1 - outcome.mean_value / best_mean) / runs;
      sum.changes += outcome.changes / runs;
    }
  }
  return sum;
}

}  // namespace pliant
