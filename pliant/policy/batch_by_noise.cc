#include "pliant/policy/batch_by_noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pliant {

std::span<std::byte> BatchByNoise::state() {
  return std::as_writable_bytes(std::span<State>(&state_, 1));
}

Decision BatchByNoise::after_step(const Signals& signals) {
  if (signals.batch == 0) return {};
  if (state_.batch_first == 0) state_ = {.batch_first = signals.batch, .batch = signals.batch};
  // An unknown noise scale speaks neither for more nor for less.
  if (!signals.noise) return {};

  const double wanted = options_.ratio * signals.noise->scale;
  const auto batch = static_cast<double>(state_.batch);
  const bool wants_more = wanted >= 2 * batch && state_.batch <= options_.batch_max / 2;
  const bool wants_less = wanted <= batch / 2 && state_.batch / 2 >= options_.batch_min &&
                          state_.batch / 2 >= static_cast<uint64_t>(signals.members) &&
                          state_.batch % 2 == 0;
  if (wants_more)
    state_.pressure = std::max<int64_t>(state_.pressure, 0) + 1;
  else if (wants_less)
    state_.pressure = std::min<int64_t>(state_.pressure, 0) - 1;
  else
    state_.pressure = 0;
  if (state_.pressure >= options_.patience) return change(state_.batch * 2, signals);
  if (state_.pressure <= -options_.patience) return change(state_.batch / 2, signals);
  return {};
}

Decision BatchByNoise::change(uint64_t batch, const Signals& signals) {
  Decision decision{
      .global_batch = batch,
      .reason = fmt::format("the noise scale has been {:.4g} for {} steps, {:.2g} times the batch "
                            "of {}: batch {}",
                            signals.noise->scale, options_.patience,
                            signals.noise->scale / static_cast<double>(state_.batch), state_.batch,
                            batch)};
  const double growth = static_cast<double>(batch) / static_cast<double>(state_.batch_first);
  if (options_.rule == LearningRateRule::kLinear) decision.learning_rate_factor = growth;
  if (options_.rule == LearningRateRule::kSquareRoot)
    decision.learning_rate_factor = std::sqrt(growth);
  if (decision.learning_rate_factor)
    decision.reason +=
        fmt::format(", learning rate {:.4g} times the first", *decision.learning_rate_factor);
  state_.batch = batch;
  state_.pressure = 0;
  return decision;
}

}  // namespace pliant
