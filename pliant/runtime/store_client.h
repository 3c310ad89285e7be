// The way to the store of this host (store_service.h), for workers and for people's commands. Each
// call makes a line of its own and waits for the answer, no longer than it is allowed to. Any
// thread, several at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/runtime/store_wire.h"
#include "pliant/store/vault.h"
#include "pliant/transport/socket.h"

namespace pliant {

struct StorePlace {
  std::string name;  // of the store's Unix socket
  std::string job;
  std::string token;
  uint32_t host = 0;
  bool operator==(const StorePlace&) const = default;
};

class StoreClient final {
 public:
  // `self` is for messages; a command has none.
  explicit StoreClient(StorePlace place, PeerId self = {});

  // Hands a part over and waits until the version is complete on this host. If it fails, or if
  // `cancel`, a descriptor, turns readable meanwhile, the store keeps nothing of it.
  Status hand_over(const store::VaultTicket& ticket, const store::VaultPart& part, Instant deadline,
                   int cancel = -1) const;
  // A complete version (Vault::kNewest: the newest), in the store's own memory.
  Result<store::Version::Shared> fetch(uint64_t step, Instant deadline) const;
  // Oldest first.
  Result<std::vector<StoreSummary>> list(Instant deadline) const;

 private:
  class Call;
  const StorePlace place_;
  const PeerId self_;
};

}  // namespace pliant
