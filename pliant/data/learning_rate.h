// What a learning rate is multiplied by when the global batch is not the one that it was chosen
// for. Pure; values; any thread. All members compute it from the same facts and so alike.
#pragma once

#include <cstdint>
#include <string_view>

#include "pliant/base/result.h"

namespace pliant {

enum class LearningRateRule : uint8_t {
  kNone,        // it stays
  kLinear,      // with the batch: k times the samples, k times the step (Goyal et al., for SGD)
  kSquareRoot,  // with its root, which keeps the noise of a step the same (for Adam and the like)
};

const char* to_string(LearningRateRule rule);  // "none", "linear", "sqrt"
Result<LearningRateRule> parse_learning_rate_rule(std::string_view text);

struct LearningRateOptions {
  LearningRateRule rule = LearningRateRule::kNone;
  uint64_t base_batch = 0;     // for which the rate was chosen; at least 1
  uint64_t warm_up_steps = 0;  // in which a rate that grows gets there; 0: at once

  bool operator==(const LearningRateOptions&) const = default;
};

// What the rule alone says.
double learning_rate_factor(LearningRateRule rule, uint64_t batch, uint64_t base_batch);

// What has to be remembered from step to step for the warm-up. Plain bytes: register it as state,
// so that newcomers go on where the others are.
struct LearningRateState {
  uint64_t batch = 0;       // that the rate is on its way to; 0: none yet
  uint64_t since_step = 0;  // the first with it
  double from = 0;          // the factor before
};

// The factor of a step with this batch: Step::batch(), which is the one that was asked for, since
// the last step of an epoch may have fewer samples and needs no other rate. After the batch has
// grown the factor grows evenly over the warm-up; after it has shrunk it follows at once, since a
// rate that is too large does harm. Steps ascend, and one may be asked for again. The first batch
// of a job is warmed up too, if it is larger than the base batch.
double learning_rate_factor(const LearningRateOptions& options, LearningRateState& state,
                            uint64_t step, uint64_t batch);

}  // namespace pliant
