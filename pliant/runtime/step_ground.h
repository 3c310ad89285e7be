// What the protocol of steps (steps.h) stands on: operations, views and time. An Engine in a
// worker; a simulated member in the simulator. Called by the training thread.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/collective/group.h"
#include "pliant/collective/operation.h"
#include "pliant/membership/departure.h"
#include "pliant/membership/view.h"
#include "pliant/runtime/control.h"

namespace pliant {

struct ViewChange {
  View view;
  std::vector<Departure> gone;  // since the view that was installed before
};

// Memory that all members of a host see.
struct SharedPlace {
  uint64_t owner = 0;  // packed; 0: it is private
  uint64_t offset = 0;
};

class StepGround {
 public:
  virtual ~StepGround() = default;

  // The installed view, and all its members as a group.
  virtual const View& view() const = 0;
  virtual const Group& world() const = 0;

  // Operations of the installed view. All end with kStaleEpoch when a newer one is decided.
  virtual Status run(const Operation& operation, const Group& group, const std::byte** result) = 0;
  virtual void start(const Operation& operation, const Group& group,
                     std::function<void(const Status&, const std::byte* result)> done) = 0;
  virtual void wait(const std::atomic<bool>& done) = 0;

  // True if a view was decided that is not installed.
  virtual bool newer_view() const = 0;
  // Waits for one and returns the newest; an error if none comes in time, or kCancelled if the
  // coordinator has let go of this member.
  virtual Result<ViewChange> await_view() = 0;
  // Nothing of older views counts from here on. No operation may be in flight.
  virtual void install(const ViewChange& change) = 0;

  // What a dead member of this host gave to the newest call of an operation.
  virtual HandedIn handed_in(PeerId peer, const Operation& operation, const Group& group) = 0;
  // Where a result stands, for another member of the host, who finds it again with at(): null if
  // it never saw that memory. Places outlive their owner until forget_departed().
  virtual SharedPlace place_of(const std::byte* /*result*/, size_t /*bytes*/) { return {}; }
  virtual const std::byte* at(const SharedPlace& /*place*/) { return nullptr; }
  // Nothing that members of former views have left behind is needed any more, except by operations
  // of this group that use it already. False: there are some; ask again.
  virtual bool forget_departed(const Group& /*group*/) { return true; }
  // Progress, Proposal or Recovered, for the coordinator.
  virtual void tell(const Message& message) = 0;
  virtual Instant time() const = 0;
  // True if this member is not part of the newest view, which it may not have heard of yet because
  // it was stopped for a while.
  virtual bool left_behind() { return false; }
  // True if this worker is not in any view yet: await_view() says that it is ready for one.
  virtual bool candidate() const { return false; }
};

}  // namespace pliant
