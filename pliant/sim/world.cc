#include "pliant/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pliant::sim {
namespace {

constexpr size_t kTraceMax = 60;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Without shared memory, which real processes cover.
constexpr const char* kStrategies[] = {"star",       "ring",   "tree",     "binary_tree",
                                       "multi_star", "clique", "exchange", "binary_tree_star"};

std::vector<PlaceHost> draw_hosts(Prng& prng, uint32_t slots) {
  std::vector<PlaceHost> hosts;
  uint32_t made = 0;
  const uint32_t each = static_cast<uint32_t>(prng.between(1, slots));
  while (made < slots) {
    hosts.push_back({fmt::format("host{}", hosts.size()), static_cast<uint16_t>(each)});
    made += each;
  }
  return hosts;
}

}  // namespace

std::string to_string(Promise promise) { return fmt::format("S{}", static_cast<int>(promise)); }

Scenario Scenario::draw(uint64_t seed, uint32_t members) {
  Prng prng(seed);
  Scenario drawn;
  drawn.seed = seed;
  drawn.initial = static_cast<uint32_t>(prng.between(2, 8));
  if (members != 0) drawn.initial = members;
  drawn.max = drawn.initial + static_cast<uint32_t>(prng.between(0, 3));
  drawn.min = static_cast<uint32_t>(prng.between(1, std::max<uint32_t>(1, drawn.initial / 2)));
  // Some room to replace a member while the lost one still holds its slot.
  drawn.hosts = draw_hosts(prng, drawn.max + static_cast<uint32_t>(prng.between(0, 2)));
  drawn.model = prng.chance(4) ? prng.between(8200, 9000) : prng.between(1, 300);
  drawn.operations = static_cast<int>(prng.between(1, 3));
  drawn.sampler.samples = prng.between(20, 300);
  drawn.sampler.global_batch = prng.between(1, 24);
  drawn.sampler.seed = prng.next();
  drawn.sampler.epochs = 0;
  drawn.plan.strategy = *parse_strategy(kStrategies[prng.below(std::size(kStrategies))]);
  // By a draw of its own, so that what is known of other seeds stays true.
  if (Prng(~seed).below(9) == 0) drawn.plan.strategy = *parse_strategy("doubling");
  const auto width = prng.below(8);
  drawn.plan.chunk_bytes = size_t{64} << width;
  drawn.plan.cores = static_cast<int>(width) + 1;
  if (drawn.model > 1000) drawn.plan.chunk_bytes = size_t{16} << 10;
  drawn.latency_min = prng.duration(microseconds(5), microseconds(100));
  drawn.latency_max = drawn.latency_min + prng.duration(microseconds(10), microseconds(3000));
  drawn.compute_min = prng.duration(microseconds(200), milliseconds(2));
  drawn.compute_max = drawn.compute_min + prng.duration(microseconds(10), milliseconds(6));
  drawn.heartbeat = prng.duration(milliseconds(100), milliseconds(300));
  drawn.timeout = prng.duration(milliseconds(1500), milliseconds(3000));
  drawn.streams = prng.chance(50) ? 1 : 4;
  drawn.two_phases = prng.chance(70);
  drawn.sent_on_arrival = prng.chance(70);
  drawn.sampler.constant_batch = prng.chance(50);
  if (seed % 6 == 4) {
    drawn.sampler.batch_per_member = 1 + drawn.sampler.global_batch % 6;
    drawn.sampler.global_batch = 0;
  }
  return drawn;
}

void World::note(const std::string& text) {
  const double time = seconds(timeline.now().time_since_epoch()) - 3600;
  trace.push_back(fmt::format("{:10.6f} {}", time, text));
  if (trace.size() > kTraceMax) trace.pop_front();
}

void World::violate(Promise promise, const std::string& text) {
  note(fmt::format("{} broken: {}", to_string(promise), text));
  violations.push_back({promise, text});
}

}  // namespace pliant::sim
