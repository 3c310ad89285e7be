// The samples of the C ABI: how large batches are, and where the sampler stands.
#include "capi/handles.h"

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

}  // extern "C"
