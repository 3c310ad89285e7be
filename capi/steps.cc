// The steps of the C ABI.
#include "capi/handles.h"

namespace pliant::capi {
namespace {

struct State {
  const char* name;
  void* memory;
  size_t count;
  pliant_dtype dtype;
  StateKind kind;
};

pliant_status register_state(const char* function, pliant_session* session, const State& state) {
  return guarded(function, session, {{state.name, "name"}, {state.memory, "memory"}},
                 [&]() -> Status {
                   const size_t element = pliant_dtype_size(state.dtype);
                   if (element == 0) return invalid(std::string(function) + ": unknown type");
                   return session->session->register_state(
                       state.name, {static_cast<std::byte*>(state.memory), state.count * element},
                       dtype_of(state.dtype), state.kind);
                 });
}

Status need_step(const pliant_session* session, const char* function) {
  if (session->step) return {};
  return invalid(std::string(function) + ": there is no step; call pliant_begin_step() first");
}

}  // namespace
}  // namespace pliant::capi

using namespace pliant;        // NOLINT: the functions below are C
using namespace pliant::capi;  // NOLINT

extern "C" {

pliant_status pliant_register_state(pliant_session* session, const char* name, void* memory,
                                    size_t count, pliant_dtype dtype) {
  const State state{name, memory, count, dtype, StateKind::kEqual};
  return register_state(__func__, session, state);
}

pliant_status pliant_register_state_own(pliant_session* session, const char* name, void* memory,
                                        size_t count, pliant_dtype dtype) {
  const State state{name, memory, count, dtype, StateKind::kOwn};
  return register_state(__func__, session, state);
}

pliant_status pliant_use_sampler(pliant_session* session, uint64_t samples, uint64_t global_batch,
                                 uint64_t seed, uint64_t epochs, int shuffle) {
  return guarded(__func__, session, {}, [&]() -> Status {
    const SamplerOptions options{.samples = samples,
                                 .global_batch = global_batch,
                                 .seed = seed,
                                 .epochs = epochs,
                                 .shuffle = shuffle != 0};
    PLIANT_TRY(session->session->use_sampler(options));
    session->sampler = options;
    return {};
  });
}

pliant_status pliant_keep_global_batch(pliant_session* session) {
  return guarded(__func__, session, {}, [&]() -> Status {
    if (!session->sampler)
      return invalid("pliant_keep_global_batch: there is no batch; call pliant_use_sampler()");
    SamplerOptions options = *session->sampler;
    options.constant_batch = true;
    PLIANT_TRY(session->session->use_sampler(options));
    session->sampler = options;
    return {};
  });
}

pliant_status pliant_begin_step(pliant_session* session, int* begun) {
  return guarded(__func__, session, {{begun, "begun"}}, [&]() -> Status {
    PLIANT_TRY(before_begin(session));
    const auto& adaptation = session->training.adaptation;
    session->step = adaptation && adaptation->stopped() ? Step() : session->session->begin_step();
    refresh_view(session);
    if (Status status = session->session->status(); !status.ok()) return status;
    *begun = session->step ? 1 : 0;
    if (session->step) return after_begin(session);
    after_last(session);
    return {};
  });
}

pliant_status pliant_step_number(const pliant_session* session, uint64_t* number) {
  return guarded(__func__, session, {{number, "number"}}, [&]() -> Status {
    PLIANT_TRY(need_step(session, "pliant_step_number"));
    *number = session->step.number();
    return {};
  });
}

pliant_status pliant_step_samples(const pliant_session* session, const uint64_t** samples,
                                  size_t* count) {
  return guarded(__func__, session, {{samples, "samples"}, {count, "count"}}, [&]() -> Status {
    PLIANT_TRY(need_step(session, "pliant_step_samples"));
    *samples = session->step.samples().data();
    *count = session->step.samples().size();
    return {};
  });
}

pliant_status pliant_step_all_reduce(pliant_session* session, const char* name, const void* input,
                                     void* output, size_t count, pliant_dtype dtype, pliant_op op) {
  return guarded(__func__, session, {{name, "name"}, {input, "input"}}, [&]() -> Status {
    PLIANT_TRY(need_step(session, "pliant_step_all_reduce"));
    const auto operator_of = static_cast<Op>(op < 0 || op > UINT8_MAX ? UINT8_MAX : op);
    return session->step.all_reduce(name, input, count, dtype_of(dtype), operator_of, output);
  });
}

pliant_status pliant_commit_step(pliant_session* session) {
  const pliant_status committed = guarded(__func__, session, {}, [&]() -> Status {
    PLIANT_TRY(need_step(session, "pliant_commit_step"));
    PLIANT_TRY(before_commit(session));
    const Status status = session->step.commit();
    refresh_view(session);
    return status.ok() ? after_commit(session) : Status(status.error());
  });
  return committed == PLIANT_OK && session->step.more() ? PLIANT_MORE : committed;
}

pliant_status pliant_step_result(const pliant_session* session, const char* name,
                                 const void** result, size_t* bytes) {
  return guarded(__func__, session, {{name, "name"}, {result, "result"}, {bytes, "bytes"}},
                 [&]() -> Status {
                   PLIANT_TRY(need_step(session, "pliant_step_result"));
                   auto found = session->step.result(name);
                   if (!found) return found.error();
                   *result = found->data();
                   *bytes = found->size();
                   return {};
                 });
}

pliant_status pliant_step_contributors(const pliant_session* session, int* members,
                                       uint64_t* samples) {
  return guarded(__func__, session, {{members, "members"}, {samples, "samples"}}, [&]() -> Status {
    PLIANT_TRY(need_step(session, "pliant_step_contributors"));
    *members = session->step.contributors();
    *samples = session->step.contributed_samples();
    return {};
  });
}

pliant_status pliant_propose_size(pliant_session* session, int members) {
  return guarded(__func__, session, {}, [&] { return session->session->propose_size(members); });
}

}  // extern "C"
