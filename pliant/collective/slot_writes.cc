#include "pliant/collective/slot_writes.h"

#include <algorithm>
#include <bit>

namespace pliant {
namespace {
// Of so many lanes, as many as the median needs are written the other way. Where that is five times
// as slow, it costs a twentieth.
constexpr uint32_t kLanesBetweenTrials = 256;
// Writing around the cache makes the reader fetch from memory, which is not seen here: it must be
// clearly cheaper for the writer.
constexpr float kClearly = 2;
}  // namespace

float SlotWrites::Samples::median() const {
  std::array<float, kSamples> sorted{};
  for (size_t i = 0; i < kSamples; ++i) sorted[i] = cost[i].load(std::memory_order_relaxed);
  std::sort(sorted.begin(), sorted.end());
  return sorted.front() == 0 ? 0 : sorted[kSamples / 2];
}

SlotWrites::Ways& SlotWrites::ways_of(size_t call_bytes) {
  return ways_[static_cast<size_t>(std::bit_width(call_bytes))];
}

const SlotWrites::Ways& SlotWrites::ways_of(size_t call_bytes) const {
  return ways_[static_cast<size_t>(std::bit_width(call_bytes))];
}

bool SlotWrites::streams(size_t call_bytes) const {
  const Ways& ways = ways_of(call_bytes);
  const float streamed = ways.streamed.median();
  return streamed != 0 && ways.cached.median() > kClearly * streamed;
}

bool SlotWrites::stream_next(size_t call_bytes) {
  const uint32_t lane = ways_of(call_bytes).lanes.fetch_add(1, std::memory_order_relaxed);
  const bool trial = lane % kLanesBetweenTrials < kSamples;
  return streams(call_bytes) != trial;
}

void SlotWrites::took(size_t call_bytes, bool streamed, size_t lane_bytes, Duration time) {
  Ways& ways = ways_of(call_bytes);
  Samples& samples = streamed ? ways.streamed : ways.cached;
  const uint32_t at = samples.next.fetch_add(1, std::memory_order_relaxed);
  samples.cost[at % kSamples].store(
      static_cast<float>(std::max<int64_t>(1, time.count())) / static_cast<float>(lane_bytes),
      std::memory_order_relaxed);
}

}  // namespace pliant
