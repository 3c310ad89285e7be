// What makes the next view of a view, so that a member need not be told of all the others at each
// change. Pure; values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/member.h"
#include "pliant/base/result.h"
#include "pliant/membership/departure.h"
#include "pliant/membership/view.h"

namespace pliant {

// The members of view `before` in their order, without those that are gone, then those that joined.
struct ViewDelta {
  Epoch before{};
  Epoch epoch{};
  std::vector<Departure> gone;
  std::vector<Member> joined;
  // Of what comes out: two views of one epoch are a bug elsewhere, and it must not spread unseen.
  uint64_t fingerprint = 0;

  bool operator==(const ViewDelta&) const = default;
};

// Equal for equal epochs and ranks. A PeerId is one process for life, so it stands for its member.
uint64_t fingerprint(const View& view);

// Nothing if `after` cannot be told like this: there is no view before it, somebody changed place,
// or `gone` is not exactly who is missing. It must be told as a whole then.
std::optional<ViewDelta> diff(const View& before, const View& after,
                              const std::vector<Departure>& gone);

// kInvalid if the delta belongs to another view than `before`.
Result<View> apply(const ViewDelta& delta, const View& before);

}  // namespace pliant
