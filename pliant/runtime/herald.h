// Tells workers of views: what has changed, to those that hold the view before, and the whole of it
// to all others. So the bytes of a change grow with the members, not with their square.
//
// Owned by a coordinator, real or simulated. Decisions only; one thread at a time.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "pliant/runtime/control.h"

namespace pliant {

class Herald final {
 public:
  struct Telling {
    std::vector<PeerId> to;
    Message message;
  };

  // `newest`: of an earlier coordinator of the job, or none.
  explicit Herald(View newest = {}) : newest_(std::move(newest)) {}

  // A worker joins over a new line, or again over its own because it could not use what it was
  // told. Epochs are used once, so one that has that of the newest view holds it.
  void joined(PeerId peer, uint32_t epoch);

  // The messages for those that are to hear of `view`. It is the newest from now on.
  std::vector<Telling> tell(const View& view, const std::vector<Departure>& gone,
                            const std::vector<PeerId>& to);

  const View& newest() const { return newest_; }

 private:
  View newest_;
  // Who has it, or will have when what it was sent has arrived.
  std::unordered_set<PeerId> holders_;
};

// The worker's side: what a change means to one that holds `held`. After an error the worker joins
// again with the epoch of that, and is sent the whole.
Result<ViewDecided> complete(const ViewChanged& changed, const View& held);

}  // namespace pliant
