// The policy `topology_by_interference`: notices that other traffic slows the collectives down, has
// the links measured and another topology taken, and goes back when the interference is over. Owned
// by the member that runs it; its thread alone calls it.
//
// What it looks at is each member's network time: from the moment at which the last member had
// handed everything in until the step was committed. So a straggler is no interference. A member
// votes if its network time is longer than the reference over `threshold` (0.8 by default: the
// throughput fell below 80 %); a step is slow if more than half of the members vote; and there is
// interference if more than half of the last `window` steps were slow.
//
//   learning   the reference is the median of a window of steps
//   watching   interference: measure the links, take the next fallback        -> away
//   away       after a back-off, or at once if the network got much faster: look whether it is
//   over;
//              if it got slower still: measure again, take the next fallback
//   measuring  if the links of better times are known, they are compared first
//   trying     home again for a window: as fast as it was -> watching; else  -> away, and the next
//              look comes twice as late
//
// With "auto" as fallback, the measured links refit its model, and it chooses by itself.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "pliant/policy/policy.h"

namespace pliant {

struct TopologyByInterferenceOptions {
  double threshold = 0.8;   // of the reference throughput
  int window = 5;           // steps; at most 16
  double share_min = 0.02;  // of the step; less network time than this is not worth a change
  int back_off = 20;        // steps until the first look whether it is over
  int back_off_max = 640;
  std::vector<std::string> fallbacks = {"auto"};  // tried in turn
};

class TopologyByInterference final : public Policy {
 public:
  explicit TopologyByInterference(TopologyByInterferenceOptions options);

  std::string_view name() const override { return "topology_by_interference"; }
  std::span<std::byte> state() override;
  Decision after_step(const Signals& signals) override;

  static constexpr int kWindowMax = 16;

 private:
  enum class Phase : int64_t { kLearning, kWatching, kAway, kMeasuring, kTrying };

  struct State {
    Phase phase = Phase::kLearning;
    int64_t members = 0;
    uint64_t reduced_bytes = 0;
    int64_t skip = 0;  // steps that are not looked at, since something has just changed
    std::array<double, kWindowMax> learned = {};
    int64_t learned_count = 0;
    double reference_seconds = 0;    // network time without interference
    double away_seconds = 0;         // while away; 0: not learned yet
    double reference_bandwidth = 0;  // of the slowest link without interference; 0: unknown
    uint64_t slow_steps = 0;         // a bit each, the last step lowest
    uint64_t fast_steps = 0;
    int64_t back_off = 0;
    int64_t steps_left = 0;           // until the next look
    int64_t fallback = 0;             // the next to take
    std::array<char, 128> home = {};  // the topology to go back to
  };

  // What the members saw in a step.
  struct Vote {
    double seconds = 0;  // the median member's network time
    int slow = 0;        // members
    int fast = 0;
    int members = 0;
  };

  Vote vote(const Signals& signals) const;
  void enter(Phase phase, int64_t skip);
  bool learn(double seconds, double& reference);
  bool is_majority(uint64_t steps) const;
  std::string home() const;
  Decision watch(const Signals& signals, const Vote& vote);
  Decision away(const Signals& signals, const Vote& vote);
  Decision compare_links(const Signals& signals);
  Decision go_home(const Signals& signals, std::string reason);
  Decision judge_trial(const Signals& signals, const Vote& vote);
  Decision leave(const Signals& signals, std::string reason);

  const TopologyByInterferenceOptions options_;
  State state_;
};

}  // namespace pliant
