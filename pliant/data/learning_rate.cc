#include "pliant/data/learning_rate.h"

#include <fmt/format.h>

#include <cmath>

#include "pliant/base/check.h"

namespace pliant {
namespace {

constexpr LearningRateRule kRules[] = {LearningRateRule::kNone, LearningRateRule::kLinear,
                                       LearningRateRule::kSquareRoot};

// On the way to the batch of the state.
double factor_at(const LearningRateOptions& options, const LearningRateState& state,
                 uint64_t step) {
  const double to = learning_rate_factor(options.rule, state.batch, options.base_batch);
  const uint64_t steps = step - state.since_step;
  if (to <= state.from || steps >= options.warm_up_steps) return to;
  const double part = static_cast<double>(steps) / static_cast<double>(options.warm_up_steps);
  return state.from + (to - state.from) * part;
}

}  // namespace

const char* to_string(LearningRateRule rule) {
  switch (rule) {
    case LearningRateRule::kNone: return "none";
    case LearningRateRule::kLinear: return "linear";
    case LearningRateRule::kSquareRoot: return "sqrt";
  }
  return "unknown";
}

Result<LearningRateRule> parse_learning_rate_rule(std::string_view text) {
  for (const LearningRateRule rule : kRules)
    if (text == to_string(rule)) return rule;
  return invalid(
      fmt::format("'{}' is no rule for the learning rate; there are none, linear and sqrt", text));
}

double learning_rate_factor(LearningRateRule rule, uint64_t batch, uint64_t base_batch) {
  PLIANT_CHECK(batch >= 1 && base_batch >= 1, "a batch has at least one sample");
  const double ratio = static_cast<double>(batch) / static_cast<double>(base_batch);
  switch (rule) {
    case LearningRateRule::kNone: return 1;
    case LearningRateRule::kLinear: return ratio;
    case LearningRateRule::kSquareRoot: return std::sqrt(ratio);
  }
  return 1;
}

double learning_rate_factor(const LearningRateOptions& options, LearningRateState& state,
                            uint64_t step, uint64_t batch) {
  if (state.batch == 0) state = {.batch = batch, .since_step = step, .from = 1};
  PLIANT_CHECK(step >= state.since_step, "the steps of a learning rate ascend");
  if (batch != state.batch) {
    const double from = factor_at(options, state, step);
    state = {.batch = batch, .since_step = step, .from = from};
  }
  return factor_at(options, state, step);
}

}  // namespace pliant
