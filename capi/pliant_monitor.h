/* The monitor and the policies of the C ABI; a part of pliant.h, which includes it.
 *
 * A monitor gathers what the members measure in a step, inside of pliant_begin_step() and the
 * commit, with one small all-reduce; after the commit every member has the same signals, bit by
 * bit. Policies decide by them, alike on all members, and the library carries their decisions out
 * (docs/MONITORS.md, docs/POLICIES.md). By the thread that trains:
 *
 *   pliant_use_monitor(session, NULL);
 *   pliant_add_policy(session, "batch_by_noise");
 *   pliant_add_user_policy(session, &mine);
 *   while (pliant_begin_step(session, &begun) == PLIANT_OK && begun) {
 *     ... compute ...
 *     pliant_monitor_loss(session, loss, samples);
 *     pliant_monitor_gradients(session, gradients, 1, samples, 0);
 *     pliant_step_all_reduce(session, "gradients", ...);
 *     if (pliant_commit_step(session) != PLIANT_OK) break;
 *     pliant_last_signals(session, &signals);
 *   }
 *
 * Structs begin with their size, sizeof(the struct), which the caller sets: later versions append
 * fields. */
#ifndef PLIANT_MONITOR_H
#define PLIANT_MONITOR_H

#include "pliant.h"
#include "pliant_synchroniser.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A step number that never comes. */
#define PLIANT_NEVER UINT64_MAX

/* What is zero has its default. */
typedef struct pliant_monitor_options {
  size_t size;
  uint64_t noise_every;    /* steps from norm to norm, 10; PLIANT_NEVER: the noise is unknown */
  double noise_decay;      /* from 0 to below 1, 0.95: looks back over some 20 norms */
  double straggler_factor; /* over the median of compute times, 1.5 */
  int straggler_steps;     /* that a member is slow before it is named, 5 */
} pliant_monitor_options;

/* Before the first step, on all members alike; null options are the defaults. From then on the
 * monitor is a part of every step. It is freed with the session. */
PLIANT_API pliant_status pliant_use_monitor(pliant_session* session,
                                            const pliant_monitor_options* options);

/* `*takes` is 1 if norms of gradients are taken in the open step: in others
 * pliant_monitor_gradients() costs nothing. */
PLIANT_API pliant_status pliant_monitor_takes_norms(const pliant_session* session, int* takes);

typedef struct pliant_gradient {
  const char* name; /* under which it is handed in with PLIANT_MEAN */
  const void* data; /* f16, bf16, f32 or f64 */
  size_t count;     /* of elements */
  pliant_dtype dtype;
} pliant_gradient;

/* This member's own gradients of so many samples, before the commit: their sum over the samples or,
 * if `are_means` is not 0, their mean. After PLIANT_MORE: of all samples again. With a synchroniser
 * and a sampler this is not needed: pliant_synchroniser_commit() does it. */
PLIANT_API pliant_status pliant_monitor_gradients(pliant_session* session,
                                                  const pliant_gradient* gradients, size_t count,
                                                  uint64_t samples, int are_means);

/* The mean loss over so many samples; several calls in a step add up. */
PLIANT_API pliant_status pliant_monitor_loss(pliant_session* session, double mean,
                                             uint64_t samples);

/* The caller found a gradient that is not finite (its number), or a loss (-1). */
PLIANT_API pliant_status pliant_monitor_nonfinite(pliant_session* session, int tensor);

typedef struct pliant_member_signals {
  uint32_t host; /* the number of its host */
  uint16_t slot;
  uint16_t incarnation;
  double compute_seconds; /* from the begin of the step until everything was handed in */
  double wait_seconds;    /* in the commit: for the others and for the network */
} pliant_member_signals;

typedef struct pliant_link_signals {
  uint32_t from_host;
  uint32_t to_host;
  double latency_seconds;
  double bytes_per_second;
} pliant_link_signals;

/* The last committed step. All times are those of the step before it, and 0, not known, in the
 * first step of a view. Pointers are valid until the next call on the session. */
typedef struct pliant_signals {
  size_t size;
  uint64_t step; /* 0 before the first */
  uint64_t data_epoch;
  uint64_t samples_committed; /* since the job began */
  uint64_t batch;             /* samples in this step, of all members */
  uint64_t reduced_bytes;     /* that each member handed in */
  uint32_t view;              /* in which the step was begun: ranks are those of this view */
  int members;
  int hosts;
  int members_lost;          /* since the step before, without having been asked to leave */
  double step_seconds;       /* from commit to commit, of the slowest member */
  double samples_per_second; /* of all members */
  double compute_seconds;    /* of the slowest member */
  double wait_seconds;       /* of the fastest: the network's part */
  double change_seconds;     /* what the last change of the view cost; 0: there was none yet */
  double loss;               /* mean over all samples; not a number if nobody told it */
  pliant_synchronisation synchronisation;
  const char* topology; /* the strategy of the collectives */
  int noise_known;      /* not 0: the next three are */
  double noise_scale;
  double noise_variance;
  double noise_squared_norm;
  int straggler_rank; /* -1: none */
  double straggler_slowdown;
  int nonfinite_rank;   /* -1: all was finite */
  int nonfinite_tensor; /* the number of the gradient; -1: the loss */
  const pliant_member_signals* by_rank;
  size_t by_rank_count;
  const pliant_link_signals* links; /* as the last measurement found them */
  size_t link_count;
} pliant_signals;
PLIANT_API pliant_status pliant_last_signals(pliant_session* session, pliant_signals* signals);

/* What the monitor has cost this member so far, in all steps together; without its all-reduce,
 * which runs beside the others. */
typedef struct pliant_monitor_costs {
  size_t size;
  uint64_t steps;
  double norms_seconds;
  double signals_seconds;
  uint64_t signal_bytes; /* handed in by the last step */
} pliant_monitor_costs;
PLIANT_API pliant_status pliant_last_monitor_costs(const pliant_session* session,
                                                   pliant_monitor_costs* costs);

/* When a policy is asked. */
typedef int pliant_moment;
enum {
  PLIANT_BEFORE_TRAIN = 0, /* once in the life of the job */
  PLIANT_BEFORE_EPOCH = 1,
  PLIANT_BEFORE_STEP = 2,
  PLIANT_AFTER_STEP = 3,
  PLIANT_AFTER_EPOCH = 4,
  PLIANT_AFTER_TRAIN = 5
};

/* In a decision, and as the answer of pliant_take_synchronisation(): no change. */
enum { PLIANT_AS_BEFORE = -1 };

/* What is to change. The library gives it with nothing in it: zeroes, and PLIANT_AS_BEFORE. */
typedef struct pliant_decision {
  size_t size;
  int members;
  uint64_t global_batch;
  double learning_rate_factor; /* of the rate that the job began with */
  pliant_synchronisation synchronisation;
  int measure_links; /* not 0: before the next step */
  int stop;          /* not 0: the training is complete */
  char topology[1024];
  char reason[256]; /* why, for people; needed with any of the above */
} pliant_decision;

/* A policy of the caller's. `decide` is called by the thread that trains, inside of
 * pliant_begin_step() and the commit, on every member with the same signals, and must decide alike:
 * it reads no clock, draws no random numbers, makes no call on the session, and keeps all that it
 * remembers in `state`, which newcomers are given. */
typedef struct pliant_policy {
  size_t size;
  const char* name; /* for messages; copied */
  void (*decide)(void* context, pliant_moment moment, const pliant_signals* signals,
                 pliant_decision* decision);
  void* context; /* for `decide`; must outlive the session, like the state */
  void* state;   /* null: it remembers nothing */
  size_t state_bytes;
} pliant_policy;

/* A shipped policy by its text: "best_size:min=1,max=8", "size_schedule:2@0,4@100"
 * (docs/POLICIES.md). PLIANT_INVALID says what is wrong with the text and what there is. Otherwise
 * as pliant_add_user_policy(). */
PLIANT_API pliant_status pliant_add_policy(pliant_session* session, const char* text);

/* Before the first step, after pliant_use_monitor(), the same policies in the same order on all
 * members. Where two of them decide the same thing differently, the first has its way. Each
 * decision is said once, by rank 0 on standard error. */
PLIANT_API pliant_status pliant_add_user_policy(pliant_session* session,
                                                const pliant_policy* policy);

/* What the policies have decided so far and the caller is to follow. */
typedef struct pliant_decisions {
  size_t size;
  uint64_t decided;            /* decisions in the life of the job */
  uint64_t global_batch;       /* 0: none; a sampler has it already */
  double learning_rate_factor; /* 1 at first */
  int stopped;                 /* not 0: pliant_begin_step() begins no further step */
  double measure_seconds;      /* of the last measurement of links; 0: none */
} pliant_decisions;
PLIANT_API pliant_status pliant_last_decisions(const pliant_session* session,
                                               pliant_decisions* decisions);

/* A switch that a policy has decided, once, for pliant_synchroniser_switch_to() before the next
 * step; PLIANT_AS_BEFORE if there is none. After each commit. */
PLIANT_API pliant_status pliant_take_synchronisation(pliant_session* session,
                                                     pliant_synchronisation* synchronisation);

#ifdef __cplusplus
}
#endif

#endif
