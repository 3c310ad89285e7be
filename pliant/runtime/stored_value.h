// A value as it came from a peer's store (peer_store.h). A value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pliant {

struct StoredValue {
  std::vector<std::byte> bytes;
  uint64_t version = 0;  // that it was saved under
};

struct ValueRequest;  // one that is on its way; see engine.h

}  // namespace pliant
