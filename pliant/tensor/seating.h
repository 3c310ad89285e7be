// Inside of plan.h: which process becomes which new rank, so that much of what it has can stay in
// place. A process never changes its host; but which machine is the n-th host of the new layout is
// as free as which process is the n-th rank there. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan_cuts.h"

namespace pliant::tensor {

struct Seating {
  std::vector<Rank> members = {};    // of each new rank: its old rank, or kNewcomer
  std::vector<uint32_t> hosts = {};  // of each new rank, in the numbers of the old layout
};

// Larger changes keep their ranks: the table of who has what of whom would not fit.
inline constexpr uint64_t kSeatingPairsMax = uint64_t{1} << 23;

// Hosts that belong together are found greedily, by what their ranks have in common, then the ranks
// of each in the same way. `old_tensors`: of each tensor of the new layout, its number in the old.
Seating choose_seating(const Layout& from, const Layout& to, std::span<const size_t> old_tensors,
                       const Givers& givers);

}  // namespace pliant::tensor
