// A decoder with a bug on purpose: it trusts a length that says 255. The driver must find it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size >= 3 && data[0] == 'P' && data[1] == 'L' && data[2] == 0xff) std::abort();
  return 0;
}
