#include "pliant/policy/straggler.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "pliant/base/check.h"

namespace pliant {
namespace {

double lower_median(std::span<const MemberSignals> by_rank) {
  std::vector<double> seconds;
  seconds.reserve(by_rank.size());
  for (const MemberSignals& member : by_rank) seconds.push_back(member.compute_seconds);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>((seconds.size() - 1) / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace

static_assert(std::is_trivially_copyable_v<StragglerDetector>, "it is copied as bytes");

StragglerDetector::StragglerDetector(StragglerOptions options) : options_(options) {
  PLIANT_CHECK(options.factor > 1 && options.steps > 0, "options of the straggler detector");
}

StragglerDetector::Suspect* StragglerDetector::find(uint64_t peer) {
  for (Suspect& suspect : suspects_)
    if (suspect.peer == peer) return &suspect;
  return nullptr;
}

// A free place, or that of the least suspected that is not named.
StragglerDetector::Suspect* StragglerDetector::place_for(uint64_t peer) {
  Suspect* place = find(0);
  for (Suspect& suspect : suspects_) {
    if (place != nullptr && place->peer == 0) break;
    if (suspect.is_named == 0 && (place == nullptr || suspect.score < place->score))
      place = &suspect;
  }
  if (place != nullptr) *place = {.peer = peer};
  return place;
}

void StragglerDetector::judge(const MemberSignals& member, double slowdown) {
  const bool is_slow = slowdown > options_.factor;
  Suspect* suspect = find(member.peer.packed());
  if (suspect == nullptr && is_slow) {
    suspect = place_for(member.peer.packed());
    if (suspect != nullptr) suspect->slowdown = slowdown;
  }
  if (suspect == nullptr) return;
  suspect->score = std::clamp(suspect->score + (is_slow ? 1 : -1), 0, options_.steps);
  suspect->slowdown += (slowdown - suspect->slowdown) / options_.steps;
  if (suspect->score == options_.steps) suspect->is_named = 1;
  if (suspect->score == 0) *suspect = {};
}

std::optional<Straggler> StragglerDetector::add(std::span<const MemberSignals> by_rank) {
  for (Suspect& suspect : suspects_) {
    const bool is_here = std::ranges::any_of(by_rank, [&suspect](const MemberSignals& member) {
      return member.peer.packed() == suspect.peer;
    });
    if (!is_here) suspect = {};
  }
  if (by_rank.size() < 2) return std::nullopt;
  const double median = lower_median(by_rank);
  if (!(median > 0)) return std::nullopt;
  for (const MemberSignals& member : by_rank) judge(member, member.compute_seconds / median);

  std::optional<Straggler> slowest;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Suspect* suspect = find(by_rank[rank].peer.packed());
    if (suspect == nullptr || suspect->is_named == 0) continue;
    if (!slowest || suspect->slowdown > slowest->slowdown)
      slowest = {static_cast<Rank>(rank), by_rank[rank].peer, suspect->slowdown};
  }
  return slowest;
}

}  // namespace pliant
