// The policy `batch_by_noise`: lets the global batch follow the noise scale of the gradients, by
// doubling and halving between limits, with a learning rate to match. Owned by the member that runs
// it; its thread alone calls it.
//
// A batch much smaller than the noise scale wastes members (its steps are noisier than they need
// be, and each costs a synchronisation); a much larger one wastes samples. The wanted batch is
// `ratio` times the noise scale. The batch doubles when the wanted one has been at least twice as
// large for `patience` steps, and halves when it has been half as large or less for as many: after
// a doubling the wanted batch must fall to half of what caused it before it halves again.
#pragma once

#include "pliant/policy/policy.h"

namespace pliant {

// How the learning rate follows the batch, as a factor of the rate that the job began with.
enum class LearningRateRule : uint8_t { kNone, kLinear, kSquareRoot };

struct BatchByNoiseOptions {
  uint64_t batch_min = 1;
  uint64_t batch_max = 65536;
  double ratio = 1.0;
  int patience = 20;
  LearningRateRule rule = LearningRateRule::kSquareRoot;
};

class BatchByNoise final : public Policy {
 public:
  explicit BatchByNoise(BatchByNoiseOptions options) : options_(options) {}

  std::string_view name() const override { return "batch_by_noise"; }
  std::span<std::byte> state() override;
  Decision after_step(const Signals& signals) override;

 private:
  struct State {
    uint64_t batch_first = 0;  // that the learning rate belongs to; 0: no step yet
    uint64_t batch = 0;        // as decided last
    int64_t pressure = 0;      // steps in a row that wanted more (positive) or less (negative)
  };

  Decision change(uint64_t batch, const Signals& signals);

  const BatchByNoiseOptions options_;
  State state_;
};

}  // namespace pliant
