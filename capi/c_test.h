/* What the C tests of the C ABI share: the session of the process, checks that end it, and numbers
 * that tell where they came from. Included once by each test program. */
#ifndef PLIANT_C_TEST_H
#define PLIANT_C_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pliant.h"

enum { kRanksMax = 64, kBlock = 1000, kLarge = 300000 };

static pliant_session* session;
static int rank, size;

static inline void fail(int line, const char* what) {
  fprintf(stderr, "line %d: rank %d of %d: %s; last error: %s\n", line, rank, size, what,
          pliant_last_error());
  exit(1);
}

static inline void expect_status(pliant_status got, pliant_status wanted, const char* call,
                                 int line) {
  if (got == wanted) return;
  fprintf(stderr, "%s: %s instead of %s\n", call, pliant_status_name(got),
          pliant_status_name(wanted));
  fail(line, "wrong status");
}

static inline void expect_invalid(pliant_status got, const char* words, const char* call,
                                  int line) {
  expect_status(got, PLIANT_INVALID, call, line);
  if (strstr(pliant_last_error(), words) == NULL) fail(line, words);
}

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) expect_status((call), PLIANT_OK, #call, __LINE__)
#define INVALID(call, words) expect_invalid((call), words, #call, __LINE__)

static inline void* room(size_t bytes) {
  void* memory = calloc(bytes + 1, 1);
  CHECK(memory != NULL);
  return memory;
}

/* The element i of the block that rank `from` has for rank `to`. */
static inline int32_t element(int from, int to, size_t i) {
  return (int32_t)(from * 100003 + to * 10007 + (int)(i % 997));
}

static inline int32_t* block_of(int from, int to, size_t count) {
  int32_t* block = room(count * sizeof *block);
  for (size_t i = 0; i < count; ++i) block[i] = element(from, to, i);
  return block;
}

/* Blocks of `from` for each rank; counts is null for `count` each. */
static inline int32_t* blocks_of(int from, const size_t* counts, size_t count) {
  size_t total = 0, at = 0;
  for (int to = 0; to < size; ++to) total += counts ? counts[to] : count;
  int32_t* blocks = room(total * sizeof *blocks);
  for (int to = 0; to < size; ++to)
    for (size_t i = 0; i < (counts ? counts[to] : count); ++i) blocks[at++] = element(from, to, i);
  return blocks;
}

static inline int32_t sum_over_ranks(int to, size_t i) {
  int32_t sum = 0;
  for (int from = 0; from < size; ++from) sum += element(from, to, i);
  return sum;
}

/* Opens the session that the environment asks for: alone, or a rank of `pliant run`. */
static inline void open_session(void) {
  OK(pliant_session_open(&session));
  OK(pliant_rank(session, &rank));
  OK(pliant_size(session, &size));
}

#endif
