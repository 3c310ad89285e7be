// Some members of a view, in an order of their own: the ranks of an operation. A value; made once
// and shared by every call over it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pliant/base/ids.h"

namespace pliant {

struct Group {
  std::vector<PeerId> members;  // the index is the rank in this group
  std::vector<int> host_of;     // a member's host, numbered densely in order of first appearance
  std::vector<Rank> local;      // the members on this process's host, ascending
  Rank self = 0;                // this process's rank
  int hosts = 1;
  uint64_t id = 0;  // equal on every member, different for other members, order or epoch

  Rank size() const { return static_cast<Rank>(members.size()); }
  PeerId peer(Rank rank) const { return members[static_cast<size_t>(rank)]; }
  int host(Rank rank) const { return host_of[static_cast<size_t>(rank)]; }
  bool one_host() const { return hosts == 1; }
};

// `self` must be one of the members.
Group make_group(std::span<const PeerId> members, PeerId self, Epoch epoch);

}  // namespace pliant
