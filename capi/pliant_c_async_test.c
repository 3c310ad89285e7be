/* Uses the C ABI from C, what happens besides the plain operations: asynchronous ones, ranks that
 * disagree, strategies, the store and a session that ends early. Alone, or with several ranks under
 * `pliant run -n N -- program`. */
#include "c_test.h"

static void expect_blocks(const int32_t* all, int to, size_t count, int line) {
  for (int r = 0; r < size; ++r)
    for (size_t i = 0; i < count; ++i)
      if (all[(size_t)r * count + i] != element(r, to, i)) fail(line, "a wrong block");
}

/* Every asynchronous form, all in flight at once, issued forwards or backwards by rank. */
static void test_all_forms(void) {
  enum { kForms = 12 };
  const size_t total = (size_t)size * kBlock;
  pliant_work* works[kForms] = {NULL};
  int32_t *outputs[kForms], *inputs[kForms];
  size_t counts[kRanksMax];
  for (int r = 0; r < size; ++r) counts[r] = kBlock;
  for (int f = 0; f < kForms; ++f) {
    inputs[f] = blocks_of(rank, NULL, kBlock);
    outputs[f] = room(total * sizeof **outputs);
  }
  for (int k = 0; k < kForms; ++k) {
    const int f = rank % 2 ? kForms - 1 - k : k;
    int32_t *in = inputs[f], *out = outputs[f];
    pliant_work** work = &works[f];
    const pliant_dtype type = PLIANT_I32;
    switch (f) {
      case 0: OK(pliant_all_reduce_async(session, NULL, "0", in, out, total, type, 0, work)); break;
      case 1: OK(pliant_reduce_async(session, NULL, "1", in, out, total, type, 0, 0, work)); break;
      case 2: OK(pliant_broadcast_async(session, NULL, "2", in, total, type, 0, work)); break;
      case 3: OK(pliant_all_gather_async(session, NULL, "3", in, out, kBlock, type, work)); break;
      case 4: OK(pliant_all_gather_v_async(session, NULL, "4", in, out, counts, type, work)); break;
      case 5: OK(pliant_gather_async(session, NULL, "5", in, out, kBlock, type, 0, work)); break;
      case 6: OK(pliant_gather_v_async(session, NULL, "6", in, out, counts, type, 0, work)); break;
      case 7: OK(pliant_scatter_async(session, NULL, "7", in, out, kBlock, type, 0, work)); break;
      case 8: OK(pliant_scatter_v_async(session, NULL, "8", in, out, counts, type, 0, work)); break;
      case 9:
        OK(pliant_reduce_scatter_async(session, NULL, "9", in, out, kBlock, type, 0, work));
        break;
      case 10:
        OK(pliant_reduce_scatter_v_async(session, NULL, "10", in, out, counts, type, 0, work));
        break;
      default: OK(pliant_all_to_all_async(session, NULL, "11", in, out, kBlock, type, work)); break;
    }
  }
  pliant_work* barrier = NULL;
  OK(pliant_barrier_async(session, NULL, NULL, &barrier));
  for (int f = 0; f < kForms; ++f) {
    int done = -1;
    OK(pliant_work_wait(works[f]));
    OK(pliant_work_test(works[f], &done));
    CHECK(done == 1);
    OK(pliant_work_wait(works[f]));
    OK(pliant_work_destroy(works[f]));
  }
  OK(pliant_work_destroy(barrier));
  for (int r = 0; r < size; ++r)
    for (size_t i = 0; i < kBlock; ++i) {
      const size_t at = (size_t)r * kBlock + i;
      CHECK(outputs[0][at] == sum_over_ranks(r, i));
      CHECK(outputs[1][at] == (rank == 0 ? sum_over_ranks(r, i) : 0));
      CHECK(inputs[2][at] == element(0, r, i));
    }
  expect_blocks(outputs[3], 0, kBlock, __LINE__);
  expect_blocks(outputs[4], 0, kBlock, __LINE__);
  if (rank == 0) expect_blocks(outputs[5], 0, kBlock, __LINE__);
  if (rank == 0) expect_blocks(outputs[6], 0, kBlock, __LINE__);
  for (size_t i = 0; i < kBlock; ++i) {
    CHECK(outputs[7][i] == element(0, rank, i) && outputs[8][i] == element(0, rank, i));
    CHECK(outputs[9][i] == sum_over_ranks(rank, i) && outputs[10][i] == outputs[9][i]);
  }
  expect_blocks(outputs[11], rank, kBlock, __LINE__);
  for (int f = 0; f < kForms; ++f) {
    free(inputs[f]);
    free(outputs[f]);
  }
}

/* A name is free again only after its operation; the last rank joins after the others were told. */
static void test_name_in_flight(void) {
  if (size == 1) return;
  pliant_work *first = NULL, *second = NULL;
  float* numbers = room(kLarge * sizeof *numbers);
  for (size_t i = 0; i < kLarge; ++i) numbers[i] = 1;
  if (rank != size - 1) {
    int done = -1;
    OK(pliant_all_reduce_async(session, NULL, "busy", NULL, numbers, kLarge, PLIANT_F32, PLIANT_SUM,
                               &first));
    OK(pliant_work_test(first, &done));
    CHECK(done == 0);
    INVALID(pliant_all_reduce(session, NULL, "busy", NULL, numbers, kLarge, PLIANT_F32, PLIANT_SUM),
            "in flight");
    pliant_status started = pliant_all_reduce_async(session, NULL, "busy", NULL, numbers, kLarge,
                                                    PLIANT_F32, PLIANT_SUM, &second);
    if (started == PLIANT_OK) started = pliant_work_destroy(second);
    CHECK(started == PLIANT_INVALID);
  }
  OK(pliant_barrier(session, NULL, "told"));
  if (rank == size - 1)
    OK(pliant_all_reduce_async(session, NULL, "busy", NULL, numbers, kLarge, PLIANT_F32, PLIANT_SUM,
                               &first));
  OK(pliant_work_destroy(first));
  for (size_t i = 0; i < kLarge; ++i) CHECK(numbers[i] == (float)size);
  free(numbers);
}

/* One thread looks after several works that finish in an order of their own. */
static void test_await_works(void) {
  enum { kWorks = 5 };
  pliant_work* works[kWorks];
  float* numbers[kWorks];
  uint64_t finished = 0;
  OK(pliant_await_works(session, &finished, 0)); /* what earlier tests have started */
  const uint64_t before = finished;
  OK(pliant_await_works(session, &finished, 0.001));
  CHECK(finished == before);
  for (int k = 0; k < kWorks; ++k) {
    const int w = rank % 2 ? kWorks - 1 - k : k;
    const char name[] = {'w', (char)('0' + w), 0};
    const size_t count = kLarge / (size_t)(w + 1);
    numbers[w] = room(count * sizeof **numbers);
    for (size_t i = 0; i < count; ++i) numbers[w][i] = 1;
    OK(pliant_all_reduce_async(session, NULL, name, NULL, numbers[w], count, PLIANT_F32, PLIANT_SUM,
                               &works[w]));
  }
  for (int left = kWorks; left > 0;) {
    int ended = 0;
    for (int w = 0; w < kWorks; ++w) {
      int done = 0;
      if (works[w] != NULL) OK(pliant_work_test(works[w], &done));
      if (!done) continue;
      OK(pliant_work_destroy(works[w]));
      works[w] = NULL;
      ++ended;
    }
    left -= ended;
    if (ended == 0) OK(pliant_await_works(session, &finished, 60));
  }
  OK(pliant_await_works(session, &finished, 0));
  CHECK(finished == before + kWorks);
  for (int w = 0; w < kWorks; ++w) {
    CHECK(numbers[w][kLarge / (size_t)(w + 1) - 1] == (float)size);
    free(numbers[w]);
  }
  INVALID(pliant_await_works(session, NULL, 1), "null");
}

/* Calls that differ fail on every rank, and the session goes on. */
static void test_mismatch(void) {
  if (size == 1) return;
  double numbers[16] = {0};
  const int last = rank == size - 1;
  INVALID(pliant_all_reduce(session, NULL, "other count", NULL, numbers, last ? 8 : 16, PLIANT_F64,
                            PLIANT_SUM),
          "other count");
  INVALID(pliant_all_reduce(session, NULL, "other type", NULL, numbers, 16,
                            last ? PLIANT_I64 : PLIANT_F64, PLIANT_SUM),
          "other type");
  pliant_work* work = NULL;
  OK(pliant_all_reduce_async(session, NULL, "other op", NULL, numbers, 16, PLIANT_F64,
                             last ? PLIANT_MAX : PLIANT_SUM, &work));
  INVALID(pliant_work_wait(work), "other op");
  INVALID(pliant_work_wait(work), "other op");
  INVALID(pliant_work_destroy(work), "other op");
  numbers[3] = 1;
  OK(pliant_all_reduce(session, NULL, "equal again", NULL, numbers, 16, PLIANT_F64, PLIANT_SUM));
  CHECK(numbers[3] == (double)size);
}

static void test_strategy(void) {
  char text[200];
  size_t needed = 0;
  OK(pliant_strategy(session, NULL, 0, &needed));
  OK(pliant_strategy(session, text, sizeof text, NULL));
  CHECK(needed == strlen(text) + 1);
  OK(pliant_set_strategy(session, "ring"));
  OK(pliant_strategy(session, text, sizeof text, &needed));
  CHECK(strcmp(text, "ring") == 0 && needed == 5);
  OK(pliant_strategy(session, text, 3, &needed));
  CHECK(strcmp(text, "ri") == 0 && needed == 5);
  int32_t sum = 1;
  OK(pliant_all_reduce(session, NULL, "by ring", NULL, &sum, 1, PLIANT_I32, PLIANT_SUM));
  CHECK(sum == size);
  INVALID(pliant_set_strategy(session, "pigeon"), "pigeon");
  if (size > 1) INVALID(pliant_set_strategy(session, rank == 0 ? "star" : "clique"), "agree");
  OK(pliant_strategy(session, text, sizeof text, NULL));
  CHECK(strcmp(text, "ring") == 0);
  OK(pliant_set_strategy(session, "auto"));
  OK(pliant_measure_links(session));
  for (int collective = PLIANT_ALL_REDUCE; collective <= PLIANT_RECV; ++collective) {
    OK(pliant_explain(session, collective, 1 << 20, text, sizeof text, &needed));
    CHECK(text[0] != '\0' && needed > 1);
  }
}

static void test_store(void) {
  const int next = (rank + 1) % size;
  char text[32];
  pliant_value* value = NULL;
  for (int version = 1; version <= 5; ++version) {
    const int bytes = snprintf(text, sizeof text, "rank %d version %d", rank, version);
    OK(pliant_save(session, "weights", (uint64_t)version, text, (size_t)bytes));
  }
  OK(pliant_save(session, "nothing", 0, NULL, 0));
  INVALID(pliant_save(session, "weights", PLIANT_NEWEST, "x", 1), "version");
  OK(pliant_barrier(session, NULL, "saved"));
  const uint64_t versions[] = {4, PLIANT_NEWEST};
  for (int v = 0; v < 2; ++v) {
    OK(pliant_request(session, next, "weights", versions[v], &value));
    const int bytes = snprintf(text, sizeof text, "rank %d version %d", next, v + 4);
    CHECK(pliant_value_size(value) == (size_t)bytes);
    CHECK(memcmp(pliant_value_data(value), text, (size_t)bytes) == 0);
    OK(pliant_value_destroy(value));
  }
  OK(pliant_request(session, next, "nothing", 0, &value));
  CHECK(pliant_value_size(value) == 0);
  OK(pliant_value_destroy(value));
  value = NULL;
  INVALID(pliant_request(session, next, "weights", 1, &value), "weights");
  CHECK(pliant_last_error_peer() == (size > 1 ? next : -1));
  INVALID(pliant_request(session, next, "unheard of", 1, &value), "unheard of");
  CHECK(value == NULL);
  OK(pliant_barrier(session, NULL, "requested"));
}

/* Ends the session with an operation in flight that nobody joins; its work is still good. */
static void test_close_cancels(void) {
  char name[32];
  float number = 1;
  int done = 0;
  pliant_work* work = NULL;
  pliant_value* value = NULL;
  OK(pliant_request(session, rank, "nothing", PLIANT_NEWEST, &value));
  OK(pliant_barrier(session, NULL, "last"));
  snprintf(name, sizeof name, "of rank %d alone", rank);
  OK(pliant_all_reduce_async(session, NULL, name, NULL, &number, 1, PLIANT_F32, PLIANT_SUM, &work));
  OK(pliant_session_close(session));
  OK(pliant_work_test(work, &done));
  CHECK(done == 1);
  const pliant_status outcome = pliant_work_wait(work);
  if (size == 1) CHECK(outcome == PLIANT_OK && number == 1);
  /* A peer may have left before we did. */
  if (size > 1) CHECK(outcome == PLIANT_CANCELLED || outcome == PLIANT_PEER_LOST);
  CHECK(pliant_last_error_peer() < size);
  CHECK(pliant_work_destroy(work) == outcome);
  OK(pliant_value_destroy(value));
}

int main(void) {
  open_session();
  test_all_forms();
  test_name_in_flight();
  test_await_works();
  test_mismatch();
  test_strategy();
  test_store();
  test_close_cancels();
  return 0;
}
