#include "pliant/policy/topology_by_interference.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "pliant/base/check.h"

namespace pliant {
namespace {

// The first steps after a change pay for it: connections, memory, caches.
constexpr int64_t kSkipSteps = 2;

double slowest_link(const std::vector<LinkSignals>& links) {
  double slowest = 0;
  for (const LinkSignals& link : links)
    if (slowest == 0 || link.bytes_per_second < slowest) slowest = link.bytes_per_second;
  return slowest;
}

double median(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// From the last member's arrival to the end of the step, as each member saw it.
std::vector<double> network_seconds(const Signals& signals) {
  double last_arrival = 0;
  for (const MemberSignals& member : signals.by_rank)
    last_arrival = std::max(last_arrival, member.compute_seconds);
  std::vector<double> seconds;
  for (const MemberSignals& member : signals.by_rank)
    seconds.push_back(std::max(0.0, member.wait_seconds - (last_arrival - member.compute_seconds)));
  if (seconds.empty()) seconds.push_back(signals.wait_seconds);
  return seconds;
}

}  // namespace

TopologyByInterference::TopologyByInterference(TopologyByInterferenceOptions options)
    : options_(std::move(options)) {
  PLIANT_CHECK(options_.window >= 1 && options_.window <= kWindowMax, "a window of 1 to 16 steps");
  PLIANT_CHECK(options_.threshold > 0 && options_.threshold < 1, "a threshold between 0 and 1");
  PLIANT_CHECK(!options_.fallbacks.empty(), "a fallback");
}

std::span<std::byte> TopologyByInterference::state() {
  return std::as_writable_bytes(std::span<State>(&state_, 1));
}

std::string TopologyByInterference::home() const { return state_.home.data(); }

void TopologyByInterference::enter(Phase phase, int64_t skip) {
  state_.phase = phase;
  state_.skip = skip;
  state_.learned_count = 0;
  state_.slow_steps = 0;
  state_.fast_steps = 0;
}

bool TopologyByInterference::is_majority(uint64_t steps) const {
  const uint64_t mask = (uint64_t{1} << options_.window) - 1;
  return 2 * std::popcount(steps & mask) > options_.window;
}

bool TopologyByInterference::learn(double seconds, double& reference) {
  state_.learned[static_cast<size_t>(state_.learned_count++)] = seconds;
  if (state_.learned_count < options_.window) return false;
  reference = median({state_.learned.data(), static_cast<size_t>(state_.learned_count)});
  state_.learned_count = 0;
  return true;
}

TopologyByInterference::Vote TopologyByInterference::vote(const Signals& signals) const {
  std::vector<double> seconds = network_seconds(signals);
  const bool is_away = state_.phase == Phase::kAway;
  const double reference = is_away ? state_.away_seconds : state_.reference_seconds;
  Vote vote{.members = static_cast<int>(seconds.size())};
  for (double member : seconds) {
    const bool is_material = member >= options_.share_min * signals.step_seconds;
    if (reference > 0 && is_material && member * options_.threshold > reference) ++vote.slow;
    if (reference > 0 && member < options_.threshold * reference) ++vote.fast;
  }
  vote.seconds = median(seconds);
  return vote;
}

Decision TopologyByInterference::after_step(const Signals& signals) {
  if (signals.members < 2 || signals.reduced_bytes == 0) return {};
  const bool is_same_job =
      signals.members == state_.members && signals.reduced_bytes == state_.reduced_bytes;
  if (!is_same_job) {
    const bool was_away = state_.members != 0 && state_.phase > Phase::kWatching;
    const std::string home_before = home();
    state_ = {.members = signals.members,
              .reduced_bytes = signals.reduced_bytes,
              .back_off = options_.back_off};
    enter(Phase::kLearning, kSkipSteps);
    if (was_away && signals.topology != home_before)
      return {.topology = home_before,
              .measure_links = true,
              .reason = fmt::format("the members or the tensors changed: back to {} to learn anew",
                                    home_before)};
    return {};
  }
  if (state_.phase == Phase::kMeasuring) return compare_links(signals);
  if (state_.skip > 0) {
    --state_.skip;
    return {};
  }
  const Vote seen = vote(signals);
  state_.slow_steps = (state_.slow_steps << 1) | (2 * seen.slow > seen.members ? 1u : 0u);
  state_.fast_steps = (state_.fast_steps << 1) | (2 * seen.fast > seen.members ? 1u : 0u);
  switch (state_.phase) {
    case Phase::kLearning:
      if (learn(seen.seconds, state_.reference_seconds)) enter(Phase::kWatching, 0);
      return {};
    case Phase::kWatching: return watch(signals, seen);
    case Phase::kAway: return away(signals, seen);
    case Phase::kTrying: return judge_trial(signals, seen);
    case Phase::kMeasuring: break;
  }
  return {};
}

Decision TopologyByInterference::watch(const Signals& signals, const Vote& vote) {
  if (!is_majority(state_.slow_steps)) {
    const bool is_quiet = (state_.slow_steps & 1) == 0;
    // A reference that was learned in bad times gets better; it never gets worse by itself.
    if (is_quiet && vote.seconds < state_.reference_seconds)
      state_.reference_seconds += 0.05 * (vote.seconds - state_.reference_seconds);
    if (is_quiet && !signals.links.empty())
      state_.reference_bandwidth = slowest_link(signals.links);
    return {};
  }
  // A name too long to remember is gone back to as "auto", which is never wrong.
  state_.home = {};
  const std::string home = signals.topology.size() < state_.home.size() ? signals.topology : "auto";
  std::ranges::copy(home, state_.home.begin());
  return leave(signals,
               fmt::format("{} of {} members saw collectives take {:.3g} ms against {:.3g} ms in "
                           "most of the last {} steps: interference",
                           vote.slow, vote.members, 1e3 * vote.seconds,
                           1e3 * state_.reference_seconds, options_.window));
}

Decision TopologyByInterference::leave(const Signals& signals, std::string reason) {
  const size_t count = options_.fallbacks.size();
  size_t next = static_cast<size_t>(state_.fallback) % count;
  if (options_.fallbacks[next] == signals.topology) next = (next + 1) % count;
  state_.fallback = static_cast<int64_t>((next + 1) % count);
  enter(Phase::kAway, kSkipSteps);
  state_.away_seconds = 0;
  state_.steps_left = state_.back_off;
  Decision decision{.measure_links = true, .reason = std::move(reason)};
  const std::string& fallback = options_.fallbacks[next];
  if (fallback != signals.topology) decision.topology = fallback;
  decision.reason += fmt::format("; links are measured, then {}", fallback);
  return decision;
}

Decision TopologyByInterference::away(const Signals& signals, const Vote& vote) {
  --state_.steps_left;
  if (state_.away_seconds == 0) {
    (void)learn(vote.seconds, state_.away_seconds);
    return {};
  }
  const bool got_faster = is_majority(state_.fast_steps);
  // It got worse still: another fallback, or "auto" by links that are measured anew.
  if (!got_faster && is_majority(state_.slow_steps))
    return leave(signals,
                 fmt::format("collectives take {:.3g} ms with {} too, against {:.3g} ms",
                             1e3 * vote.seconds, signals.topology, 1e3 * state_.away_seconds));
  if (!got_faster && state_.steps_left > 0) return {};
  const std::string reason = got_faster
                                 ? fmt::format("collectives take {:.3g} ms, no longer {:.3g} ms",
                                               1e3 * vote.seconds, 1e3 * state_.away_seconds)
                                 : fmt::format("{} steps have passed", state_.back_off);
  if (state_.reference_bandwidth == 0)
    return go_home(signals, reason + ": is the interference over?");
  enter(Phase::kMeasuring, 0);
  return {.measure_links = true,
          .reason = reason + ": links are measured to see whether the interference is over"};
}

Decision TopologyByInterference::compare_links(const Signals& signals) {
  const double bandwidth = slowest_link(signals.links);
  if (bandwidth > 0 && bandwidth < options_.threshold * state_.reference_bandwidth) {
    state_.back_off = std::min<int64_t>(2 * state_.back_off, options_.back_off_max);
    enter(Phase::kAway, kSkipSteps);
    state_.away_seconds = 0;
    state_.steps_left = state_.back_off;
    return {};
  }
  return go_home(signals, fmt::format("the slowest link has {:.4g} MB/s of {:.4g} again",
                                      1e-6 * bandwidth, 1e-6 * state_.reference_bandwidth));
}

Decision TopologyByInterference::go_home(const Signals& signals, std::string reason) {
  const bool has_measured = state_.phase == Phase::kMeasuring;
  enter(Phase::kTrying, kSkipSteps);
  Decision decision{.measure_links = !has_measured};
  if (home() != signals.topology) decision.topology = home();
  if (decision.topology || decision.measure_links)
    decision.reason = reason + fmt::format("; {} is tried", home());
  return decision;
}

Decision TopologyByInterference::judge_trial(const Signals& signals, const Vote& vote) {
  double seconds = 0;
  if (!learn(vote.seconds, seconds)) return {};
  const bool is_over = seconds * options_.threshold <= state_.reference_seconds ||
                       seconds < options_.share_min * signals.step_seconds;
  if (is_over) {
    state_.back_off = options_.back_off;
    state_.fallback = 0;
    enter(Phase::kWatching, 0);
    return {};
  }
  state_.back_off = std::min<int64_t>(2 * state_.back_off, options_.back_off_max);
  state_.fallback = 0;
  return leave(signals,
               fmt::format("with {} collectives take {:.3g} ms, still not {:.3g} ms",
                           signals.topology, 1e3 * seconds, 1e3 * state_.reference_seconds));
}

}  // namespace pliant
