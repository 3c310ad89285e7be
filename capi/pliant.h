/* The C ABI of Pliant: a session of a job, its collectives and its store, for C and for every
 * language that can call C. docs/C_API.md is the short tour.
 *
 * Handles are opaque and belong to whoever made them: each says below which call frees it. Buffers
 * belong to the caller, always; an operation borrows them until it has completed.
 *
 * Any thread may make any call, several at once, except that a handle must not be freed while
 * another thread still uses it.
 *
 * What can fail returns a pliant_status; pliant_last_error() then has the sentence for people.
 * Nothing is written through an output parameter of a call that fails, unless it says otherwise.
 * Null where a handle or a pointer is needed, and numbers that are none of those declared here,
 * give PLIANT_INVALID. No C++ exception leaves the library; lack of memory is PLIANT_OVERLOADED.
 */
#ifndef PLIANT_H
#define PLIANT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define PLIANT_API __attribute__((visibility("default")))
#else
#define PLIANT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Words ------------------------------------------------------------------------------------
 * Enumerations are plain ints with fixed numbers, so that their size is the same for every
 * compiler. Numbers are never given a new meaning; later versions may add some. */

/* The outcome of a call. The code names the reaction that is expected of the caller. */
typedef int pliant_status;
enum {
  PLIANT_OK = 0,
  PLIANT_PEER_LOST = 1,   /* a member is gone: end, or await the next view */
  PLIANT_STALE_EPOCH = 2, /* it belongs to an older view: discard and redo */
  PLIANT_TIMEOUT = 3,     /* a deadline passed: suspect the silent peer */
  PLIANT_CANCELLED = 4,   /* the session was closed: unwind silently */
  PLIANT_OVERLOADED = 5,  /* a bound was reached, or memory: back off */
  PLIANT_INVALID = 6,     /* the request itself is wrong: tell the user, do not retry */
  PLIANT_MORE = 7         /* no error: pliant_commit_step() has dealt further samples */
};

/* The type of a buffer's elements. */
typedef int pliant_dtype;
enum {
  PLIANT_I8 = 0,
  PLIANT_I16 = 1,
  PLIANT_I32 = 2,
  PLIANT_I64 = 3,
  PLIANT_U8 = 4,
  PLIANT_U16 = 5,
  PLIANT_U32 = 6,
  PLIANT_U64 = 7,
  PLIANT_BOOL = 8, /* moved, never reduced */
  PLIANT_F16 = 9,  /* f16 and bf16 are summed in f32 and rounded once */
  PLIANT_BF16 = 10,
  PLIANT_F32 = 11,
  PLIANT_F64 = 12,
  PLIANT_F8_E4M3 = 13, /* both kinds of f8 are moved, never reduced */
  PLIANT_F8_E5M2 = 14
};

/* How elements are reduced. */
typedef int pliant_op;
enum {
  PLIANT_SUM = 0,
  PLIANT_MEAN = 1, /* the sum over the number of members; integers round toward zero */
  PLIANT_MIN = 2,
  PLIANT_MAX = 3,
  PLIANT_PROD = 4
};

/* The collectives, for pliant_explain(). */
typedef int pliant_collective;
enum {
  PLIANT_ALL_REDUCE = 0,
  PLIANT_REDUCE = 1,
  PLIANT_BROADCAST = 2,
  PLIANT_ALL_GATHER = 3,
  PLIANT_GATHER = 4,
  PLIANT_SCATTER = 5,
  PLIANT_REDUCE_SCATTER = 6,
  PLIANT_ALL_TO_ALL = 7,
  PLIANT_BARRIER = 8,
  PLIANT_SEND = 9,
  PLIANT_RECV = 10
};

typedef struct pliant_session pliant_session;           /* membership in a job */
typedef struct pliant_group pliant_group;               /* some members, in an order of their own */
typedef struct pliant_work pliant_work;                 /* an asynchronous operation */
typedef struct pliant_value pliant_value;               /* bytes fetched from a peer's store */
typedef struct pliant_snapshot pliant_snapshot;         /* of the registered state */
typedef struct pliant_synchroniser pliant_synchroniser; /* keeps models together */

/* The version of this library, as "0.1.0". Static text. */
PLIANT_API const char* pliant_version(void);

/* Names for people: "timeout", "f32", "sum", "all_reduce"; "unknown" for any other number. Static
 * text, never null. */
PLIANT_API const char* pliant_status_name(pliant_status status);
PLIANT_API const char* pliant_dtype_name(pliant_dtype dtype);
PLIANT_API const char* pliant_op_name(pliant_op op);
PLIANT_API const char* pliant_collective_name(pliant_collective collective);

/* Bytes of one element; 0 for any other number. */
PLIANT_API size_t pliant_dtype_size(pliant_dtype dtype);

/* ---- Errors ---------------------------------------------------------------------------------- */

/* The sentence of this thread's last failed call: what was wrong, where, and what to do. Valid
 * until the next call of this thread that fails. Never null; empty if none has failed yet. */
PLIANT_API const char* pliant_last_error(void);

/* The rank in the world of the peer that the last error is about; -1 if it is about none. */
PLIANT_API int pliant_last_error_peer(void);

/* ---- Session --------------------------------------------------------------------------------- */

/* Joins the job that the environment names (`pliant run` sets it) and returns when all members are
 * there; alone, as rank 0 of 1, if nothing launched this process. The session is the caller's, for
 * pliant_session_close(). Open one a process, early. In an elastic job SIGTERM is a notice while
 * the session is open, unless the program handles or ignores it: pliant_begin_step() then ends the
 * loop, and a second SIGTERM ends the process.
 * Errors: PLIANT_INVALID if a variable or the strategy cannot be read, or the job is another one;
 * PLIANT_TIMEOUT if members are missing at the deadline; PLIANT_PEER_LOST if one died meanwhile. */
PLIANT_API pliant_status pliant_session_open(pliant_session** session);

/* Options of a session. pliant_options_init() first, then set what is wanted: a field that is left
 * null or zero is taken from the environment, and from the default if that has none. Text is
 * copied. Later versions append fields; `size` tells the library which ones the caller knows. */
typedef struct pliant_options {
  size_t size;                 /* sizeof(pliant_options), set by pliant_options_init() */
  const char* coordinator;     /* "address:port"; "" for a session alone, whatever launched us */
  const char* job;             /* the job's name, for messages */
  const char* token;           /* the job's secret */
  const char* peer;            /* who we are: "host.slot#incarnation", as "0.2#1" */
  const char* host;            /* this host's name, for people */
  const char* address;         /* where this worker listens for other hosts */
  const char* transport;       /* "auto", "shm" or "tcp" */
  const char* strategy;        /* as for pliant_set_strategy() */
  double timeout_seconds;      /* of every operation */
  double join_timeout_seconds; /* until all members are there */
  size_t heap_bytes_max;       /* limit of pliant_allocate(); default: the machine's memory */
  int connections;             /* TCP connections to each peer, 1 to 64 */
  int store_window;            /* versions that pliant_save() keeps of each name */
} pliant_options;

/* Clears the options and sets their size, which is sizeof(pliant_options). */
PLIANT_API pliant_status pliant_options_init(pliant_options* options, size_t size);

/* As pliant_session_open(), with options. PLIANT_INVALID also if an option cannot be read, or if
 * the caller's options have fields set that this library is too old to know. */
PLIANT_API pliant_status pliant_session_open_with(const pliant_options* options,
                                                  pliant_session** session);

/* Leaves the job and frees the session with all that pliant_allocate() gave. Operations in flight
 * end with PLIANT_CANCELLED, and their buffers are the caller's again when this returns. Groups,
 * works and values outlive it only to be destroyed, works also to be waited for. No other thread
 * may be inside a call on the session. Does nothing for null. */
PLIANT_API pliant_status pliant_session_close(pliant_session* session);

/* Where this process stands: its rank among all members and their number; the same among the
 * members of this host; the number of hosts; the epoch of the view, which only grows and begins
 * at 1. */
PLIANT_API pliant_status pliant_rank(const pliant_session* session, int* rank);
PLIANT_API pliant_status pliant_size(const pliant_session* session, int* size);
PLIANT_API pliant_status pliant_local_rank(const pliant_session* session, int* rank);
PLIANT_API pliant_status pliant_local_size(const pliant_session* session, int* size);
PLIANT_API pliant_status pliant_host_count(const pliant_session* session, int* hosts);
PLIANT_API pliant_status pliant_epoch(const pliant_session* session, uint32_t* epoch);

/* Registered memory: the peers of this host can reach it, so operations on it make no copy. Zeroed,
 * aligned to 64 bytes; any part of it may be a buffer. Freed by pliant_release() or with the
 * session. PLIANT_OVERLOADED if the limit is reached. */
PLIANT_API pliant_status pliant_allocate(pliant_session* session, size_t bytes, void** memory);

/* Makes memory of the caller's own registered memory, where it is and with what it holds. It starts
 * a page and was mapped for itself (mmap), since the whole of its last page is taken; nobody uses
 * it during the call. It stays mapped until pliant_unshare(), which makes it private again, or
 * until the session is closed. */
PLIANT_API pliant_status pliant_share(pliant_session* session, void* memory, size_t bytes);
PLIANT_API pliant_status pliant_unshare(pliant_session* session, void* memory);

/* Sets `*registered` to 1 if all of this memory is registered, else to 0. */
PLIANT_API pliant_status pliant_is_registered(pliant_session* session, const void* memory,
                                              size_t bytes, int* registered);

/* Gives registered memory back: the pointer that pliant_allocate() gave, which no operation in
 * flight uses. PLIANT_INVALID for any other pointer; does nothing for null. */
PLIANT_API pliant_status pliant_release(pliant_session* session, void* memory);

/* ---- Groups ---------------------------------------------------------------------------------- */

/* The members with these ranks of the world, in this order, each once, the caller among them.
 * Purely local: every member of the group makes the same call. The group is the caller's, for
 * pliant_group_destroy(). Where a call takes a group, null stands for the world. */
PLIANT_API pliant_status pliant_group_create(pliant_session* session, const int* ranks, int count,
                                             pliant_group** group);

/* Frees a group; operations over it that are in flight go on. Does nothing for null. */
PLIANT_API pliant_status pliant_group_destroy(pliant_group* group);

/* The caller's rank in the group, and the number of its members. */
PLIANT_API pliant_status pliant_group_rank(const pliant_group* group, int* rank);
PLIANT_API pliant_status pliant_group_size(const pliant_group* group, int* size);

/* ---- Operations -------------------------------------------------------------------------------
 * Every member of the group makes the same call with the same name, type, operator, root and
 * counts. Operations are matched by group and name, so members may issue them in any order; a name
 * is free again once its operation has completed. A name has 1 to 256 bytes and, like `counts`, is
 * copied.
 *
 * Counts are in elements. Roots, peers and the order of blocks are ranks of the group. The forms
 * that end in _v take one count for each member instead of one for all: `counts` has as many
 * entries as the group has members. Buffers whose size is zero may be null, and so may `output` of
 * gather and reduce and `input` of scatter where the caller is not the root.
 *
 * In place: `input` and `output` may be the same buffer where their sizes agree; for all_gather and
 * gather the input may be the own block's place in the output, for scatter and reduce_scatter the
 * output the own block's place in the input. Any other overlap is PLIANT_INVALID. Where "may be in
 * place" is said below, a null input means just that.
 *
 * A call returns when this rank's part is complete and its buffers are the caller's again, never
 * before all members have made it.
 * Summation order is fixed by the view: two runs give the same bits.
 *
 * Errors, of all of them: PLIANT_INVALID if an argument is wrong, if the name is already in flight
 * on this rank, or if the ranks' calls differ (then on every rank); PLIANT_PEER_LOST if a member of
 * the group died, now or earlier; PLIANT_TIMEOUT at the deadline of the session's options;
 * PLIANT_CANCELLED if the session was closed. After an error the contents of the output are
 * unspecified, those of a separate input intact. */

/* Reduces `count` elements over all members, the result to every one. May be in place. */
PLIANT_API pliant_status pliant_all_reduce(pliant_session* session, const pliant_group* group,
                                           const char* name, const void* input, void* output,
                                           size_t count, pliant_dtype dtype, pliant_op op);

/* An all-reduce over the world whose result all ranks of a host share, which saves them the copies:
 * `*result` is read-only and valid until this rank uses the name again or closes the session. The
 * input stays intact. */
PLIANT_API pliant_status pliant_all_reduce_shared(pliant_session* session, const char* name,
                                                  const void* input, size_t count,
                                                  pliant_dtype dtype, pliant_op op,
                                                  const void** result);

/* Reduces `count` elements over all members, the result to the root alone, where it may be in
 * place. On other ranks `output` stays as it is. */
PLIANT_API pliant_status pliant_reduce(pliant_session* session, const pliant_group* group,
                                       const char* name, const void* input, void* output,
                                       size_t count, pliant_dtype dtype, pliant_op op, int root);

/* Copies the root's buffer into everybody's. */
PLIANT_API pliant_status pliant_broadcast(pliant_session* session, const pliant_group* group,
                                          const char* name, void* buffer, size_t count,
                                          pliant_dtype dtype, int root);

/* Concatenates the blocks of all members, in the order of their ranks, on every member. May be in
 * place: the own block then stands in its place of the output. */
PLIANT_API pliant_status pliant_all_gather(pliant_session* session, const pliant_group* group,
                                           const char* name, const void* input, void* output,
                                           size_t count, pliant_dtype dtype);
PLIANT_API pliant_status pliant_all_gather_v(pliant_session* session, const pliant_group* group,
                                             const char* name, const void* input, void* output,
                                             const size_t* counts, pliant_dtype dtype);

/* Concatenates the blocks on the root alone, where it may be in place, as pliant_all_gather(). */
PLIANT_API pliant_status pliant_gather(pliant_session* session, const pliant_group* group,
                                       const char* name, const void* input, void* output,
                                       size_t count, pliant_dtype dtype, int root);
PLIANT_API pliant_status pliant_gather_v(pliant_session* session, const pliant_group* group,
                                         const char* name, const void* input, void* output,
                                         const size_t* counts, pliant_dtype dtype, int root);

/* Gives each member its block of the root's input. */
PLIANT_API pliant_status pliant_scatter(pliant_session* session, const pliant_group* group,
                                        const char* name, const void* input, void* output,
                                        size_t count, pliant_dtype dtype, int root);
PLIANT_API pliant_status pliant_scatter_v(pliant_session* session, const pliant_group* group,
                                          const char* name, const void* input, void* output,
                                          const size_t* counts, pliant_dtype dtype, int root);

/* Reduces the members' inputs, which have a block for each member, and gives each its block. */
PLIANT_API pliant_status pliant_reduce_scatter(pliant_session* session, const pliant_group* group,
                                               const char* name, const void* input, void* output,
                                               size_t count, pliant_dtype dtype, pliant_op op);
PLIANT_API pliant_status pliant_reduce_scatter_v(pliant_session* session, const pliant_group* group,
                                                 const char* name, const void* input, void* output,
                                                 const size_t* counts, pliant_dtype dtype,
                                                 pliant_op op);

/* Block r of the input goes to member r; block r of the output comes from member r. `count` is of
 * one block. The output is another buffer than the input. */
PLIANT_API pliant_status pliant_all_to_all(pliant_session* session, const pliant_group* group,
                                           const char* name, const void* input, void* output,
                                           size_t count, pliant_dtype dtype);

/* Returns when every member has called it. A null name stands for "barrier". */
PLIANT_API pliant_status pliant_barrier(pliant_session* session, const pliant_group* group,
                                        const char* name);

/* Over the world: `*same` is 1 if every member gave the same bytes, and 0 if not. */
PLIANT_API pliant_status pliant_consensus(pliant_session* session, const char* name,
                                          const void* data, size_t bytes, int* same);

/* A message from one member to another, which makes the matching call with the same name and count.
 * A rank cannot send to itself. */
PLIANT_API pliant_status pliant_send(pliant_session* session, const pliant_group* group,
                                     const char* name, const void* input, size_t count,
                                     pliant_dtype dtype, int peer);
PLIANT_API pliant_status pliant_recv(pliant_session* session, const pliant_group* group,
                                     const char* name, void* output, size_t count,
                                     pliant_dtype dtype, int peer);

/* ---- Steps -------------------------------------------------------------------------------------
 * Elastic training: members come and go, and a step ends committed by all members of the view that
 * follows or by none. Called by one thread, the one that trains. In a job that is not elastic, and
 * alone, the same loop runs unchanged:
 *
 *   while (pliant_begin_step(session, &begun) == PLIANT_OK && begun) {
 *     ... compute the gradients of pliant_step_samples() ...
 *     pliant_step_all_reduce(session, "gradients", g, NULL, n, PLIANT_F32, PLIANT_MEAN);
 *     if (pliant_commit_step(session) == PLIANT_OK) ... apply pliant_step_result() ...
 *   }
 *
 * With a constant global batch (pliant_keep_global_batch) a step may ask for more:
 *
 *     do {
 *       ... add the gradients of pliant_step_samples() to g ...
 *       pliant_step_all_reduce(session, "gradients", g, NULL, n, PLIANT_F32, PLIANT_MEAN);
 *     } while ((status = pliant_commit_step(session)) == PLIANT_MORE);
 */

/* Memory that all members keep equal: model, optimizer, counters. Before the first step; the same
 * names, sizes and types on all members. A job begins with the state of rank 0, and newcomers get
 * that of the members, verified. It stays the caller's and must outlive the session. */
PLIANT_API pliant_status pliant_register_state(pliant_session* session, const char* name,
                                               void* memory, size_t count, pliant_dtype dtype);

/* The same for memory that differs between members, such as models that are only drawn together: a
 * newcomer gets that of one member whole, all such state of the same one, and a snapshot has that
 * of the host's first member. */
PLIANT_API pliant_status pliant_register_state_own(pliant_session* session, const char* name,
                                                   void* memory, size_t count, pliant_dtype dtype);

/* Deals out the numbers of `samples` samples, `global_batch` a step over all members, so that every
 * sample of an epoch is in exactly one committed step. Before the first step; equal on all members.
 * Zero epochs: for ever. */
PLIANT_API pliant_status pliant_use_sampler(pliant_session* session, uint64_t samples,
                                            uint64_t global_batch, uint64_t seed, uint64_t epochs,
                                            int shuffle);

/* After pliant_use_sampler() and before the first step, on all members: every step but the last of
 * an epoch has exactly the global batch. What members were to compute that are lost in a step is
 * dealt to the others in the same step (PLIANT_MORE), not to a later one. */
PLIANT_API pliant_status pliant_keep_global_batch(pliant_session* session);

/* After pliant_use_sampler() and before the first step, on all members: instead of a global batch
 * each member has `samples` samples a step, so that the batch follows the number of members. */
PLIANT_API pliant_status pliant_batch_per_member(pliant_session* session, uint64_t samples);

/* From the next step on. All members make the same call between the same two steps. Newcomers take
 * the members' batch, whatever they asked for themselves; in all else their sampler must be equal.
 * PLIANT_INVALID inside a step, and with a batch per member. */
PLIANT_API pliant_status pliant_set_global_batch(pliant_session* session, uint64_t samples);

/* The samples of the next step, all members of the view together, if the epoch has as many left; 0
 * without a sampler. */
PLIANT_API pliant_status pliant_global_batch(const pliant_session* session, uint64_t* samples);

/* The batch that the open step, or the last one, was dealt out by, all members together; the last
 * step of an epoch may have fewer samples. The same on all members, also in a step during which the
 * view changes: what is derived from it, such as a learning rate, is too. */
PLIANT_API pliant_status pliant_step_batch(const pliant_session* session, uint64_t* samples);

/* Where the sampler stands by the committed steps: the epoch of the data, from 0, and the samples
 * of it that were consumed. After the last epoch: the number of epochs, and 0. */
PLIANT_API pliant_status pliant_data_position(const pliant_session* session, uint64_t* epoch,
                                              uint64_t* consumed);

/* For reading ahead: the samples of this member in the k-th step after the open one (after the last
 * one, if none is open) and their epoch, if nothing changes until then. None behind the last step.
 * Valid until the next call. What a step really has, pliant_step_samples() says. */
PLIANT_API pliant_status pliant_upcoming_samples(pliant_session* session, size_t steps_ahead,
                                                 uint64_t* epoch, const uint64_t** samples,
                                                 size_t* count);

/* The seed of whatever is drawn for a sample, such as its augmentation: by the job's seed, the
 * epoch of the data and the sample alone, so that it does not depend on who computes it. */
PLIANT_API uint64_t pliant_sample_seed(uint64_t seed, uint64_t epoch, uint64_t sample);

/* What pliant_learning_rate_factor() remembers; zeroed before the first step. Register it as state,
 * so that newcomers go on where the others are. */
typedef struct pliant_learning_rate {
  uint64_t batch;
  uint64_t since_step;
  double from;
} pliant_learning_rate;

/* What a learning rate that was chosen for `base_batch` is multiplied by in a step with `batch`
 * samples, that of pliant_step_batch(): rule "none", "linear" or "sqrt". With a state, a factor
 * that grows gets there evenly in `warm_up_steps` steps; one that falls does so at once. The state
 * may be null: no warm-up. */
PLIANT_API pliant_status pliant_learning_rate_factor(const char* rule, uint64_t base_batch,
                                                     uint64_t warm_up_steps, uint64_t step,
                                                     uint64_t batch, pliant_learning_rate* state,
                                                     double* factor);

/* Opens the next step: `*begun` is 1, or 0 if there is none for this member any more: it was asked
 * to leave, or all samples are consumed. The state must be that after the last committed step. The
 * view may change here: rank, size and epoch are to be asked for anew. */
PLIANT_API pliant_status pliant_begin_step(pliant_session* session, int* begun);

/* The number of the open step, or of the last committed one; counts from 1. */
PLIANT_API pliant_status pliant_step_number(const pliant_session* session, uint64_t* number);

/* The numbers of the samples that this member computes in the open step, or has been dealt by the
 * last PLIANT_MORE; valid until the next one begins or the step is committed. */
PLIANT_API pliant_status pliant_step_samples(const pliant_session* session,
                                             const uint64_t** samples, size_t* count);

/* Hands in an input of the open step, which must not change before pliant_commit_step() has
 * returned. All members hand in the same names, each once a step. PLIANT_MEAN divides by the number
 * of members; with a sampler by that of the samples. If `output` is not null, the commit copies the
 * result there. */
PLIANT_API pliant_status pliant_step_all_reduce(pliant_session* session, const char* name,
                                                const void* input, void* output, size_t count,
                                                pliant_dtype dtype, pliant_op op);

/* Completes the step. When members were lost meanwhile, the others finish it without them. The view
 * may change here. PLIANT_CANCELLED: this member is out of the job; leave the loop. PLIANT_MORE:
 * the step is still open, and pliant_step_samples() has samples of lost members. Add their
 * gradients to those that you have, hand all inputs in again, and commit again. */
PLIANT_API pliant_status pliant_commit_step(pliant_session* session);

/* The result of the last committed step, which the ranks of a host share: read-only, valid until
 * its name is handed in again. */
PLIANT_API pliant_status pliant_step_result(const pliant_session* session, const char* name,
                                            const void** result, size_t* bytes);

/* How many members' inputs are in it, and how many samples (0 without a sampler). */
PLIANT_API pliant_status pliant_step_contributors(const pliant_session* session, int* members,
                                                  uint64_t* samples);

/* Asks for another number of members; the job follows as soon as it can. */
PLIANT_API pliant_status pliant_propose_size(pliant_session* session, int members);

/* ---- Asynchronous operations ------------------------------------------------------------------
 * The same operations, started: they return at once with a work, and the library does the rest. The
 * buffers must stay as they are until the work has finished. The work is the caller's, for
 * pliant_work_destroy(). Null arguments are reported at once, and then there is no work; anything
 * else by pliant_work_wait(). */
PLIANT_API pliant_status pliant_all_reduce_async(pliant_session* session, const pliant_group* group,
                                                 const char* name, const void* input, void* output,
                                                 size_t count, pliant_dtype dtype, pliant_op op,
                                                 pliant_work** work);
PLIANT_API pliant_status pliant_reduce_async(pliant_session* session, const pliant_group* group,
                                             const char* name, const void* input, void* output,
                                             size_t count, pliant_dtype dtype, pliant_op op,
                                             int root, pliant_work** work);
PLIANT_API pliant_status pliant_broadcast_async(pliant_session* session, const pliant_group* group,
                                                const char* name, void* buffer, size_t count,
                                                pliant_dtype dtype, int root, pliant_work** work);
PLIANT_API pliant_status pliant_all_gather_async(pliant_session* session, const pliant_group* group,
                                                 const char* name, const void* input, void* output,
                                                 size_t count, pliant_dtype dtype,
                                                 pliant_work** work);
PLIANT_API pliant_status pliant_all_gather_v_async(pliant_session* session,
                                                   const pliant_group* group, const char* name,
                                                   const void* input, void* output,
                                                   const size_t* counts, pliant_dtype dtype,
                                                   pliant_work** work);
PLIANT_API pliant_status pliant_gather_async(pliant_session* session, const pliant_group* group,
                                             const char* name, const void* input, void* output,
                                             size_t count, pliant_dtype dtype, int root,
                                             pliant_work** work);
PLIANT_API pliant_status pliant_gather_v_async(pliant_session* session, const pliant_group* group,
                                               const char* name, const void* input, void* output,
                                               const size_t* counts, pliant_dtype dtype, int root,
                                               pliant_work** work);
PLIANT_API pliant_status pliant_scatter_async(pliant_session* session, const pliant_group* group,
                                              const char* name, const void* input, void* output,
                                              size_t count, pliant_dtype dtype, int root,
                                              pliant_work** work);
PLIANT_API pliant_status pliant_scatter_v_async(pliant_session* session, const pliant_group* group,
                                                const char* name, const void* input, void* output,
                                                const size_t* counts, pliant_dtype dtype, int root,
                                                pliant_work** work);
PLIANT_API pliant_status pliant_reduce_scatter_async(pliant_session* session,
                                                     const pliant_group* group, const char* name,
                                                     const void* input, void* output, size_t count,
                                                     pliant_dtype dtype, pliant_op op,
                                                     pliant_work** work);
PLIANT_API pliant_status pliant_reduce_scatter_v_async(pliant_session* session,
                                                       const pliant_group* group, const char* name,
                                                       const void* input, void* output,
                                                       const size_t* counts, pliant_dtype dtype,
                                                       pliant_op op, pliant_work** work);
PLIANT_API pliant_status pliant_all_to_all_async(pliant_session* session, const pliant_group* group,
                                                 const char* name, const void* input, void* output,
                                                 size_t count, pliant_dtype dtype,
                                                 pliant_work** work);
PLIANT_API pliant_status pliant_barrier_async(pliant_session* session, const pliant_group* group,
                                              const char* name, pliant_work** work);
PLIANT_API pliant_status pliant_send_async(pliant_session* session, const pliant_group* group,
                                           const char* name, const void* input, size_t count,
                                           pliant_dtype dtype, int peer, pliant_work** work);
PLIANT_API pliant_status pliant_recv_async(pliant_session* session, const pliant_group* group,
                                           const char* name, void* output, size_t count,
                                           pliant_dtype dtype, int peer, pliant_work** work);

/* Returns when the operation has finished, with its outcome; frees nothing. May be called again,
 * and by several threads: every call gives the same outcome. */
PLIANT_API pliant_status pliant_work_wait(pliant_work* work);

/* Sets `*done` to 1 if the operation has finished, else to 0. Never blocks. */
PLIANT_API pliant_status pliant_work_test(const pliant_work* work, int* done);

/* For a thread that looks after many works: waits, helping them along, until one of the session's
 * works has finished, for `seconds` at most. `*finished` is how many the caller knows to have
 * finished, 0 at first, and becomes how many have; if they differ already, this returns at once. So
 * no work is missed by looking at all of them before each call. */
PLIANT_API pliant_status pliant_await_works(pliant_session* session, uint64_t* finished,
                                            double seconds);

/* Waits until the operation has finished, so that its buffers are safe to free, then frees the work
 * and returns the operation's outcome, as pliant_work_wait() does. Does nothing for null. */
PLIANT_API pliant_status pliant_work_destroy(pliant_work* work);

/* ---- Strategy -------------------------------------------------------------------------------- */

/* Switches the strategy of later operations: "auto", "ring", "tree:0,0,0,1" and others. Collective:
 * every rank of the world makes the same call, with none of its operations in flight; returns when
 * all have switched. PLIANT_INVALID on every rank, and no switch, if they do not agree. */
PLIANT_API pliant_status pliant_set_strategy(pliant_session* session, const char* strategy);

/* The name of the strategy in use. Copies as much of the text as the buffer takes, always with a
 * closing zero. `*needed`, unless null, is set to the bytes of the whole text with that zero; a
 * null buffer of size 0 just asks for it. Cut text is no error. */
PLIANT_API pliant_status pliant_strategy(pliant_session* session, char* buffer, size_t buffer_bytes,
                                         size_t* needed);

/* Measures latency and bandwidth between the hosts anew, for the choices of "auto". Collective. */
PLIANT_API pliant_status pliant_measure_links(pliant_session* session);

/* What an operation of this many bytes over the world would do now, and why: "ring: 16 MiB over 4
 * hosts, predicted 3.1 ms". The buffer is as for pliant_strategy(). */
PLIANT_API pliant_status pliant_explain(pliant_session* session, pliant_collective collective,
                                        size_t bytes, char* buffer, size_t buffer_bytes,
                                        size_t* needed);

/* ---- Store ----------------------------------------------------------------------------------- */

/* Stands for the newest version of a name. */
#define PLIANT_NEWEST UINT64_MAX

/* Keeps a copy of the bytes as that version of the name, for any peer to fetch. The newest versions
 * of each name stay (the options' store_window of them); a reader never sees a torn value. */
PLIANT_API pliant_status pliant_save(pliant_session* session, const char* name, uint64_t version,
                                     const void* data, size_t bytes);

/* Fetches what the member with this rank of the world has saved; the peer makes no call. The value
 * is the caller's, for pliant_value_destroy(). PLIANT_INVALID if the peer does not hold that
 * version, or not any more; PLIANT_PEER_LOST and PLIANT_TIMEOUT as for operations. */
PLIANT_API pliant_status pliant_request(pliant_session* session, int peer, const char* name,
                                        uint64_t version, pliant_value** value);

/* The bytes of a value, which live as long as it does, and their number. Null and 0 if the value is
 * null; an empty value may have null data too. */
PLIANT_API const void* pliant_value_data(const pliant_value* value);
PLIANT_API size_t pliant_value_size(const pliant_value* value);

/* Frees a value. Does nothing for null. */
PLIANT_API pliant_status pliant_value_destroy(pliant_value* value);

/* ---- Snapshots ------------------------------------------------------------------------------- */

/* Copies the registered state and returns; the host's agent gets the copy meanwhile and keeps it,
 * so that it outlives this process (docs/STORE.md). All members of the host make the same call,
 * each copies its share. PLIANT_OVERLOADED if two snapshots are not in the store yet. */
PLIANT_API pliant_status pliant_snapshot_state(pliant_session* session, uint64_t step,
                                               pliant_snapshot** snapshot);

/* Returns when all members of the host have handed over their shares, or with why that failed;
 * frees nothing. Closing the session first withdraws what is not complete. */
PLIANT_API pliant_status pliant_snapshot_wait(const pliant_snapshot* snapshot);

/* Sets `*done` to 1 if pliant_snapshot_wait() would return at once, else to 0. */
PLIANT_API pliant_status pliant_snapshot_test(const pliant_snapshot* snapshot, int* done);

/* Frees the handle; the snapshot goes on. Does nothing for null. */
PLIANT_API pliant_status pliant_snapshot_destroy(pliant_snapshot* snapshot);

/* Fills the registered state from the snapshot of this step, or from the one completed last
 * (PLIANT_NEWEST), and sets `*restored`, unless null, to its step. PLIANT_INVALID, and nothing is
 * changed, if there is none or if it does not fit. */
PLIANT_API pliant_status pliant_restore_state(pliant_session* session, uint64_t step,
                                              uint64_t* restored);

#ifdef __cplusplus
}
#endif

#include "pliant_monitor.h"
#include "pliant_synchroniser.h"

#endif
