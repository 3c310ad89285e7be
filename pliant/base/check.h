// PLIANT_CHECK: states what must be true. It stays on in release builds: a crashed member is a
// failure that the others survive, a wrong one is not.
#pragma once

namespace pliant {

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const char* message);

}  // namespace pliant

// PLIANT_CHECK(condition) or PLIANT_CHECK(condition, "why it must hold")
#define PLIANT_CHECK(...) \
  PLIANT_CHECK_PICK(__VA_ARGS__, PLIANT_CHECK_2, PLIANT_CHECK_1)(__VA_ARGS__)
#define PLIANT_CHECK_PICK(first, second, name, ...) name
#define PLIANT_CHECK_1(condition) PLIANT_CHECK_2(condition, "")
#define PLIANT_CHECK_2(condition, message)                               \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::pliant::check_failed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
