/* Uses the C ABI from C, the session and every operation: alone, or with several ranks under
 * `pliant run -n N -- program`. */
#define _POSIX_C_SOURCE 200809L

#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include <pthread.h>
#include <sys/mman.h>

#include "c_test.h"

/* ---- Words and wrong arguments --------------------------------------------------------------- */

static void test_words(void) {
  CHECK(strlen(pliant_version()) >= 5);
  CHECK(strcmp(pliant_status_name(PLIANT_OK), "ok") == 0);
  CHECK(strcmp(pliant_status_name(PLIANT_INVALID), "unknown") != 0);
  CHECK(strcmp(pliant_status_name(PLIANT_MORE), "more") == 0);
  CHECK(strcmp(pliant_status_name(8), "unknown") == 0);
  CHECK(strcmp(pliant_dtype_name(PLIANT_BF16), "bf16") == 0);
  CHECK(strcmp(pliant_dtype_name(-1), "unknown") == 0);
  CHECK(strcmp(pliant_op_name(PLIANT_PROD), "prod") == 0);
  CHECK(strcmp(pliant_op_name(5), "unknown") == 0);
  CHECK(strcmp(pliant_collective_name(PLIANT_REDUCE_SCATTER), "reduce_scatter") == 0);
  CHECK(strcmp(pliant_collective_name(11), "unknown") == 0);
  const size_t sizes[] = {1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 2, 4, 8, 1, 1};
  for (int dtype = PLIANT_I8; dtype <= PLIANT_F8_E5M2; ++dtype)
    CHECK(pliant_dtype_size(dtype) == sizes[dtype]);
  CHECK(pliant_dtype_size(15) == 0);
}

static void test_null_handles(void) {
  char text[8];
  int number = 0;
  void* memory = NULL;
  pliant_group* group = NULL;
  pliant_work* work = NULL;
  pliant_value* value = NULL;
  INVALID(pliant_session_open(NULL), "null");
  INVALID(pliant_session_open_with(NULL, &session), "options is null");
  INVALID(pliant_rank(NULL, &number), "session is null");
  INVALID(pliant_rank(session, NULL), "null");
  INVALID(pliant_epoch(NULL, NULL), "pliant_epoch");
  INVALID(pliant_allocate(NULL, 1, &memory), "null");
  INVALID(pliant_allocate(session, 1, NULL), "null");
  INVALID(pliant_release(NULL, &number), "null");
  INVALID(pliant_group_create(NULL, &rank, 1, &group), "null");
  INVALID(pliant_group_create(session, NULL, 1, &group), "null");
  INVALID(pliant_group_create(session, &rank, 0, &group), "group of 0");
  INVALID(pliant_group_rank(NULL, &number), "group is null");
  INVALID(pliant_group_size(NULL, &number), "null");
  INVALID(pliant_barrier(NULL, NULL, NULL), "pliant_barrier: the session is null");
  INVALID(pliant_barrier_async(session, NULL, NULL, NULL), "pliant_barrier_async");
  INVALID(pliant_work_wait(NULL), "work is null");
  INVALID(pliant_work_test(NULL, &number), "null");
  INVALID(pliant_set_strategy(session, NULL), "null");
  INVALID(pliant_strategy(session, NULL, 8, NULL), "buffer is null");
  INVALID(pliant_measure_links(NULL), "null");
  INVALID(pliant_explain(session, 11, 1, text, sizeof text, NULL), "11 is no collective");
  INVALID(pliant_consensus(session, "c", NULL, 1, &number), "data is null");
  INVALID(pliant_save(session, NULL, 1, "x", 1), "name is null");
  INVALID(pliant_save(session, "x", 1, NULL, 1), "data is null");
  INVALID(pliant_request(session, 0, "x", 1, NULL), "null");
  INVALID(pliant_request(session, size, "x", 1, &value), "no rank");
  CHECK(memory == NULL && group == NULL && work == NULL && value == NULL);
  CHECK(pliant_value_data(NULL) == NULL && pliant_value_size(NULL) == 0);
  OK(pliant_session_close(NULL));
  OK(pliant_group_destroy(NULL));
  OK(pliant_work_destroy(NULL));
  OK(pliant_value_destroy(NULL));
  OK(pliant_release(session, NULL));
}

/* Every rank makes all of these calls, so that none disturbs what follows. */
static void test_wrong_operations(void) {
  float in[4] = {0}, out[4 * kRanksMax] = {0};
  char name[300];
  size_t counts[kRanksMax] = {0};
  pliant_work* work = NULL;
  memset(name, 'n', sizeof name);
  name[sizeof name - 1] = '\0';
  INVALID(pliant_all_reduce(session, NULL, NULL, in, out, 4, PLIANT_F32, PLIANT_SUM), "name");
  INVALID(pliant_all_reduce(session, NULL, "", in, out, 4, PLIANT_F32, PLIANT_SUM), "name");
  INVALID(pliant_all_reduce(session, NULL, name, in, out, 4, PLIANT_F32, PLIANT_SUM), "name");
  INVALID(pliant_all_reduce(session, NULL, "w", in, out, 4, 15, PLIANT_SUM), "unknown type");
  INVALID(pliant_all_reduce(session, NULL, "w", in, out, 4, 256 + PLIANT_F32, PLIANT_SUM),
          "unknown type");
  INVALID(pliant_all_reduce(session, NULL, "w", in, out, 4, PLIANT_F32, -1), "operator");
  INVALID(pliant_all_reduce(session, NULL, "w", in, out, 4, PLIANT_BOOL, PLIANT_MAX), "bool");
  INVALID(pliant_all_reduce(session, NULL, "w", in, out, 4, PLIANT_F8_E4M3, PLIANT_SUM), "f8");
  INVALID(pliant_all_reduce(session, NULL, "w", in, NULL, 4, PLIANT_F32, PLIANT_SUM), "output");
  INVALID(pliant_all_reduce(session, NULL, "w", in, out, SIZE_MAX, PLIANT_F32, PLIANT_SUM),
          "too large");
  INVALID(pliant_broadcast(session, NULL, "w", in, 4, PLIANT_F32, size), "no rank");
  INVALID(pliant_broadcast(session, NULL, "w", in, 4, PLIANT_F32, -1), "no rank -1");
  INVALID(pliant_broadcast(session, NULL, "w", NULL, 4, PLIANT_F32, 0), "missing");
  INVALID(pliant_all_gather_v(session, NULL, "w", in, out, NULL, PLIANT_F32), "counts is null");
  counts[0] = SIZE_MAX / 2 + 1;
  INVALID(pliant_all_gather_v(session, NULL, "w", in, out, counts, PLIANT_F32), "too large");
  INVALID(pliant_reduce_scatter(session, NULL, "w", NULL, out, 1, PLIANT_F32, PLIANT_SUM),
          "input is missing");
  INVALID(pliant_scatter(session, NULL, "w", NULL, out, 1, PLIANT_F32, rank), "input is missing");
  INVALID(pliant_all_to_all(session, NULL, "w", NULL, out, 1, PLIANT_F32), "input is missing");
  INVALID(pliant_send(session, NULL, "w", in, 1, PLIANT_F32, rank), "itself");
  INVALID(pliant_all_reduce(session, NULL, "w", out + 1, out, 4, PLIANT_F32, PLIANT_SUM),
          "overlap");
  INVALID(pliant_send_async(session, NULL, NULL, in, 1, PLIANT_F32, rank, &work), "name is null");
  CHECK(work == NULL);
  OK(pliant_recv_async(session, NULL, "w", in, 1, -7, rank, &work));
  INVALID(pliant_work_destroy(work), "itself");
  CHECK(pliant_last_error_peer() == -1);
}

static void* fail_elsewhere(void* unused) {
  (void)unused;
  if (pliant_last_error()[0] != '\0') return "an error of another thread";
  pliant_work_wait(NULL);
  return strstr(pliant_last_error(), "work") ? NULL : "no error of this thread";
}

static void test_errors_are_per_thread(void) {
  pthread_t thread;
  void* problem = NULL;
  INVALID(pliant_set_strategy(session, NULL), "strategy");
  const char* before = pliant_last_error();
  CHECK(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0);
  CHECK(pthread_join(thread, &problem) == 0);
  CHECK(problem == NULL);
  CHECK(pliant_last_error() == before && strstr(before, "strategy") != NULL);
}

/* ---- Session ----------------------------------------------------------------------------------
 */

static void test_options(void) {
  pliant_options options;
  pliant_session* alone = NULL;
  pliant_group* group = NULL;
  int number = -1;
  uint32_t epoch = 0;
  char text[32];
  INVALID(pliant_options_init(NULL, sizeof options), "null");
  INVALID(pliant_options_init(&options, 1), "options of 1 bytes");
  OK(pliant_options_init(&options, sizeof options));
  options.size = 3;
  INVALID(pliant_session_open_with(&options, &alone), "options of 3 bytes");
  options.size = sizeof options;
  options.transport = "pigeon";
  INVALID(pliant_session_open_with(&options, &alone), "pigeon");
  options.transport = "auto";
  options.connections = -1;
  INVALID(pliant_session_open_with(&options, &alone), "-1");
  options.connections = 0;
  options.timeout_seconds = -1;
  INVALID(pliant_session_open_with(&options, &alone), "PLIANT_TIMEOUT");
  options.timeout_seconds = 1.5;
  options.heap_bytes_max = 1 << 20;
  options.strategy = "ring";
  options.coordinator = "";
  struct {
    pliant_options known;
    size_t unknown; /* as wide as the alignment, so that there is no padding */
  } newer = {options, 1};
  newer.known.size = sizeof newer;
  INVALID(pliant_session_open_with(&newer.known, &alone), "does not know");
  CHECK(alone == NULL);
  newer.unknown = 0;
  OK(pliant_session_open_with(&newer.known, &alone));
  OK(pliant_size(alone, &number));
  CHECK(number == 1);
  OK(pliant_epoch(alone, &epoch));
  CHECK(epoch == 1);
  OK(pliant_strategy(alone, text, sizeof text, NULL));
  CHECK(strcmp(text, "ring") == 0);
  void* memory = NULL;
  expect_status(pliant_allocate(alone, 2 << 20, &memory), PLIANT_OVERLOADED, "allocate", __LINE__);
  CHECK(memory == NULL && pliant_last_error()[0] != '\0');
  number = 0;
  OK(pliant_group_create(alone, &number, 1, &group));
  INVALID(pliant_barrier(session, group, "b"), "another session");
  OK(pliant_session_close(alone));
  OK(pliant_group_destroy(group));
}

static void test_place(void) {
  int local_rank = -1, local_size = 0, hosts = 0;
  uint32_t epoch = 0;
  OK(pliant_local_rank(session, &local_rank));
  OK(pliant_local_size(session, &local_size));
  OK(pliant_host_count(session, &hosts));
  OK(pliant_epoch(session, &epoch));
  CHECK(rank >= 0 && rank < size && size <= kRanksMax);
  CHECK(local_rank >= 0 && local_rank < local_size && local_size <= size);
  CHECK(hosts >= 1 && hosts <= size && epoch >= 1);
}

static void test_registered_memory(void) {
  double *input = NULL, *output = NULL;
  const void* shared = NULL;
  const size_t count = kLarge;
  OK(pliant_allocate(session, count * sizeof *input, (void**)&input));
  OK(pliant_allocate(session, count * sizeof *output, (void**)&output));
  CHECK((uintptr_t)input % 64 == 0 && input[count - 1] == 0.0);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < count; ++i) input[i] = rank + 1 + (double)(i % 7);
    OK(pliant_all_reduce(session, NULL, "registered", input, output, count, PLIANT_F64,
                         PLIANT_MEAN));
    OK(pliant_all_reduce_shared(session, "shared", input, count, PLIANT_F64, PLIANT_MAX, &shared));
    for (size_t i = 0; i < count; ++i) {
      CHECK(output[i] == (size + 1) / 2.0 + (double)(i % 7));
      CHECK(((const double*)shared)[i] == size + (double)(i % 7));
      CHECK(input[i] == rank + 1 + (double)(i % 7));
    }
    OK(pliant_barrier(session, NULL, "read"));
  }
  INVALID(pliant_all_reduce_shared(session, "s", input, 1, PLIANT_F64, 9, &shared), "operator");
  INVALID(pliant_all_reduce_shared(session, "s", NULL, 1, PLIANT_F64, 0, &shared), "missing");
  INVALID(pliant_release(session, output + 1), "did not give");
  OK(pliant_release(session, output));
  INVALID(pliant_release(session, output), "did not give");
  OK(pliant_release(session, input));
  void* empty = NULL;
  OK(pliant_allocate(session, 0, &empty));
  OK(pliant_release(session, empty));
  expect_status(pliant_allocate(session, SIZE_MAX, &empty), PLIANT_OVERLOADED, "huge", __LINE__);
}

/* Pages of the program's own, reduced where they are. */
static void test_shared_pages(void) {
  const size_t count = kLarge;
  float* numbers = mmap(NULL, count * sizeof *numbers, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(numbers != MAP_FAILED);
  int registered = -1;
  for (size_t i = 0; i < count; ++i) numbers[i] = (float)(i % 5);
  OK(pliant_is_registered(session, numbers, count * sizeof *numbers, &registered));
  CHECK(registered == 0);
  OK(pliant_share(session, numbers, count * sizeof *numbers));
  OK(pliant_is_registered(session, numbers, count * sizeof *numbers, &registered));
  CHECK(registered == 1);
  INVALID(pliant_share(session, numbers, 1), "shared already");
  OK(pliant_all_reduce(session, NULL, "pages", NULL, numbers, count, PLIANT_F32, PLIANT_SUM));
  for (size_t i = 0; i < count; ++i) CHECK(numbers[i] == (float)size * (float)(i % 5));
  OK(pliant_barrier(session, NULL, "seen"));
  OK(pliant_unshare(session, numbers));
  for (size_t i = 0; i < count; ++i) CHECK(numbers[i] == (float)size * (float)(i % 5));
  OK(pliant_all_reduce(session, NULL, "pages", NULL, numbers, count, PLIANT_F32, PLIANT_MAX));
  INVALID(pliant_unshare(session, numbers), "not shared");
  INVALID(pliant_share(session, (char*)numbers + 8, 8), "starts a page");
  INVALID(pliant_share(session, NULL, 8), "null");
  munmap(numbers, count * sizeof *numbers);
}

/* ---- Operations ------------------------------------------------------------------------------ */

#define REDUCE_ONE(TYPE, DTYPE)                                                        \
  do {                                                                                 \
    TYPE one = (TYPE)(rank + 1), result = 0;                                           \
    OK(pliant_all_reduce(session, NULL, #DTYPE, &one, &result, 1, DTYPE, PLIANT_SUM)); \
    CHECK(result == (TYPE)(size * (size + 1) / 2) && one == (TYPE)(rank + 1));         \
    OK(pliant_all_reduce(session, NULL, #DTYPE, &one, &result, 1, DTYPE, PLIANT_MIN)); \
    CHECK(result == 1);                                                                \
    OK(pliant_all_reduce(session, NULL, #DTYPE, NULL, &one, 1, DTYPE, PLIANT_MAX));    \
    CHECK(one == (TYPE)size);                                                          \
    one = (TYPE)(rank == 0 ? 3 : 1);                                                   \
    OK(pliant_all_reduce(session, NULL, #DTYPE, &one, &one, 1, DTYPE, PLIANT_PROD));   \
    CHECK(one == 3);                                                                   \
  } while (0)

static void test_types(void) {
  REDUCE_ONE(int8_t, PLIANT_I8);
  REDUCE_ONE(int16_t, PLIANT_I16);
  REDUCE_ONE(int32_t, PLIANT_I32);
  REDUCE_ONE(int64_t, PLIANT_I64);
  REDUCE_ONE(uint8_t, PLIANT_U8);
  REDUCE_ONE(uint16_t, PLIANT_U16);
  REDUCE_ONE(uint32_t, PLIANT_U32);
  REDUCE_ONE(uint64_t, PLIANT_U64);
  REDUCE_ONE(float, PLIANT_F32);
  REDUCE_ONE(double, PLIANT_F64);
  const uint16_t ones[2] = {0x3c00, 0x3f80}; /* 1 as f16 and as bf16 */
  for (int half = 0; half < 2; ++half) {
    uint16_t mean = 0;
    OK(pliant_all_reduce(session, NULL, "half", &ones[half], &mean, 1, PLIANT_F16 + half,
                         PLIANT_MEAN));
    CHECK(mean == ones[half]);
  }
  unsigned char flag = rank == 0;
  OK(pliant_broadcast(session, NULL, "flag", &flag, 1, PLIANT_BOOL, 0));
  CHECK(flag == 1);
  unsigned char eighth = rank == 0 ? 0x38 : 0;
  OK(pliant_broadcast(session, NULL, "eighth", &eighth, 1, PLIANT_F8_E4M3, 0));
  CHECK(eighth == 0x38);
  OK(pliant_all_reduce(session, NULL, "empty", NULL, NULL, 0, PLIANT_F32, PLIANT_SUM));
}

static void test_rooted(void) {
  for (int root = 0; root < size; ++root) {
    int32_t* mine = block_of(rank, 0, kBlock);
    int32_t* result = room(kBlock * sizeof *result);
    OK(pliant_reduce(session, NULL, "reduce", mine, rank == root ? result : NULL, kBlock,
                     PLIANT_I32, PLIANT_SUM, root));
    for (size_t i = 0; i < kBlock; ++i) {
      CHECK(result[i] == (rank == root ? sum_over_ranks(0, i) : 0));
      CHECK(mine[i] == element(rank, 0, i));
    }
    OK(pliant_broadcast(session, NULL, "broadcast", mine, kBlock, PLIANT_I32, root));
    for (size_t i = 0; i < kBlock; ++i) CHECK(mine[i] == element(root, 0, i));
    free(mine);
    free(result);
  }
}

/* Equal counts, or with `counts` the forms for unequal ones. */
static void test_blocks(const size_t* counts) {
  size_t offsets[kRanksMax + 1] = {0};
  for (int r = 0; r < size; ++r) offsets[r + 1] = offsets[r] + (counts ? counts[r] : kBlock);
  const size_t own = offsets[rank + 1] - offsets[rank], total = offsets[size];
  const int root = size - 1;
  int32_t* mine = block_of(rank, 0, own);
  int32_t* all = room(total * sizeof *all);
  int32_t* in_place = room(total * sizeof *in_place);
  memcpy(in_place + offsets[rank], mine, own * sizeof *mine);

  for (int form = 0; form < 3; ++form) { /* all_gather, in place, gather */
    int32_t* output = form == 1 ? in_place : all;
    memset(all, 0, total * sizeof *all);
    const void* input = form == 1 ? NULL : mine;
    if (form < 2 && counts)
      OK(pliant_all_gather_v(session, NULL, "gather", input, output, counts, PLIANT_I32));
    else if (form < 2)
      OK(pliant_all_gather(session, NULL, "gather", input, output, kBlock, PLIANT_I32));
    else if (counts)
      OK(pliant_gather_v(session, NULL, "gather", mine, all, counts, PLIANT_I32, root));
    else
      OK(pliant_gather(session, NULL, "gather", mine, all, kBlock, PLIANT_I32, root));
    if (form == 2 && rank != root) continue;
    for (int r = 0; r < size; ++r)
      for (size_t i = offsets[r]; i < offsets[r + 1]; ++i)
        CHECK(output[i] == element(r, 0, i - offsets[r]));
  }

  int32_t* blocks = blocks_of(rank, counts, kBlock);
  const void* sent = rank == root ? blocks : NULL;
  if (counts)
    OK(pliant_scatter_v(session, NULL, "scatter", sent, mine, counts, PLIANT_I32, root));
  else
    OK(pliant_scatter(session, NULL, "scatter", sent, mine, kBlock, PLIANT_I32, root));
  for (size_t i = 0; i < own; ++i) CHECK(mine[i] == element(root, rank, i));
  if (counts)
    OK(pliant_reduce_scatter_v(session, NULL, "reduce_scatter", blocks, mine, counts, PLIANT_I32,
                               PLIANT_SUM));
  else
    OK(pliant_reduce_scatter(session, NULL, "reduce_scatter", blocks, mine, kBlock, PLIANT_I32,
                             PLIANT_SUM));
  for (size_t i = 0; i < own; ++i) CHECK(mine[i] == sum_over_ranks(rank, i));

  if (!counts) {
    OK(pliant_all_to_all(session, NULL, "all_to_all", blocks, all, kBlock, PLIANT_I32));
    for (int r = 0; r < size; ++r)
      for (size_t i = 0; i < kBlock; ++i) CHECK(all[offsets[r] + i] == element(r, rank, i));
  }
  free(mine);
  free(all);
  free(in_place);
  free(blocks);
}

static void test_all_blocks(void) {
  size_t counts[kRanksMax];
  for (int r = 0; r < size; ++r) counts[r] = (size_t)(r * 37); /* the first has nothing */
  test_blocks(NULL);
  test_blocks(counts);
}

static void test_messages(void) {
  if (size == 1) return;
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  const size_t counts[] = {0, 1, kLarge};
  for (int c = 0; c < 3; ++c) {
    int32_t* out = block_of(rank, next, counts[c]);
    int32_t* in = room(counts[c] * sizeof *in);
    pliant_work* sending = NULL;
    OK(pliant_send_async(session, NULL, "message", out, counts[c], PLIANT_I32, next, &sending));
    OK(pliant_recv(session, NULL, "message", in, counts[c], PLIANT_I32, before));
    OK(pliant_work_destroy(sending));
    for (size_t i = 0; i < counts[c]; ++i) CHECK(in[i] == element(before, rank, i));
    if (rank == 0) OK(pliant_send(session, NULL, "pair", out, counts[c], PLIANT_I32, 1));
    pliant_work* receiving = NULL;
    if (rank == 1) {
      OK(pliant_recv_async(session, NULL, "pair", in, counts[c], PLIANT_I32, 0, &receiving));
      OK(pliant_work_wait(receiving));
    }
    OK(pliant_work_destroy(receiving));
    free(out);
    free(in);
  }
}

static void test_agreement(void) {
  int same = -1;
  OK(pliant_consensus(session, "agree", "abc", 3, &same));
  CHECK(same == 1);
  OK(pliant_consensus(session, "agree", NULL, 0, &same));
  CHECK(same == 1);
  OK(pliant_consensus(session, "agree", &rank, sizeof rank, &same));
  CHECK(same == (size == 1));
  OK(pliant_consensus(session, "agree", "abcdefg", rank == size - 1 ? 2 : 3, &same));
  CHECK(same == (size == 1));
}

static void test_groups(void) {
  int ranks[kRanksMax], members = 0, number = -1;
  pliant_group *parity = NULL, *reversed = NULL;
  for (int r = rank % 2; r < size; r += 2) ranks[members++] = r;
  OK(pliant_group_create(session, ranks, members, &parity));
  OK(pliant_group_size(parity, &number));
  CHECK(number == members);
  OK(pliant_group_rank(parity, &number));
  CHECK(number == rank / 2);
  int32_t sum = rank, wanted = 0;
  for (int m = 0; m < members; ++m) wanted += ranks[m];
  OK(pliant_all_reduce(session, parity, "parity", NULL, &sum, 1, PLIANT_I32, PLIANT_SUM));
  CHECK(sum == wanted);
  INVALID(pliant_broadcast(session, parity, "parity", &sum, 1, PLIANT_I32, members), "no rank");

  for (int r = 0; r < size; ++r) ranks[r] = size - 1 - r;
  OK(pliant_group_create(session, ranks, size, &reversed));
  int32_t all[kRanksMax];
  pliant_work* work = NULL;
  OK(pliant_all_gather_async(session, reversed, "parity", &rank, all, 1, PLIANT_I32, &work));
  OK(pliant_group_destroy(reversed));
  OK(pliant_work_destroy(work));
  for (int r = 0; r < size; ++r) CHECK(all[r] == size - 1 - r);
  OK(pliant_group_destroy(parity));

  pliant_group* none = NULL;
  ranks[0] = size;
  INVALID(pliant_group_create(session, ranks, 1, &none), "no rank");
  ranks[0] = ranks[1] = rank;
  INVALID(pliant_group_create(session, ranks, 2, &none), "twice");
  ranks[0] = (rank + 1) % size;
  if (size > 1) INVALID(pliant_group_create(session, ranks, 1, &none), "does not belong");
  CHECK(none == NULL);
}

/* Steps that change nothing but the members' sum, over several steps, with a sampler. */
static void test_steps(void) {
  static float model[kBlock];
  static float gradients[kBlock];
  int begun = 0;
  uint64_t number = 0;
  INVALID(pliant_commit_step(session), "begin_step");
  INVALID(pliant_step_batch(session, &number), "begin_step");
  INVALID(pliant_register_state(session, "model", model, kBlock, 99), "type");
  OK(pliant_register_state(session, "model", model, kBlock, PLIANT_F32));
  INVALID(pliant_register_state(session, "model", model, kBlock, PLIANT_F32), "twice");
  INVALID(pliant_keep_global_batch(session), "use_sampler");
  INVALID(pliant_batch_per_member(session, 4), "use_sampler");
  INVALID(pliant_set_global_batch(session, 4), "use_sampler");
  INVALID(pliant_use_sampler(session, 0, 8, 1, 1, 1), "sample");
  OK(pliant_use_sampler(session, 100, 8, 1, 2, 1));
  OK(pliant_batch_per_member(session, 4));
  INVALID(pliant_set_global_batch(session, 8), "per member");
  OK(pliant_global_batch(session, &number));
  CHECK(number == (uint64_t)size * 4);
  OK(pliant_use_sampler(session, 100, 5, 1, 2, 1));
  OK(pliant_keep_global_batch(session));
  OK(pliant_set_global_batch(session, 8));
  INVALID(pliant_set_global_batch(session, 0), "at least one sample");
  uint64_t consumed = 0;
  while (1) {
    uint64_t expected_epoch = 0;
    const uint64_t* expected = NULL;
    size_t expected_count = 0;
    OK(pliant_begin_step(session, &begun));
    uint64_t epoch = 0;
    uint64_t in_epoch = 0;
    OK(pliant_data_position(session, &epoch, &in_epoch));
    CHECK(epoch * 100 + in_epoch == consumed);
    if (!begun) break;
    const uint64_t* samples = NULL;
    size_t count = 0;
    INVALID(pliant_set_global_batch(session, 9), "between two steps");
    OK(pliant_upcoming_samples(session, 1, &expected_epoch, &expected, &expected_count));
    if (consumed == 0) CHECK(expected_count > 0 && expected_epoch == 0);
    OK(pliant_step_number(session, &number));
    OK(pliant_step_samples(session, &samples, &count));
    uint64_t batch = 0;
    OK(pliant_step_batch(session, &batch));
    CHECK(batch == 8);
    for (size_t i = 0; i < count; ++i) CHECK(samples[i] < 100);
    for (int i = 0; i < kBlock; ++i) gradients[i] = (float)count;
    OK(pliant_step_all_reduce(session, "g", gradients, NULL, kBlock, PLIANT_F32, PLIANT_MEAN));
    INVALID(pliant_step_all_reduce(session, "g", gradients, NULL, kBlock, PLIANT_F32, PLIANT_MEAN),
            "twice");
    OK(pliant_commit_step(session));
    const void* result = NULL;
    size_t bytes = 0;
    OK(pliant_step_result(session, "g", &result, &bytes));
    INVALID(pliant_step_result(session, "h", &result, &bytes), "no result");
    CHECK(bytes == sizeof gradients);
    /* The members' samples, divided by their number. */
    CHECK(((const float*)result)[kBlock - 1] == 1.0F);
    int members = 0;
    uint64_t contributed = 0;
    OK(pliant_step_contributors(session, &members, &contributed));
    CHECK(members == size);
    consumed += contributed;
    if (consumed < 200)
      CHECK(expected_epoch == (consumed < 100 ? 0U : 1U));
    else
      CHECK(expected_epoch == 2 && expected_count == 0);
  }
  INVALID(pliant_keep_global_batch(session), "before the first step");

  CHECK(pliant_sample_seed(1, 2, 3) != pliant_sample_seed(1, 3, 2));
  pliant_learning_rate rate = {0, 0, 0};
  double factor = 0;
  OK(pliant_learning_rate_factor("linear", 8, 4, 1, 8, &rate, &factor));
  CHECK(factor == 1);
  OK(pliant_learning_rate_factor("linear", 8, 4, 2, 24, &rate, &factor));
  OK(pliant_learning_rate_factor("linear", 8, 4, 3, 24, &rate, &factor));
  CHECK(factor == 1.5);
  INVALID(pliant_learning_rate_factor("linear", 8, 4, 1, 24, &rate, &factor), "descend");
  OK(pliant_learning_rate_factor("sqrt", 8, 4, 1, 32, NULL, &factor));
  CHECK(factor == 2);
  INVALID(pliant_learning_rate_factor("cubic", 8, 4, 1, 8, NULL, &factor), "cubic");
  INVALID(pliant_learning_rate_factor("sqrt", 0, 4, 1, 8, NULL, &factor), "at least one");
  CHECK(consumed == 200);
  CHECK(number == 26);
  INVALID(pliant_propose_size(session, 2), "not elastic");

  /* What was in the state when the snapshot was taken comes back. */
  pliant_snapshot* snapshot = NULL;
  INVALID(pliant_restore_state(session, PLIANT_NEWEST, NULL), "no complete version");
  for (int i = 0; i < kBlock; ++i) model[i] = (float)i;
  OK(pliant_barrier(session, NULL, "before"));
  OK(pliant_snapshot_state(session, number, &snapshot));
  for (int i = 0; i < kBlock; ++i) model[i] = -1.0F;
  OK(pliant_snapshot_wait(snapshot));
  int done = 0;
  OK(pliant_snapshot_test(snapshot, &done));
  CHECK(done == 1);
  OK(pliant_snapshot_destroy(snapshot));
  uint64_t restored = 0;
  OK(pliant_restore_state(session, PLIANT_NEWEST, &restored));
  CHECK(restored == number);
  for (int i = 0; i < kBlock; ++i) CHECK(model[i] == (float)i);
  INVALID(pliant_restore_state(session, number + 1, NULL), "holds no step");
  INVALID(pliant_snapshot_state(session, number, NULL), "result is null");
  INVALID(pliant_snapshot_wait(NULL), "snapshot is null");
}

int main(void) {
  CHECK(pliant_last_error()[0] == '\0' && pliant_last_error_peer() == -1);
  open_session();
  test_words();
  test_null_handles();
  test_wrong_operations();
  test_errors_are_per_thread();
  test_options();
  test_place();
  test_registered_memory();
  test_shared_pages();
  test_types();
  test_rooted();
  test_all_blocks();
  test_messages();
  test_agreement();
  test_groups();
  test_steps();
  OK(pliant_barrier(session, NULL, NULL));
  OK(pliant_session_close(session));
  return 0;
}
