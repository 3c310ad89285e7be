/* A user's first program in C: a session alone, one all-reduce, and a mistake that is explained. */
#include <pliant.h>
#include <stdio.h>
#include <string.h>

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, pliant_last_error());
  return 1;
}

int main(void) {
  pliant_session* session = NULL;
  if (pliant_session_open(&session) != PLIANT_OK) return fail("open");
  int size = 0;
  if (pliant_size(session, &size) != PLIANT_OK) return fail("size");

  const float input[3] = {1, 2, 3};
  float output[3] = {0};
  if (pliant_all_reduce(session, NULL, "sum", input, output, 3, PLIANT_F32, PLIANT_SUM) !=
      PLIANT_OK)
    return fail("all_reduce");
  const int right = size == 1 && memcmp(input, output, sizeof input) == 0;
  printf("C: pliant %s, size %d, sum %s\n", pliant_version(), size, right ? "right" : "wrong");

  /* Booleans are moved, never reduced. */
  const pliant_status refused =
      pliant_all_reduce(session, NULL, "flags", input, output, 3, PLIANT_BOOL, PLIANT_SUM);
  printf("C: refused as it should be (%s): %s\n", pliant_status_name(refused), pliant_last_error());
  const int explained = refused == PLIANT_INVALID && strlen(pliant_last_error()) > 0;

  if (pliant_session_close(session) != PLIANT_OK) return fail("close");
  return right && explained ? 0 : 1;
}
