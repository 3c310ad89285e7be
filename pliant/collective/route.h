// Routes: over which trees the blocks of a collective travel, seen from outside rather than by one
// rank. make_schedule() cuts the same blocks into the steps of a rank; the cost model reads these.
// Pure values; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "pliant/collective/group.h"
#include "pliant/collective/strategy.h"

namespace pliant {

struct Route {
  size_t count = 0;         // elements of the block
  Tree up;                  // partial results flow to its root; without parents: nothing is reduced
  Tree down;                // results flow from its root; without parents: nothing is spread
  std::vector<Rank> ranks;  // the rank at each node of the trees
  int round = 0;            // cannot begin before those of the round before have come

  bool reduces() const { return !up.parent.empty(); }
  bool spreads() const { return !down.parent.empty(); }
};

// True if the members of a host combine in shared memory and the routes lead between hosts only.
bool in_stages(const Signature& signature, const Strategy& strategy);

// The routes of every block. `strategy` is neither auto nor direct and was checked. Equal on all
// ranks, except that send and receive lead from or to group.self.
std::vector<Route> routes_of(const Signature& signature, const Group& group,
                             const Strategy& strategy);

// The members of each host, ascending.
std::vector<std::vector<Rank>> members_by_host(const Group& group);
// How many there are on the host that has most.
size_t most_members(const Group& group);

}  // namespace pliant
