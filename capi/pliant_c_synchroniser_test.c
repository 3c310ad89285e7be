/* Uses the synchroniser from C: every way of keeping models together, and the changes between
 * them. Alone, or with several ranks under `pliant run -n N -- program`. */
#include "c_test.h"

enum { kWeights = 700, kBias = 3, kElements = kWeights + kBias, kSteps = 6 };
static const double kAlpha = 0.25;

static double model[kElements], gradients[kElements], momentum[kBias];
static double before[kRanksMax][kElements]; /* all models as the step began */
static double published[kSteps * 8][kRanksMax][kElements];
static int32_t own[kBlock]; /* each rank's, larger than a share of it */
static pliant_synchroniser* together;
static uint64_t number; /* of the step */

static void gather(double (*all)[kElements]) {
  double* flat = room(sizeof(double) * kElements * (size_t)size);
  OK(pliant_all_gather(session, NULL, "models", model, flat, kElements, PLIANT_F64));
  memcpy(all, flat, sizeof(double) * kElements * (size_t)size);
  free(flat);
}

static double own_gradient(int from, int i) { return (from + 1) * 0.5 + i * 0.125; }

static void begin(void) {
  int begun = 0;
  OK(pliant_begin_step(session, &begun));
  CHECK(begun == 1);
  OK(pliant_step_number(session, &number));
  gather(before);
  OK(pliant_synchroniser_begin(together));
  for (int i = 0; i < kElements; ++i) gradients[i] = own_gradient(rank, i);
}

/* The optimizer: plain descent with a step of 1. */
static void apply(void) {
  for (int i = 0; i < kElements; ++i) model[i] -= gradients[i];
  OK(pliant_synchroniser_applied(together));
  CHECK(number < kSteps * 8);
  gather(published[number]);
}

static int close_to(double value, double wanted) {
  const double difference = value > wanted ? value - wanted : wanted - value;
  const double magnitude = wanted > 0 ? wanted : -wanted;
  return difference <= 1e-12 * (magnitude + 1);
}

static double mean_before(int i) {
  double sum = 0;
  for (int from = 0; from < size; ++from) sum += before[from][i];
  return sum / size;
}

static void expect_equal_models(void) {
  int same = 0;
  OK(pliant_consensus(session, "equal", model, sizeof model, &same));
  CHECK(same == 1);
}

static pliant_synchroniser_report report(void) {
  pliant_synchroniser_report last;
  last.size = sizeof last;
  OK(pliant_synchroniser_last_step(together, &last));
  return last;
}

static void test_wrong_arguments(void) {
  pliant_synchroniser* none = NULL;
  pliant_synchroniser_options options;
  const pliant_bucket one = {"one", model, gradients, kWeights, PLIANT_F64};
  const pliant_bucket twice[] = {one, one};
  const pliant_bucket nameless = {NULL, model, gradients, 1, PLIANT_F64};
  const pliant_bucket integers = {"integers", model, gradients, 1, PLIANT_I64};
  const pliant_bucket alone = {"alone", model, NULL, 1, PLIANT_F64};
  int way = 0;
  INVALID(pliant_synchroniser_options_init(NULL, sizeof options), "null");
  INVALID(pliant_synchroniser_options_init(&options, 3), "3 bytes of options");
  OK(pliant_synchroniser_options_init(&options, sizeof options));
  INVALID(pliant_synchroniser_create(NULL, &one, 1, NULL, &none), "session is null");
  INVALID(pliant_synchroniser_create(session, NULL, 1, NULL, &none), "buckets is null");
  INVALID(pliant_synchroniser_create(session, &one, 1, NULL, NULL), "result is null");
  INVALID(pliant_synchroniser_create(session, twice, 2, NULL, &none), "two buckets 'one'");
  INVALID(pliant_synchroniser_create(session, &nameless, 1, NULL, &none), "bucket 0 has no name");
  INVALID(pliant_synchroniser_create(session, &integers, 1, NULL, &none), "'integers' is i64");
  INVALID(pliant_synchroniser_create(session, &alone, 1, NULL, &none), "a bucket with gradients");
  options.alpha = 1.5;
  INVALID(pliant_synchroniser_create(session, &one, 1, &options, &none), "alpha is 1.5");
  options.alpha = 0.5;
  options.synchronisation = 3;
  INVALID(pliant_synchroniser_create(session, &one, 1, &options, &none), "no such sync");
  options.size = 1;
  INVALID(pliant_synchroniser_create(session, &one, 1, &options, &none), "another size");
  INVALID(pliant_synchroniser_begin(NULL), "synchroniser is null");
  INVALID(pliant_synchroniser_synchronisation(NULL, &way), "synchroniser is null");
  CHECK(none == NULL);
  OK(pliant_synchroniser_destroy(NULL));
  CHECK(strcmp(pliant_synchronisation_name(PLIANT_PAIR_AVERAGING), "pair_averaging") == 0);
  CHECK(strcmp(pliant_synchronisation_name(3), "unknown") == 0);
  CHECK(strcmp(pliant_compression_name(PLIANT_COMPRESS_INT8), "int8") == 0);
}

static void make(void) {
  const pliant_bucket buckets[] = {
      {"bias", model + kWeights, gradients + kWeights, kBias, PLIANT_F64},
      {"weights", model, gradients, kWeights, PLIANT_F64},
      {"momentum", momentum, NULL, kBias, PLIANT_F64},
  };
  pliant_synchroniser_options options;
  OK(pliant_synchroniser_options_init(&options, sizeof options));
  options.alpha = kAlpha;
  options.may_switch = 1;
  options.seed = 7;
  OK(pliant_synchroniser_create(session, buckets, 3, &options, &together));
  OK(pliant_register_state_own(session, "own", own, kBlock, PLIANT_I32));
  INVALID(pliant_register_state_own(session, "own", own, kBlock, PLIANT_I32), "twice");
  INVALID(pliant_register_state_own(session, "other", own, kBlock, 99), "unknown type");
  for (int i = 0; i < kElements; ++i) model[i] = rank * 10 + i * 0.01;
  INVALID(pliant_synchroniser_begin(together), "pliant_begin_step() first");
  INVALID(pliant_synchroniser_commit(together), "outside a step");
}

static void test_synchronous(void) {
  for (int step = 0; step < kSteps; ++step) {
    begin();
    if (step % 2 == 0) OK(pliant_synchroniser_ready(together, 1));
    INVALID(pliant_synchroniser_ready(together, 2), "no bucket 2 with gradients");
    INVALID(pliant_synchroniser_switch_to(together, PLIANT_PAIR_AVERAGING), "is open");
    if (step % 2 == 0) INVALID(pliant_synchroniser_ready(together, 1), "handed in twice");
    OK(pliant_synchroniser_commit(together));
    for (int i = 0; i < kElements; ++i)
      CHECK(close_to(gradients[i], own_gradient(0, i) + 0.25 * (size - 1)));
    const void* found = NULL;
    size_t bytes = 0;
    OK(pliant_synchroniser_gradients(together, 0, &found, &bytes));
    CHECK(found == gradients + kWeights && bytes == kBias * sizeof(double));
    INVALID(pliant_synchroniser_gradients(together, 3, &found, &bytes), "no bucket 3");
    apply();
    expect_equal_models();
    CHECK(report().reduced_bytes == kElements * sizeof(double));
  }
}

static void test_model_averaging(void) {
  OK(pliant_synchroniser_switch_to(together, PLIANT_MODEL_AVERAGING));
  for (int step = 0; step < kSteps; ++step) {
    begin();
    OK(pliant_synchroniser_commit(together));
    for (int i = 0; i < kElements; ++i) {
      CHECK(close_to(model[i], (1 - kAlpha) * before[rank][i] + kAlpha * mean_before(i)));
      CHECK(gradients[i] == own_gradient(rank, i));
    }
    apply();
  }
}

static void test_pair_averaging(void) {
  static double committed[kElements];
  uint64_t first = 0, missed = 0;
  OK(pliant_synchroniser_switch_to(together, PLIANT_PAIR_AVERAGING));
  for (int step = 0; step < kSteps; ++step) {
    begin();
    if (step == 0) first = number;
    OK(pliant_synchroniser_commit(together));
    const pliant_synchroniser_report last = report();
    missed += size > 1 && last.pulled_version == 0;
    CHECK(last.pulls_missed == missed && last.pulled_from != rank);
    CHECK((last.pulled_from >= 0) == (last.pulled_version != 0));
    /* Nobody has published in this way before its first step; a fast one has this step's. */
    CHECK(last.pulled_version == 0 ||
          (last.pulled_version >= first && last.pulled_version <= number));
    CHECK(size == 1 || step == 0 || last.pulled_version != 0);
    memcpy(committed, model, sizeof model);
    apply();
    for (int i = 0; i < kElements; ++i) {
      double wanted = before[rank][i];
      if (last.pulled_version != 0)
        wanted = 0.5 * wanted + 0.5 * published[last.pulled_version][last.pulled_from][i];
      CHECK(committed[i] == wanted);
    }
  }
}

/* The first step makes models and momentum equal, and it stays so. */
static void test_back_to_synchronous(void) {
  for (int i = 0; i < kBias; ++i) momentum[i] = rank * 3 + i;
  OK(pliant_synchroniser_switch_to(together, PLIANT_SYNCHRONOUS));
  for (int step = 0; step < kSteps; ++step) {
    begin();
    OK(pliant_synchroniser_commit(together));
    for (int i = 0; i < kElements; ++i) CHECK(close_to(model[i], mean_before(i)));
    apply();
    expect_equal_models();
    for (int i = 0; i < kBias; ++i) CHECK(close_to(momentum[i], 1.5 * (size - 1) + i));
    int way = -1;
    OK(pliant_synchroniser_synchronisation(together, &way));
    CHECK(way == PLIANT_SYNCHRONOUS);
  }
}

/* A snapshot has all of one member's, never parts of several. */
static void test_snapshot(void) {
  pliant_snapshot* snapshot = NULL;
  for (int i = 0; i < kBlock; ++i) own[i] = element(rank, 0, (size_t)i);
  for (int i = 0; i < kElements; ++i) model[i] = rank * 100 + i;
  OK(pliant_snapshot_state(session, number, &snapshot));
  memset(own, 0, sizeof own);
  memset(model, 0, sizeof model);
  OK(pliant_snapshot_wait(snapshot));
  OK(pliant_snapshot_destroy(snapshot));
  OK(pliant_restore_state(session, number, NULL));
  for (int i = 0; i < kBlock; ++i) CHECK(own[i] == element(0, 0, (size_t)i));
  for (int i = 0; i < kElements; ++i) CHECK(model[i] == i);
}

int main(void) {
  open_session();
  test_wrong_arguments();
  make();
  test_synchronous();
  test_model_averaging();
  test_pair_averaging();
  test_back_to_synchronous();
  test_snapshot();
  OK(pliant_barrier(session, NULL, NULL));
  OK(pliant_session_close(session));
  OK(pliant_synchroniser_destroy(together));
  return 0;
}
