// The journal of an interrupted reshard: whatever the text, an answer within limits; and what is
// taken for a journal can be written and read again.
#include <cstdint>
#include <string>
#include <string_view>

#include "pliant/base/check.h"
#include "pliant/store/reshard_journal.h"
#include "tests/fuzz/allocation_bound.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant::store;
  const pliant::fuzz::AllocationBound bound(size);
  const auto contents = decode_journal({reinterpret_cast<const char*>(data), size});
  if (!contents.ok()) return 0;
  std::string text = encode(contents->request);
  for (const WrittenFile& file : contents->files) {
    PLIANT_CHECK(file.name.find('/') == std::string::npos, "files are in the folder");
    text += encode(file);
  }
  const auto again = decode_journal(text);
  PLIANT_CHECK(again.ok() && *again == *contents, "a journal survives its text form");
  return 0;
}
