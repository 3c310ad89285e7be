// reshape(): brings a sharded state into another layout, in the memory of the members themselves.
//
// All members of the view call it at the same point with the same layout. Whoever is on the same
// host copies out of the other's shared memory; between hosts the pieces travel in messages. Each
// piece that comes from another member is verified by a checksum that its giver has computed.
//
// It is atomic, unless ReshapeOptions::extra_bytes_max says otherwise: the old and the new layout
// stand side by side until all members have everything. An error on any member, a death included,
// leaves the old layout as it was on all; after the next view (Session::begin_step) the survivors
// call reshape() again, with a layout for as many. Members that a death has overtaken at the very
// end may come out of it with different layouts: each is complete, whoever does not know yet has
// both, and the next reshape() goes on from the one that all have.
//
// With extra_bytes_max it is atomic batch by batch. After a failure in the middle some tensors are
// in the new layout and the others in the old one (ShardedState::is_split), on all members the same
// ones. The survivors call reshape() again just so; it takes each tensor from where it is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/runtime/session.h"
#include "pliant/runtime/sharded_state.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan.h"

namespace pliant {

struct ReshapeOptions {
  // Rank r of the layout is the member ranks[r] of the view; empty: member r. Equal on all members.
  std::vector<Rank> ranks = {};
  // Keeps the memory of the old layout for the next change instead of giving it back: memory that
  // is there is several times faster to fill than memory that the system must find first. As much
  // as was needed for this change anyway stays in use.
  bool keeps_memory = false;
  int threads = 0;  // of this member, for copies; 0: its share of the host's cores
  // Bytes that this member has and is to have; called by the calling thread, now and then.
  std::function<void(uint64_t done, uint64_t total)> on_progress = {};
  // Where there is no room for both layouts: tensors are exchanged in batches, and each member uses
  // at most so many bytes besides the larger of the two; what a batch came from is given back when
  // all members have the batch. Pages count whole, and messages between hosts need up to 32 MiB of
  // their own. Equal on all members, as has_snapshot is.
  //
  // A member that dies in the middle takes with it what it alone had. So, unless there is a
  // snapshot to restore it from, it is refused if an element is on one rank alone, in the old
  // layout or in the new one. A call that recovers from such a death may be given a limit too: it
  // goes in batches likewise, and a further death costs no more than it would cost anyway, that is,
  // elements of which it was the last holder. Not more is asked of it: ranks that have died count
  // as holders.
  std::optional<uint64_t> extra_bytes_max = {};
  bool has_snapshot = false;
  // If parts of the state died with their last holders: all of them, which a snapshot must bring.
  std::vector<tensor::Gone>* gone = nullptr;
};

struct ReshapeReport {
  tensor::PlanTotals totals = {};  // of all members
  // Of this member:
  uint64_t bytes_kept = 0;        // in buffers that stay as they are
  uint64_t bytes_in_place = 0;    // copied inside its memory
  uint64_t bytes_inside = 0;      // taken from members of its host
  uint64_t bytes_messages = 0;    // received in messages
  uint64_t bytes_given = 0;       // to other members
  uint64_t peak_extra_bytes = 0;  // memory beside the larger one of both layouts, at most
  struct Seconds {
    double plan = 0;      // agreeing on what is to be done
    double allocate = 0;  // of the new layout's memory
    double copy = 0;      // checksums included
    double verify = 0;    // the exchange of checksums, and waiting for the slowest member
    double commit = 0;    // the agreement, and the release of the old layout
    double total() const { return plan + allocate + copy + verify + commit; }
  } seconds = {};
};

// A state that is empty() gets its part from the others.
Result<ReshapeReport> reshape(Session& session, ShardedState& state, const tensor::Layout& to,
                              const ReshapeOptions& options = {});

}  // namespace pliant
