// Strategies: over which trees a collective runs. Pure; any thread.
//
// A strategy is written as text: star, star@R (root R), multi_star, clique, exchange (one hop: all
// send their input to all; for all-reduces of little data), doubling (partners exchange what they
// have, then pairs of pairs, and so on; likewise), ring, tree, binary_tree, binary_tree_star,
// multi_binary_tree_star, tree:P0,P1,... (any explicit tree: each rank's parent; the root is its
// own), direct (shared memory; one host), hierarchical:S (shared memory inside each host, strategy
// S between hosts), and auto. docs/STRATEGIES.md draws them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/collective/group.h"
#include "pliant/collective/schedule.h"

namespace pliant {

struct Strategy {
  enum class Kind : uint8_t {
    kAuto,
    kDirect,
    kStar,
    kMultiStar,
    kClique,
    kExchange,
    kDoubling,
    kRing,
    kTree,
    kBinaryTree,
    kBinaryTreeStar,
    kMultiBinaryTreeStar,
    kExplicit,
  };
  Kind kind = Kind::kAuto;
  bool hierarchical = false;  // `kind` is between hosts only
  int root = 0;               // kStar, kBinaryTree: the root's rank (host, if hierarchical)
  std::vector<Rank> parents;  // kExplicit

  bool operator==(const Strategy&) const = default;
};

Result<Strategy> parse_strategy(std::string_view text);
std::string to_string(const Strategy& strategy);
// The names that parse_strategy takes, for help texts: "auto, direct, star, ...".
std::string strategy_names();

// An error if the strategy cannot run over this group (an explicit tree of another size, or with a
// cycle; `direct` over several hosts).
Status check_strategy(const Strategy& strategy, const Group& group);

// A rooted tree over n nodes: parent[root] == root.
struct Tree {
  int root = 0;
  std::vector<int> parent;
};
// One way to reduce and one to spread the result; both have the same root.
struct TreePair {
  Tree up;
  Tree down;
};

// The pairs over which the blocks of an all-reduce are spread. `host_of` has one entry a node.
std::vector<TreePair> tree_pairs(const Strategy& strategy, const std::vector<int>& host_of);
// The tree for an operation with a given root.
Tree tree_rooted_at(const Strategy& strategy, const std::vector<int>& host_of, int root);

// What a schedule depends on, besides group and strategy.
struct Signature {
  Collective collective = Collective::kAllReduce;
  size_t count = 0;
  DType dtype = DType::kF32;
  Rank root = 0;
  std::vector<size_t> counts;
  bool plain_plan = false;  // Operation::plain_plan

  size_t block_count(Rank rank) const {
    return counts.empty() ? count : counts[static_cast<size_t>(rank)];
  }
  bool operator==(const Signature&) const = default;
};

// How to run an operation: decided by policy, equal on all ranks.
struct CallPlan {
  Strategy strategy;
  size_t chunk_bytes = size_t{256} << 10;  // at most
  int cores = 1;                           // processes of one host that can work at once
  // What the members of a host have on the way to other hosts at once: as much as keeps the links
  // busy. More would only push each other out of the caches.
  size_t in_flight_bytes = size_t{1536} << 10;
};

// The schedule of the group's own rank. The plan's strategy is not kAuto and was checked.
Schedule make_schedule(const Signature& signature, const Group& group, const CallPlan& plan);

}  // namespace pliant
