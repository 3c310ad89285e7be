// What all parts of one simulated history share: its values, its clock, its chance, what happened
// last, and what was found wrong. Owned by a History; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/collective/executor.h"
#include "pliant/data/sampler.h"
#include "pliant/membership/places.h"
#include "pliant/sim/prng.h"
#include "pliant/sim/timeline.h"

namespace pliant::sim {

// The promises that checkers look at; the number is that of the promise.
enum class Promise : uint8_t { kS1 = 1, kS2 = 2, kS3 = 3, kS5 = 5, kS6 = 6, kS7 = 7 };
std::string to_string(Promise promise);

struct Violation {
  Promise promise = Promise::kS1;
  std::string text;
};

// All that is drawn before a history begins.
struct Scenario {
  uint64_t seed = 0;
  uint32_t initial = 2;
  uint32_t min = 1;
  uint32_t max = 8;
  std::vector<PlaceHost> hosts;
  size_t model = 64;   // elements of the state
  int operations = 1;  // of a step
  SamplerOptions sampler;
  CallPlan plan;
  Duration latency_min{};
  Duration latency_max{};
  Duration compute_min{};
  Duration compute_max{};
  Duration timeout{};  // of an operation
  Duration heartbeat{};
  uint32_t streams = 1;         // independent queues between two members
  bool two_phases = true;       // a message's payload comes after its head
  bool sent_on_arrival = true;  // otherwise a message is sent as soon as it is given

  // Whether members of a host see each other's results, as in shared memory. Not drawn, so that the
  // draws of a seed stay what they were.
  bool shares_results() const { return seed % 2 == 1; }

  // Whether each member has a batch of its own, and otherwise the global batch of a step, which in
  // some histories is set anew every few steps. Not drawn, for the same reason.
  bool scales_batch() const { return sampler.batch_per_member != 0; }
  uint64_t batch_of(uint64_t step) const {
    if (seed % 3 != 0) return sampler.global_batch;
    return 1 + (sampler.global_batch + 7 * (step / 5)) % 24;
  }

  static Scenario draw(uint64_t seed, uint32_t members);
};

struct World {
  World(const Scenario& drawn) : scenario(drawn), prng(Prng::mix(drawn.seed)) {}  // NOLINT

  const Scenario scenario;
  Prng prng;
  Timeline timeline;
  std::deque<std::string> trace;  // the last events
  std::vector<Violation> violations;
  std::map<std::string, uint64_t> faults;  // by kind
  std::map<std::string, uint64_t> ends;    // of training loops, by the reason
  uint64_t deliveries = 0;
  uint64_t redealt = 0;  // commits that asked a member for more samples
  // Results that members have shown to others of their host; they outlive whoever made them.
  std::deque<std::vector<std::byte>> shared_results;
  uint64_t handed_on = 0;  // of them, those that another member took
  bool healed = false;

  void note(const std::string& text);
  void violate(Promise promise, const std::string& text);
};

}  // namespace pliant::sim
