#include "pliant/policy/best_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pliant/base/check.h"

namespace pliant {
namespace {

// The first steps after a change pay for it: connections, memory, caches.
constexpr int64_t kSkipSteps = 3;
// A measurement that stays noisy ends after so many windows.
constexpr int64_t kWindowsMax = 8;
// A size whose value is so many times that of the one before asks for a larger one at once.
constexpr double kClimb = 1.3;
// A larger size with at least this share of the best value may be a dip.
constexpr double kDip = 0.7;
// Sizes that are weighed against each other in one search.
constexpr int64_t kCandidatesMax = 128;
// A gain below this share is not looked for.
constexpr double kGainMin = 0.01;
// After a drift that is no more than this the best size is near, and is looked for in short
// strides.
constexpr double kLocalDrift = 0.6;
constexpr double kLocalReach = 1.5;
constexpr int64_t kOddWindowsMax = 3;
// A noise scale or a rate of losses that changed by so much may make another size the best.
constexpr double kNoiseChange = 1.3;
constexpr double kRiskChange = 1.1;
// Fewer losses than this tell no rate.
constexpr double kLossesMin = 3;

bool has_changed(double now, double before, double factor) {
  return now > factor * before || before > factor * now;
}

// Another size for sure, unless it is 1 and to be less.
int64_t scaled(int64_t members, double factor) {
  const auto size = static_cast<int64_t>(static_cast<double>(members) * factor);
  if (factor > 1) return std::max(size, members + 1);
  return std::max<int64_t>(1, std::min(size, members - 1));
}

StepEstimate estimate_of(const SizeStatistics& size) {
  return {size.seconds, size.batch, size.relative_error(), true};
}

}  // namespace

BestSize::BestSize(BestSizeOptions options) : options_(options) {
  PLIANT_CHECK(options_.members_min >= 1 && options_.members_max >= options_.members_min,
               "sizes from min to max, at least 1");
  PLIANT_CHECK(options_.window >= 2, "a window of at least 2 steps");
}

std::span<std::byte> BestSize::state() {
  return std::as_writable_bytes(std::span<State>(&state_, 1));
}

// What is known besides step times: losses, the cost of a change, the noise.
void BestSize::account(const Signals& signals) {
  if (state_.batch_first == 0) state_.batch_first = static_cast<double>(signals.batch);
  // The repair is not part of the time in which members were at risk.
  if (signals.members_lost == 0) state_.member_seconds += signals.members * signals.step_seconds;
  state_.members_lost += signals.members_lost;
  if (signals.noise) state_.noise_scale = signals.noise->scale;
  if (signals.members == state_.members) return;
  const bool is_first = state_.members == 0;
  state_.members = signals.members;
  state_.skip = is_first ? kSkipSteps - 1 : kSkipSteps;
  state_.steps_here = 0;
  state_.window_steps = 0;
  state_.window_seconds = 0;
  state_.window_samples = 0;
  if (state_.target == 0) state_.target = signals.members;
  if (is_first || !(signals.change_seconds > 0)) return;
  const double share = state_.change_seconds > 0 ? 0.5 : 1.0;
  state_.change_seconds += share * (signals.change_seconds - state_.change_seconds);
}

SizeStatistics& BestSize::statistics_of(int64_t members) {
  const auto end = state_.sizes.begin() + state_.sizes_count;
  const auto place =
      std::lower_bound(state_.sizes.begin(), end, members,
                       [](const SizeStatistics& size, int64_t n) { return size.members < n; });
  if (place != end && place->members == members) return *place;
  if (state_.sizes_count == static_cast<int64_t>(kSizesMax)) {
    // A full table: the size that is known least gives way.
    const auto least = std::ranges::min_element(
        state_.sizes, {}, [](const SizeStatistics& size) { return size.steps; });
    std::move(least + 1, state_.sizes.end(), least);
    --state_.sizes_count;
    return statistics_of(members);
  }
  std::move_backward(place, end, end + 1);
  ++state_.sizes_count;
  *place = {.members = members};
  return *place;
}

// Whether this step tells how fast the job is at its size.
bool BestSize::count(const Signals& signals) {
  if (signals.members_lost > 0) state_.skip = std::max(state_.skip, kSkipSteps);
  if (state_.skip > 0) {
    --state_.skip;
    return false;
  }
  statistics_of(signals.members).add(signals.step_seconds, static_cast<double>(signals.batch));
  ++state_.steps_here;
  return true;
}

// Members that were asked for start while the training goes on; some never come.
bool BestSize::is_waiting(const Signals& signals) {
  if (signals.members == state_.target) {
    state_.waited_seconds = 0;
    return false;
  }
  state_.waited_seconds += signals.step_seconds;
  if (state_.waited_seconds < options_.patience_seconds) return true;
  if (state_.target > signals.members) state_.ceiling = signals.members;
  state_.target = signals.members;
  state_.waited_seconds = 0;
  return false;
}

bool BestSize::is_measured_well() const {
  if (2 * state_.steps_here < options_.window) return false;
  if (state_.steps_here >= kWindowsMax * options_.window) return true;
  const Curve now = curve();
  const SizeStatistics& here = now.sizes[now.best];
  if (state_.steps_here < options_.window) {
    // On the way up a size that is much better than the one before need not be known well.
    const bool is_climbing =
        now.best + 1 == now.sizes.size() && here.members < members_limit() &&
        (now.best == 0 || value(estimate_of(now.sizes[now.best - 1]),
                                now.sizes[now.best - 1].members) < now.best_value / kClimb);
    return is_climbing && here.members == state_.members;
  }
  const auto size = std::ranges::find(now.sizes, state_.members, &SizeStatistics::members);
  return size->relative_error() <= options_.precision;
}

double BestSize::goodput(double seconds, double batch) const {
  if (!(seconds > 0)) return 0;
  double efficiency = 1;
  if (state_.noise_scale > 0)
    efficiency = (state_.noise_scale + state_.batch_first) / (state_.noise_scale + batch);
  return batch / seconds * efficiency;
}

double BestSize::change_cost_seconds() const {
  return state_.change_seconds > 0 ? state_.change_seconds : options_.resize_seconds;
}

// The share of its time that a member loses to revocations of one member.
double BestSize::hazard() const {
  double rate = std::max(0.0, options_.revocations_per_hour / 3600);
  if (options_.revocations_per_hour < 0 && state_.members_lost >= kLossesMin)
    rate = state_.members_lost / state_.member_seconds;
  return rate * (options_.repair_seconds > 0 ? options_.repair_seconds : change_cost_seconds());
}

double BestSize::availability(int64_t members) const {
  return 1 / (1 + static_cast<double>(members) * hazard());
}

double BestSize::value(const StepEstimate& estimate, int64_t members) const {
  return goodput(estimate.seconds, estimate.batch) * availability(members) -
         options_.price * state_.unit * static_cast<double>(members);
}

BestSize::Curve BestSize::curve() const {
  Curve curve;
  for (int64_t i = 0; i < state_.sizes_count; ++i) {
    const SizeStatistics& size = state_.sizes[static_cast<size_t>(i)];
    if (2 * size.steps >= options_.window || size.members == state_.members)
      curve.sizes.push_back(size);
  }
  curve.model = fit_step_time(curve.sizes);
  bool is_found = false;  // a size within the limits; without one the first stands for the best
  for (size_t i = 0; i < curve.sizes.size(); ++i) {
    const int64_t members = curve.sizes[i].members;
    const double found = value(estimate_of(curve.sizes[i]), members);
    const bool is_allowed = members >= options_.members_min && members <= members_limit();
    if (i > 0 && !(is_allowed && (!is_found || found > curve.best_value))) continue;
    is_found = is_found || is_allowed;
    curve.best = i;
    curve.best_value = found;
  }
  return curve;
}

int64_t BestSize::members_limit() const {
  const int64_t limit = options_.members_max;
  return state_.ceiling > 0 ? std::min(limit, std::max<int64_t>(state_.ceiling, 1)) : limit;
}

BestSize::Probe BestSize::look_at(const Curve& curve, int64_t members) const {
  StepEstimate estimate = estimate_step(curve.sizes, curve.model, members);
  const double rate = goodput(estimate.seconds, estimate.batch);
  estimate.seconds *= 1 - std::min(0.5, estimate.relative_error);
  return {members, value(estimate, members), rate};
}

// A look costs two changes, if it is in vain, and a window of steps that get on less well.
bool BestSize::is_worth(const Curve& curve, const Probe& probe) const {
  const SizeStatistics& best = curve.sizes[curve.best];
  const double rate = goodput(best.seconds, best.batch);
  const double gain = probe.hope - curve.best_value;
  if (gain <= kGainMin * rate) return false;
  const double window_seconds = 2.0 * options_.window * best.seconds;
  const double lost =
      rate * 2 * change_cost_seconds() + std::max(0.0, rate - probe.expected_rate) * window_seconds;
  return gain * options_.horizon_seconds > lost;
}

// If it went on from the largest size as if each member counted fully.
double BestSize::hope_beyond(const Curve& curve, int64_t members) const {
  StepEstimate estimate = estimate_step(curve.sizes, curve.model, members);
  const SizeStatistics& largest = curve.sizes.back();
  estimate.seconds = largest.seconds * (estimate.batch / largest.batch) *
                     static_cast<double>(largest.members) / static_cast<double>(members);
  return value(estimate, members);
}

// If each member were only in the others' way.
double BestSize::hope_below(const Curve& curve, int64_t members) const {
  StepEstimate estimate = estimate_step(curve.sizes, curve.model, members);
  const SizeStatistics& smallest = curve.sizes.front();
  estimate.seconds = smallest.seconds * (estimate.batch / smallest.batch) *
                     static_cast<double>(members) / static_cast<double>(smallest.members);
  return value(estimate, members);
}

// Of the sizes between two measured ones that are worth a look the one nearest to the middle: that
// halves the gap wherever the model is wrong about it.
BestSize::Probe BestSize::probe_between(const Curve& curve, int64_t from, int64_t to) const {
  Probe chosen;
  double hope = 0;
  const int64_t stride = 1 + (to - from) / kCandidatesMax;
  const auto off_middle = [from, to](int64_t members) { return std::abs(2 * members - from - to); };
  for (int64_t members = from + 1; members < to; members += stride) {
    if (members < options_.members_min || members > members_limit()) continue;
    const Probe probe = look_at(curve, members);
    if (!is_worth(curve, probe)) continue;
    hope = std::max(hope, probe.hope);
    if (chosen.members == 0 || off_middle(members) < off_middle(chosen.members)) chosen = probe;
  }
  chosen.hope = hope;
  return chosen;
}

BestSize::Probe BestSize::next_probe(const Curve& curve) const {
  const int64_t largest = curve.sizes.back().members;
  const int64_t smallest = curve.sizes.front().members;
  const size_t above = curve.sizes.size() - 1 - curve.best;
  // Two larger sizes that are worse end the climb, or one that is much worse; else it may be a dip,
  // which no model foresees: what is beyond is hoped to scale. Likewise downwards.
  const double reach = state_.is_local != 0 ? kLocalReach : 2;
  const double enough = (state_.is_local != 0 ? 1 : kDip) * curve.best_value;
  const double value_largest = value(estimate_of(curve.sizes.back()), largest);
  if (largest < members_limit() && above < 2 && value_largest >= enough) {
    Probe probe = look_at(curve, std::min(members_limit(), scaled(largest, reach)));
    probe.hope = std::max(probe.hope, hope_beyond(curve, probe.members));
    if (is_worth(curve, probe)) return probe;
  }
  const double value_smallest = value(estimate_of(curve.sizes.front()), smallest);
  if (smallest > options_.members_min && curve.best < 2 && value_smallest >= enough) {
    Probe probe =
        look_at(curve, std::max<int64_t>(options_.members_min, scaled(smallest, 1 / reach)));
    probe.hope = std::max(probe.hope, hope_below(curve, probe.members));
    if (is_worth(curve, probe)) return probe;
  }
  const int64_t best = curve.sizes[curve.best].members;
  const Probe lower =
      probe_between(curve, curve.best > 0 ? curve.sizes[curve.best - 1].members : best, best);
  const Probe upper =
      probe_between(curve, best, above > 0 ? curve.sizes[curve.best + 1].members : best);
  return lower.members != 0 && (upper.members == 0 || lower.hope > upper.hope) ? lower : upper;
}

std::string BestSize::drift_note() {
  if (state_.drift == 0) return {};
  const double drift = state_.drift;
  state_.drift = 0;
  return fmt::format("the throughput is {:.0f} % of what it was; ", 100 * drift);
}

Decision BestSize::search() {
  Curve now = curve();
  const SizeStatistics& best = now.sizes[now.best];
  if (state_.unit == 0)
    state_.unit = goodput(best.seconds, best.batch) / static_cast<double>(best.members);
  const int64_t allowed =
      std::clamp<int64_t>(state_.members, options_.members_min, options_.members_max);
  if (allowed != state_.members) {
    state_.target = allowed;
    return {.members = static_cast<int>(allowed),
            .reason = fmt::format("{} members are outside of the limits of {} to {}",
                                  state_.members, options_.members_min, options_.members_max)};
  }
  now = curve();
  const Probe probe = next_probe(now);
  if (probe.members == 0) return settle(now);
  state_.target = probe.members;
  return {.members = static_cast<int>(probe.members),
          .reason = drift_note() +
                    fmt::format("{} members are tried: {:.4g} samples/s expected, {} give {:.4g}, "
                                "the best so far",
                                probe.members, probe.expected_rate, now.sizes[now.best].members,
                                goodput(now.sizes[now.best].seconds, now.sizes[now.best].batch))};
}

Decision BestSize::settle(const Curve& curve) {
  const SizeStatistics& best = curve.sizes[curve.best];
  const StepEstimate here = estimate_step(curve.sizes, curve.model, state_.members);
  const double rate_here = goodput(here.seconds, here.batch);
  const double rate_best = goodput(best.seconds, best.batch);
  const double error_here = rate_here * availability(state_.members) * here.relative_error;
  const double error_best = rate_best * availability(best.members) * best.relative_error();
  const double error = std::sqrt(error_here * error_here + error_best * error_best);
  const double gain = curve.best_value - value(here, state_.members);
  if (state_.is_settled == 0) state_.settled_windows = 0;
  state_.is_settled = 1;
  state_.settled_noise_scale = state_.noise_scale;
  state_.settled_hazard = hazard();
  if (state_.settled_members != state_.members) {
    state_.settled_members = state_.members;
    state_.settled_rate = here.batch / here.seconds;
    state_.odd_windows = 0;
  }
  const bool is_allowed =
      state_.members >= options_.members_min && state_.members <= options_.members_max;
  const bool pays = gain > options_.confidence * error &&
                    gain * options_.horizon_seconds > rate_here * change_cost_seconds();
  if (best.members == state_.members || (is_allowed && !pays)) return {};

  state_.target = best.members;
  state_.settled_members = best.members;
  state_.settled_rate = best.batch / best.seconds;
  state_.odd_windows = 0;
  std::string reason = drift_note();
  reason +=
      fmt::format("{} members are best: {:.4g} samples/s, +-{:.1f} %, against {:.4g} with {}",
                  best.members, rate_best, 100 * best.relative_error(), rate_here, state_.members);
  if (options_.price > 0)
    reason += fmt::format(", at a price of {:.3g} a member", options_.price * state_.unit);
  return {.members = static_cast<int>(best.members), .reason = std::move(reason)};
}

void BestSize::reopen() {
  state_.is_settled = 0;
  state_.settled_members = 0;
  state_.sizes_count = 0;
  state_.steps_here = 0;
  state_.odd_windows = 0;
  state_.ceiling = 0;
}

Decision BestSize::watch(const Signals& signals) {
  state_.window_steps += 1;
  state_.window_seconds += signals.step_seconds;
  state_.window_samples += static_cast<double>(signals.batch);
  if (state_.window_steps < options_.window) return {};
  const double rate = state_.window_samples / state_.window_seconds;
  state_.window_steps = 0;
  state_.window_seconds = 0;
  state_.window_samples = 0;

  const double ratio = rate / state_.settled_rate;
  const bool is_odd = ratio < options_.drift || ratio * options_.drift > 1;
  state_.odd_windows = is_odd ? state_.odd_windows + 1 : 0;
  if (state_.odd_windows >= kOddWindowsMax) {
    reopen();
    state_.is_local = ratio > kLocalDrift && ratio * kLocalDrift < 1 ? 1 : 0;
    state_.drift = ratio;
    return {};
  }
  if (is_odd) return {};
  // Other figures of the value need no new measurements, only another look at the table.
  const double risk = 1 + hazard() * signals.members;
  const double risk_before = 1 + state_.settled_hazard * signals.members;
  if (has_changed(state_.noise_scale, state_.settled_noise_scale, kNoiseChange) ||
      has_changed(risk, risk_before, kRiskChange)) {
    state_.is_settled = 0;
    return search();
  }
  // More steps here may make a gain elsewhere significant. Later what was measured elsewhere is too
  // old to be compared with this size as it is now.
  ++state_.settled_windows;
  const bool is_elsewhere = signals.members != state_.settled_members;
  return is_elsewhere || state_.settled_windows <= kWindowsMax ? settle(curve()) : Decision{};
}

Decision BestSize::after_step(const Signals& signals) {
  if (!(signals.step_seconds > 0) || signals.batch == 0) return {};
  account(signals);
  const bool is_counted = count(signals);
  if (is_waiting(signals) || !is_counted) return {};
  if (state_.is_settled != 0) return watch(signals);
  return is_measured_well() ? search() : Decision{};
}

}  // namespace pliant
