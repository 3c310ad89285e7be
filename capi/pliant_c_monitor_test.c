/* Uses the C ABI from C: the monitor, and policies of the caller's. Alone, or with several ranks
 * under `pliant run -n N -- program`. */
#include <math.h>

#include "c_test.h"

enum { kParameters = 1000, kSamples = 2, kNoiseEvery = 2, kLastStep = 12 };

/* Halves the rate after step 3, wants another topology and the links after step 5, and stops after
 * step 12. It remembers how often it was asked. */
struct memory {
  uint64_t asked[6];
};

static void decide(void* context, pliant_moment moment, const pliant_signals* signals,
                   pliant_decision* decision) {
  struct memory* memory = context;
  CHECK(decision->members == 0 && decision->synchronisation == PLIANT_AS_BEFORE);
  CHECK(signals->size == sizeof *signals && moment >= 0 && moment < 6);
  ++memory->asked[moment];
  if (moment != PLIANT_AFTER_STEP) return;
  CHECK(signals->by_rank_count == (size_t)size);
  switch (signals->step) {
    case 3: decision->learning_rate_factor = 0.5; break;
    case 5:
      strcpy(decision->topology, "ring");
      decision->measure_links = 1;
      break;
    case 7: decision->synchronisation = PLIANT_MODEL_AVERAGING; break;
    case 8: decision->members = 2; break;
    case kLastStep: decision->stop = 1; break;
    default: return;
  }
  strcpy(decision->reason, "the script says so");
}

static void expect_refusals(void) {
  pliant_monitor_options wrong = {sizeof wrong, 0, 1.5, 0, 0};
  pliant_signals signals = {0};
  pliant_policy policy = {0};
  int takes = 0;
  INVALID(pliant_monitor_takes_norms(session, &takes), "call pliant_use_monitor()");
  INVALID(pliant_add_user_policy(session, &policy), "call pliant_use_monitor()");
  INVALID(pliant_use_monitor(session, &wrong), "decay");
  OK(pliant_use_monitor(session, &(pliant_monitor_options){sizeof wrong, kNoiseEvery, 0, 0, 0}));
  INVALID(pliant_use_monitor(session, NULL), "already");
  INVALID(pliant_last_signals(session, &signals), "size");
  INVALID(pliant_last_signals(session, NULL), "signals");
  INVALID(pliant_add_user_policy(session, &policy), "size");
  policy.size = sizeof policy;
  INVALID(pliant_add_user_policy(session, &policy), "decide");
}

/* The gradient of one sample: the same direction for all, and noise of its own. */
static void add_gradient(float* sum, uint64_t step, int sample) {
  uint32_t state = (uint32_t)(step * 7919 + (uint64_t)rank * 104729 + (uint64_t)sample + 1);
  for (int i = 0; i < kParameters; ++i) {
    state = state * 1664525u + 1013904223u;
    sum[i] += 1.0f + (state >> 31 ? 1.0f : -1.0f);
  }
}

static void expect_signals(const pliant_signals* signals, uint64_t step) {
  CHECK(signals->step == step && signals->members == size && signals->view == 1);
  CHECK(signals->batch == (uint64_t)(kSamples * size));
  CHECK(signals->samples_committed == step * signals->batch);
  CHECK(signals->reduced_bytes == kParameters * sizeof(float));
  /* In step 10 the first rank tells none. */
  if (step == 10 && size == 1) {
    CHECK(isnan(signals->loss));
  } else {
    CHECK(signals->loss == 2.0);
  }
  CHECK((signals->step_seconds > 0) == (step > 2));
  CHECK(signals->nonfinite_rank == (step == 10 ? 0 : -1) && signals->nonfinite_tensor == -1);
  CHECK(strcmp(signals->topology, step > 5 ? "ring" : "auto") == 0);
  CHECK(signals->noise_known == (size > 1 && step >= kNoiseEvery));
  /* Of a sample: |G|^2 = 1000, variance 1000. */
  if (signals->noise_known) CHECK(fabs(signals->noise_scale - 1.0) < 0.5);
}

static void train(struct memory* memory) {
  float* gradients = room(kParameters * sizeof *gradients);
  pliant_signals signals = {0};
  pliant_decisions decisions = {0};
  pliant_synchronisation way = 0;
  int begun = 0, takes = -1;
  uint64_t step = 0;
  signals.size = sizeof signals;
  decisions.size = sizeof decisions;
  while (OK(pliant_begin_step(session, &begun)), begun) {
    OK(pliant_step_number(session, &step));
    memset(gradients, 0, kParameters * sizeof *gradients);
    for (int i = 0; i < kSamples; ++i) add_gradient(gradients, step, i);
    for (int i = 0; i < kParameters; ++i) gradients[i] /= kSamples;
    const pliant_gradient part = {"gradients", gradients, kParameters, PLIANT_F32};
    OK(pliant_monitor_takes_norms(session, &takes));
    CHECK(takes == (step % kNoiseEvery == 0));
    OK(pliant_monitor_gradients(session, &part, 1, kSamples, 1));
    OK(pliant_monitor_loss(session, step == 10 && rank == 0 ? NAN : 2.0, kSamples));
    OK(pliant_step_all_reduce(session, "gradients", gradients, NULL, kParameters, PLIANT_F32,
                              PLIANT_MEAN));
    OK(pliant_commit_step(session));
    OK(pliant_last_signals(session, &signals));
    expect_signals(&signals, step);
    OK(pliant_last_decisions(session, &decisions));
    CHECK(decisions.learning_rate_factor == (step >= 3 ? 0.5 : 1.0));
    OK(pliant_take_synchronisation(session, &way));
    CHECK(way == (step == 7 ? PLIANT_MODEL_AVERAGING : PLIANT_AS_BEFORE));
  }
  CHECK(step == kLastStep && decisions.stopped == 1);
  /* A job of fixed size does not take the wish for another one. */
  CHECK(decisions.decided == 4);
  CHECK(memory->asked[PLIANT_BEFORE_TRAIN] == 1 && memory->asked[PLIANT_AFTER_TRAIN] == 1);
  CHECK(memory->asked[PLIANT_BEFORE_STEP] == kLastStep);
  CHECK(memory->asked[PLIANT_AFTER_STEP] == kLastStep);
  free(gradients);
}

int main(void) {
  static struct memory memory;
  open_session();
  expect_refusals();
  pliant_policy policy = {0};
  policy.size = sizeof policy;
  policy.name = "scripted";
  policy.decide = decide;
  policy.context = &memory;
  policy.state = &memory;
  policy.state_bytes = sizeof memory;
  INVALID(pliant_add_policy(session, "worst_size"), "worst_size");
  OK(pliant_add_policy(session, "size_schedule:3@1000"));
  OK(pliant_add_user_policy(session, &policy));
  train(&memory);
  INVALID(pliant_add_user_policy(session, &policy), "before the first step");
  pliant_monitor_costs costs = {0};
  costs.size = sizeof costs;
  OK(pliant_last_monitor_costs(session, &costs));
  CHECK(costs.steps == kLastStep && costs.signals_seconds > 0 && costs.norms_seconds > 0);
  CHECK(costs.signal_bytes % ((uint64_t)size * sizeof(double)) == 0);
  OK(pliant_session_close(session));
  return 0;
}
