// Inside of plan.h: where the boxes of two placements of one tensor meet. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/tensor/layout.h"

namespace pliant::tensor {

// Who can give: the old ranks and their hosts, without those that are lost.
struct Givers {
  std::span<const uint32_t> hosts;  // by old rank
  std::vector<bool> is_lost;        // by old rank

  bool is_before(Rank a, Rank b) const {
    const uint32_t host_a = hosts[static_cast<size_t>(a)];
    const uint32_t host_b = hosts[static_cast<size_t>(b)];
    return host_a != host_b ? host_a < host_b : a < b;
  }
};

// The boxes of an old placement, prepared for looking up those that meet a new one.
class Source {
 public:
  Source(const Placement& placement, const Givers& givers);

  // The shards that overlap the box, in a fixed order.
  void find(const Box& box, std::vector<uint32_t>& found) const;
  const Box& box(uint32_t shard) const { return placement_->shards[shard].box; }
  // Those that are left of its holders, by host and rank.
  std::span<const Rank> holders(uint32_t shard) const { return holders_[shard]; }
  bool is_partition() const { return placement_->is_partition; }
  // The boxes that nobody has any more.
  Result<std::vector<Box>> gone(const Box& whole_tensor) const;

 private:
  const Placement* placement_;
  std::vector<std::vector<Rank>> holders_;
  bool is_any_gone_ = false;           // some shard has no holder left
  uint32_t dim_ = 0;                   // the dimension by which shards are found
  std::vector<uint32_t> order_;        // shards, by where they begin in it
  std::vector<uint64_t> begins_;       // of each in this order
  std::vector<uint64_t> ends_so_far_;  // the largest end of those up to each
};

// A box that lies in one shard of the new placement, and in the given shards of the old one.
struct Cut {
  uint32_t target = 0;
  Box box = {};
  std::vector<uint32_t> sources = {};
};

struct CutList {
  std::vector<Cut> cuts = {};     // disjoint within each target; they cover what is not gone
  uint64_t held_elements = 0;     // of all new ranks together
  uint64_t missing_elements = 0;  // of these: not on the same process before
};

// `members` maps new ranks to old ones, as in the plan; those that are lost count as newcomers.
Result<CutList> cut(const Source& source, const Placement& target, const Givers& givers,
                    std::span<const Rank> members);

}  // namespace pliant::tensor
