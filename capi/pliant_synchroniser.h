/* The synchroniser of the C ABI; a part of pliant.h, which includes it.
 *
 * How members keep their models together: one of three ways, which may change between two steps
 * (docs/TRAINING.md has the rules). By the thread that trains:
 *
 *   pliant_synchroniser_create(session, buckets, 2, NULL, &together);
 *   while (pliant_begin_step(session, &begun) == PLIANT_OK && begun) {
 *     pliant_synchroniser_begin(together);
 *     do {
 *       ... add up the gradients of pliant_step_samples(); pliant_synchroniser_ready() each ...
 *     } while ((status = pliant_synchroniser_commit(together)) == PLIANT_MORE);
 *     if (status != PLIANT_OK) break;
 *     ... apply the gradients to the parameters ...
 *     pliant_synchroniser_applied(together);
 *   }
 */
#ifndef PLIANT_SYNCHRONISER_H
#define PLIANT_SYNCHRONISER_H

#include "pliant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int pliant_synchronisation;
enum {
  PLIANT_SYNCHRONOUS = 0,     /* gradients are averaged; models stay equal */
  PLIANT_MODEL_AVERAGING = 1, /* models are drawn towards their mean, by alpha */
  PLIANT_PAIR_AVERAGING = 2   /* models are averaged with that of one other member */
};

/* What the synchronous way does with f32 gradients before they are sent; see docs/TRAINING.md. */
typedef int pliant_compression;
enum { PLIANT_UNCOMPRESSED = 0, PLIANT_COMPRESS_BF16 = 1, PLIANT_COMPRESS_INT8 = 2 };

/* "synchronous", "bf16"; "unknown" for any other number. Static text, never null. */
PLIANT_API const char* pliant_synchronisation_name(pliant_synchronisation synchronisation);
PLIANT_API const char* pliant_compression_name(pliant_compression compression);

/* A part of the model: the memory stays the caller's and must outlive the session. */
typedef struct pliant_bucket {
  const char* name;   /* under which the parameters are registered as state; copied */
  void* parameters;   /* f16, bf16, f32 or f64 */
  void* gradients;    /* with a sampler their sum over the samples. Null: state that goes with the
                         model, averaged only where models are made equal; any reducible type */
  size_t count;       /* of elements */
  pliant_dtype dtype; /* of both */
} pliant_bucket;

/* pliant_synchroniser_options_init() first. Those of the job's first member count. */
typedef struct pliant_synchroniser_options {
  size_t size; /* sizeof(pliant_synchroniser_options) */
  pliant_synchronisation synchronisation;
  pliant_compression compression;
  double alpha;      /* of model averaging: above 0, at most 1; init sets 0.1 */
  uint64_t seed;     /* of the choice of partners in pair averaging */
  int may_switch;    /* not 0: it may leave PLIANT_SYNCHRONOUS later */
  int share_results; /* not 0: synchronous results are left where the host's ranks share them, for
                        pliant_synchroniser_gradients(); otherwise they go into the gradients */
} pliant_synchroniser_options;
PLIANT_API pliant_status pliant_synchroniser_options_init(pliant_synchroniser_options* options,
                                                          size_t size);

/* Registers the buckets' parameters as state; before the first step, with the same buckets on all
 * members. Null options are the defaults. The synchroniser is the caller's, for
 * pliant_synchroniser_destroy(). PLIANT_INVALID names the bucket or option that is wrong. */
PLIANT_API pliant_status pliant_synchroniser_create(pliant_session* session,
                                                    const pliant_bucket* buckets, size_t count,
                                                    const pliant_synchroniser_options* options,
                                                    pliant_synchroniser** synchroniser);

/* Frees the handle, before or after the session's end; what it has registered stays. Does nothing
 * for null. */
PLIANT_API pliant_status pliant_synchroniser_destroy(pliant_synchroniser* synchroniser);

/* After pliant_begin_step(): starts what can run during the computation. From here on the
 * parameters must not change before the commit has returned. */
PLIANT_API pliant_status pliant_synchroniser_begin(pliant_synchroniser* synchroniser);

/* The gradients of this bucket are complete, and do not change before the commit has returned. In
 * any order; the commit hands in those that were not announced. */
PLIANT_API pliant_status pliant_synchroniser_ready(pliant_synchroniser* synchroniser,
                                                   size_t bucket);

/* Completes the step, in place of pliant_commit_step(). PLIANT_OK: the parameters have been drawn
 * together, and the gradients are what the optimizer is to apply. PLIANT_MORE: nothing was changed;
 * add the gradients of pliant_step_samples() to those that are there and commit again.
 * PLIANT_CANCELLED: this member is out of the job; leave the loop. */
PLIANT_API pliant_status pliant_synchroniser_commit(pliant_synchroniser* synchroniser);

/* What to apply: the bucket's gradients, or the shared result, read-only and valid until the next
 * step is committed. */
PLIANT_API pliant_status pliant_synchroniser_gradients(const pliant_synchroniser* synchroniser,
                                                       size_t bucket, const void** gradients,
                                                       size_t* bytes);

/* The optimizer has run: pair averaging publishes the model. */
PLIANT_API pliant_status pliant_synchroniser_applied(pliant_synchroniser* synchroniser);

/* Another way from the next step on; all members make the same call between the same two steps.
 * Where models differ and must not from there on, that step averages them. PLIANT_INVALID inside a
 * step, and if it was made without may_switch. */
PLIANT_API pliant_status pliant_synchroniser_switch_to(pliant_synchroniser* synchroniser,
                                                       pliant_synchronisation synchronisation);

/* The way of the present step, or of the next: a newcomer learns that of the others in its first
 * pliant_begin_step(). */
PLIANT_API pliant_status pliant_synchroniser_synchronisation(
    const pliant_synchroniser* synchroniser, pliant_synchronisation* synchronisation);

/* What the last step was. `size` is set by the caller, to sizeof(pliant_synchroniser_report). */
typedef struct pliant_synchroniser_report {
  size_t size;
  int pulled_from;         /* the rank whose model was averaged with; -1: none, or it is gone */
  uint64_t pulled_version; /* the step at whose end that model was published; 0: none */
  uint64_t pulls_missed;   /* steps in which the chosen member had none, or was lost; of all */
  double exposed_seconds;  /* in the commit, for others and the network */
  uint64_t reduced_bytes;  /* that this member has handed in */
} pliant_synchroniser_report;
PLIANT_API pliant_status pliant_synchroniser_last_step(const pliant_synchroniser* synchroniser,
                                                       pliant_synchroniser_report* report);

#ifdef __cplusplus
}
#endif

#endif
