// The samples of the C ABI: how large batches are, and where the sampler stands.
#include "capi/handles.h"
#include "pliant/data/learning_rate.h"
#include "pliant/data/sample_seed.h"

using namespace pliant;        // NOLINT: the functions below are C
using namespace pliant::capi;  // NOLINT

extern "C" {

pliant_status pliant_batch_per_member(pliant_session* session, uint64_t samples) {
  return guarded(__func__, session, {}, [&]() -> Status {
    if (!session->sampler)
      return invalid("pliant_batch_per_member: there is no sampler; call pliant_use_sampler()");
    SamplerOptions options = *session->sampler;
    options.global_batch = 0;
    options.batch_per_member = samples;
    PLIANT_TRY(session->session->use_sampler(options));
    session->sampler = options;
    return {};
  });
}

pliant_status pliant_set_global_batch(pliant_session* session, uint64_t samples) {
  return guarded(__func__, session, {},
                 [&] { return session->session->set_global_batch(samples); });
}

pliant_status pliant_global_batch(const pliant_session* session, uint64_t* samples) {
  return guarded(__func__, session, {{samples, "samples"}}, [&]() -> Status {
    *samples = session->session->data_position().global_batch;
    return {};
  });
}

pliant_status pliant_data_position(const pliant_session* session, uint64_t* epoch,
                                   uint64_t* consumed) {
  return guarded(__func__, session, {{epoch, "epoch"}, {consumed, "consumed"}}, [&]() -> Status {
    const DataPosition position = session->session->data_position();
    *epoch = position.epoch;
    *consumed = position.consumed;
    return {};
  });
}

pliant_status pliant_step_batch(const pliant_session* session, uint64_t* samples) {
  return guarded(__func__, session, {{samples, "samples"}}, [&]() -> Status {
    if (!session->step)
      return invalid("pliant_step_batch: there is no step; call pliant_begin_step() first");
    *samples = session->step.batch();
    return {};
  });
}

pliant_status pliant_upcoming_samples(pliant_session* session, size_t steps_ahead, uint64_t* epoch,
                                      const uint64_t** samples, size_t* count) {
  return guarded(__func__, session, {{epoch, "epoch"}, {samples, "samples"}, {count, "count"}},
                 [&]() -> Status {
                   session->upcoming = session->session->upcoming_samples(steps_ahead);
                   *epoch = session->upcoming.epoch;
                   *samples = session->upcoming.samples.data();
                   *count = session->upcoming.samples.size();
                   return {};
                 });
}

uint64_t pliant_sample_seed(uint64_t seed, uint64_t epoch, uint64_t sample) {
  return sample_seed(seed, epoch, sample);
}

pliant_status pliant_learning_rate_factor(const char* rule, uint64_t base_batch,
                                          uint64_t warm_up_steps, uint64_t step, uint64_t batch,
                                          pliant_learning_rate* state, double* factor) {
  return guarded(__func__, kNoView, {{rule, "rule"}, {factor, "factor"}}, [&]() -> Status {
    const auto parsed = parse_learning_rate_rule(rule);
    if (!parsed) return parsed.error();
    if (base_batch < 1 || batch < 1)
      return invalid("pliant_learning_rate_factor: a batch has at least one sample");
    LearningRateState known;
    if (state != nullptr)
      known = {.batch = state->batch, .since_step = state->since_step, .from = state->from};
    if (known.batch != 0 && step < known.since_step)
      return invalid("pliant_learning_rate_factor: the steps descend");
    *factor = learning_rate_factor({*parsed, base_batch, state != nullptr ? warm_up_steps : 0},
                                   known, step, batch);
    if (state != nullptr) *state = {known.batch, known.since_step, known.from};
    return {};
  });
}

}  // extern "C"
