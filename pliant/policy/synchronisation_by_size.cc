#include "pliant/policy/synchronisation_by_size.h"

#include <fmt/format.h>

#include <algorithm>

namespace pliant {
namespace {

constexpr int64_t kLoosest = 2;
constexpr int64_t kPatienceWindows = 4;
constexpr int64_t kPatienceWindowsMax = 64;

Synchronisation at_level(int64_t level) { return static_cast<Synchronisation>(level); }

}  // namespace

std::span<std::byte> SynchronisationBySize::state() {
  return std::as_writable_bytes(std::span<State>(&state_, 1));
}

int64_t SynchronisationBySize::level_for(int members) const {
  const auto level = [this](int size) {
    if (size <= options_.synchronous_max) return 0;
    return size <= options_.model_averaging_max ? 1 : 2;
  };
  if (state_.by_size < 0) return level(members);
  // Looser at once; tighter only if it would be so with some more members too.
  return std::max<int64_t>(level(members),
                           std::min<int64_t>(state_.by_size, level(members + options_.slack)));
}

Decision SynchronisationBySize::towards(Synchronisation wanted, const Signals& signals,
                                        std::string reason) const {
  if (signals.synchronisation == wanted) return {};
  return {.synchronisation = wanted, .reason = std::move(reason)};
}

Decision SynchronisationBySize::before_train(const Signals& signals) {
  if (options_.change_step > 0) return after_step(signals);
  state_.by_size = level_for(signals.members);
  return towards(
      at_level(state_.by_size), signals,
      fmt::format("{} for {} members", to_string(at_level(state_.by_size)), signals.members));
}

void SynchronisationBySize::observe_congestion(const Signals& signals) {
  if (options_.congestion <= 0 || signals.step_seconds <= 0) return;
  ++state_.window_steps;
  state_.window_seconds += signals.step_seconds;
  state_.window_wait_seconds += signals.wait_seconds;
  if (state_.window_steps < options_.window) return;
  state_.share = state_.window_wait_seconds / state_.window_seconds;
  state_.window_steps = 0;
  state_.window_seconds = 0;
  state_.window_wait_seconds = 0;
  end_window();
}

void SynchronisationBySize::end_window() {
  ++state_.windows;
  const bool is_congested = state_.share > options_.congestion;
  const bool can_loosen = state_.by_size + state_.by_congestion < kLoosest;
  if (is_congested && can_loosen) {
    if (state_.is_trying != 0) state_.patience = std::min(state_.patience * 2, kPatienceWindowsMax);
    ++state_.by_congestion;
    state_.windows = 0;
    state_.is_trying = 0;
  } else if (state_.by_congestion > 0 && state_.windows >= state_.patience) {
    --state_.by_congestion;
    state_.windows = 0;
    state_.is_trying = 1;
  } else if (state_.is_trying != 0 && state_.windows >= state_.patience) {
    state_.is_trying = 0;  // the trial went well for as long as the looser way was kept
    state_.patience = kPatienceWindows;
  }
}

Decision SynchronisationBySize::after_step(const Signals& signals) {
  if (options_.change_step > 0) {
    const bool is_before = signals.step < options_.change_step;
    const Synchronisation wanted = is_before ? options_.before : options_.after;
    return towards(wanted, signals,
                   fmt::format("{} {} step {}", to_string(wanted), is_before ? "until" : "from",
                               options_.change_step));
  }
  const int64_t size_before = state_.by_size;
  const int64_t congestion_before = state_.by_congestion;
  state_.by_size = level_for(signals.members);
  observe_congestion(signals);
  state_.by_congestion = std::min(state_.by_congestion, kLoosest - state_.by_size);
  // Only a change decides: a switch that is under way is not asked for again.
  if (state_.by_size == size_before && state_.by_congestion == congestion_before) return {};

  const Synchronisation wanted = at_level(state_.by_size + state_.by_congestion);
  std::string reason = fmt::format("{} for {} members", to_string(wanted), signals.members);
  if (state_.by_congestion > congestion_before)
    reason += fmt::format(": {:.0f} % of the last {} steps was waiting, more than {:.0f} %",
                          100 * state_.share, options_.window, 100 * options_.congestion);
  else if (state_.by_congestion < congestion_before && state_.is_trying != 0)
    reason += fmt::format(": {:.0f} % of the last {} steps was waiting, so a tighter way is tried",
                          100 * state_.share, options_.window);
  return towards(wanted, signals, std::move(reason));
}

}  // namespace pliant
