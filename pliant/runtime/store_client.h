// The way to the store of this host or of another one (store_service.h), for workers and for
// people's commands. Each call makes a line of its own and waits for the answer, no longer than it
// is allowed to; elements that come from, or go to, another host may take longer, as long as some
// arrive. Any thread, several at once.
#pragma once

#include <cstdint>
#include <span>
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
  std::string endpoint = {};   // of another host's store (copies_endpoint()); empty: this host's
  std::string host_name = {};  // for messages about another host
  bool operator==(const StorePlace&) const = default;
};

// A version without its elements.
struct StoreLook {
  uint64_t step = 0;
  uint32_t epoch = 0;
  std::vector<StoreOutline> parts;
};

class StoreClient final {
 public:
  // `self` is for messages; a command has none.
  explicit StoreClient(StorePlace place, PeerId self = {});

  // Hands a part over and waits until the version is complete on this host. If it fails, or if
  // `cancel`, a descriptor, turns readable meanwhile, the store keeps nothing of it.
  Status hand_over(const store::VaultTicket& ticket, const store::VaultPart& part, Instant deadline,
                   int cancel = -1) const;
  // A complete version (Vault::kNewest: the newest), in the store's own memory if it is this
  // host's.
  Result<store::Version::Shared> fetch(uint64_t step, Instant deadline) const;
  // Oldest first.
  Result<std::vector<StoreSummary>> list(Instant deadline) const;
  // The other hosts' stores, as this host's knows them.
  Result<std::vector<StorePeer>> hosts(Instant deadline) const;

  // What it has, and what it knows of; without elements.
  Result<StoreLook> look(uint64_t step, Instant deadline) const;
  // Some of what another host has, verified.
  Result<store::VaultPart> pull(const StorePull& pieces, Instant deadline) const;

  // A version, or its outline, for another host to keep: what is copied, and why, says `about`.
  Status send_copy(const StoreCopy& about, std::span<const store::VaultPart> parts,
                   Instant deadline, int cancel = -1) const;

  const StorePlace& place() const { return place_; }
  // "the store of host b"
  std::string name() const;

 private:
  class Call;
  const StorePlace place_;
  const PeerId self_;
};

}  // namespace pliant
