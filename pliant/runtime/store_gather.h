// Reads a version out of the stores of several hosts: each has what its own members wrote, and
// copies of others, so that after the loss of a host the rest may still have everything.
//
// What the base has is not moved; of the rest only the pieces that are needed are. What no host has
// any more is named: stores tell each other what they wrote (StoreCopy::Purpose::kOutline). Any
// thread; waits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/runtime/store_client.h"
#include "pliant/store/vault.h"

namespace pliant {

struct StoreRange {
  std::string tensor;
  std::optional<store::Box> box = {};  // nothing: all of it
};

struct GatherRequest {
  uint64_t step = store::Vault::kNewest;
  std::span<const StoreRange> wanted = {};  // nothing: all that any host wrote
  store::Version::Shared base = {};         // what this host has of it, if anything
  const StoreClient* own = nullptr;         // this host's store, which knows what others wrote
  std::span<const StoreClient> others = {};
  Instant deadline{};
};

// kInvalid names the ranges that no host has, who wrote them, and which hosts did not answer.
// Without a base, the newest version is the one of the latest epoch, and in it of the latest step.
Result<store::Version::Shared> gather(const GatherRequest& request);

}  // namespace pliant
