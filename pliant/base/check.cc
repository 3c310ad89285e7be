#include "pliant/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace pliant {

void check_failed(const char* condition, const char* file, int line, const char* message) {
  std::fprintf(stderr, "pliant: %s:%d: must hold: %s %s\n", file, line, condition, message);
  std::abort();
}

}  // namespace pliant
