// Signals: what the members of a job have measured in a committed step and agreed on. Every member
// has the same bits, so whatever is decided from them alone is decided alike everywhere, without a
// message. Values; any thread. training/monitor.h gathers them; policies read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/ids.h"

namespace pliant {

// How members keep their models together; training/ has one class for each.
enum class Synchronisation : uint8_t {
  kSynchronous,     // gradients are averaged in every step
  kModelAveraging,  // models are drawn towards their mean
  kPairAveraging,   // models are averaged with that of one other member
};

// "synchronous", "model_averaging", "pair_averaging"
const char* to_string(Synchronisation synchronisation);

// One member. Its times are those of the step before, as Signals says.
struct MemberSignals {
  PeerId peer;
  double compute_seconds = 0;  // from the begin of the step until it had handed everything in
  double wait_seconds = 0;     // in commit(): for the others and for the network

  bool operator==(const MemberSignals&) const = default;
};

// The noise of gradients (McCandlish et al.), from norms that the members know anyway. Means over
// the last steps; unknown where one member is alone.
struct GradientNoise {
  double scale = 0;     // variance / squared_norm: the batch at which noise and gradient are equal
  double variance = 0;  // of the gradient of one sample, summed over all elements
  double squared_norm = 0;  // of the true gradient

  bool operator==(const GradientNoise&) const = default;
};

// The way from one host to another, as the last measurement found it.
struct LinkSignals {
  uint32_t from_host = 0;
  uint32_t to_host = 0;
  double latency_seconds = 0;
  double bytes_per_second = 0;

  bool operator==(const LinkSignals&) const = default;
};

// A member that takes much longer than the others, step after step.
struct Straggler {
  Rank rank = 0;  // in the view of the step
  PeerId peer;
  double slowdown = 1;  // its compute time over the median of all

  bool operator==(const Straggler&) const = default;
};

// A member whose loss or gradient was infinite or undefined.
struct Nonfinite {
  static constexpr int kLoss = -1;
  Rank rank = 0;  // in the view of the step; the lowest, if there are several
  PeerId peer;
  int tensor = kLoss;  // or the number of the first such gradient, as Monitor::gradients() got them

  bool operator==(const Nonfinite&) const = default;
};

struct Signals {
  uint64_t step = 0;  // that was committed; 0 before the first
  uint64_t data_epoch = 0;
  uint64_t samples_committed = 0;  // since the job began
  uint32_t view = 0;               // the number of the view
  int members = 1;
  int hosts = 1;
  int members_lost = 0;  // since the step before, without having been asked to leave

  uint64_t batch = 0;          // samples in this step, of all members
  uint64_t reduced_bytes = 0;  // that each member handed in
  // All times are of the step before this one, since a commit cannot tell how long it took before
  // it is over; 0, not known, in the first step of a view.
  double step_seconds = 0;        // from commit to commit, of the slowest member
  double samples_per_second = 0;  // its batch over step_seconds
  double compute_seconds = 0;     // of the slowest member
  double wait_seconds = 0;        // of the fastest: nobody waited less, so it is the network's part
  double change_seconds = 0;      // what the last change of the view cost; 0: there was none yet
  double loss = 0;                // mean over the samples, if the program tells it; NaN otherwise

  Synchronisation synchronisation = Synchronisation::kSynchronous;
  std::string topology;  // the strategy of the collectives: "auto", "ring", ...

  std::optional<GradientNoise> noise;
  std::optional<Straggler> straggler;
  std::optional<Nonfinite> nonfinite;
  std::vector<MemberSignals> by_rank;
  std::vector<LinkSignals> links;

  bool operator==(const Signals&) const = default;
};

}  // namespace pliant
