// The clusters and strategies that the tests of the collectives go through.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/collective/operation.h"

namespace pliant {

// The host of every rank.
inline std::vector<uint32_t> one_host(Rank ranks) {
  return std::vector<uint32_t>(static_cast<size_t>(ranks), 0);
}
// 0 0 1 1 2 2 ...
inline std::vector<uint32_t> in_pairs(Rank ranks) {
  std::vector<uint32_t> hosts;
  for (Rank rank = 0; rank < ranks; ++rank) hosts.push_back(static_cast<uint32_t>(rank) / 2);
  return hosts;
}
// 2 0 1 2 0 1 ..., and a host of its own for the last.
inline std::vector<uint32_t> scattered(Rank ranks) {
  std::vector<uint32_t> hosts;
  for (Rank rank = 0; rank < ranks; ++rank)
    hosts.push_back(static_cast<uint32_t>(rank == ranks - 1 ? 3 : (rank + 2) % 3));
  return hosts;
}

// A tree of no particular shape: the root in the middle, parents nearer to it.
inline std::string some_tree(int nodes) {
  const int root = nodes / 2;
  std::vector<int> parents;
  for (int node = 0; node < nodes; ++node) {
    const int nearer = node < root ? (node + root + 1) / 2 : root + (node - root) / 2;
    parents.push_back(node == root ? root : nearer);
  }
  return fmt::format("tree:{}", fmt::join(parents, ","));
}

// Every strategy that can run over these hosts.
inline std::vector<std::string> strategies_over(const std::vector<uint32_t>& hosts) {
  const int ranks = static_cast<int>(hosts.size());
  const int host_count = static_cast<int>(std::set(hosts.begin(), hosts.end()).size());
  std::vector<std::string> all;
  for (const bool hierarchical : {false, true}) {
    const std::string prefix = hierarchical ? "hierarchical:" : "";
    const int nodes = hierarchical ? host_count : ranks;
    for (const char* name : {"star", "multi_star", "clique", "exchange", "doubling", "ring", "tree",
                             "binary_tree", "binary_tree_star", "multi_binary_tree_star"})
      all.push_back(prefix + name);
    all.push_back(prefix + fmt::format("star@{}", nodes - 1));
    all.push_back(prefix + fmt::format("binary_tree@{}", nodes / 2));
    all.push_back(prefix + some_tree(nodes));
  }
  if (host_count == 1) all.insert(all.begin(), "direct");
  return all;
}

// Sanitizers look for other things than wrong results, and take ten times as long: they get a
// sample of what the other builds go through.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
inline std::vector<std::string> sampled(std::vector<std::string> strategies) {
  if (!kSanitized) return strategies;
  std::vector<std::string> some;
  for (size_t i = 0; i < strategies.size(); i += 4) some.push_back(strategies[i]);
  for (const char* name :
       {"ring", "exchange", "doubling", "hierarchical:ring", "hierarchical:doubling"})
    if (std::find(strategies.begin(), strategies.end(), name) != strategies.end())
      some.push_back(name);
  return some;
}
inline std::vector<Rank> ranks_up_to_17() {
  if (kSanitized) return {1, 2, 3, 5, 8};
  return {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
}

inline constexpr Collective kMoves[] = {Collective::kBroadcast, Collective::kAllGather,
                                        Collective::kGather, Collective::kScatter,
                                        Collective::kAllToAll};
inline constexpr Collective kReductions[] = {Collective::kAllReduce, Collective::kReduce,
                                             Collective::kReduceScatter};
inline constexpr Collective kWithBuffers[] = {
    Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter, Collective::kBroadcast,
    Collective::kAllGather, Collective::kGather, Collective::kScatter,       Collective::kAllToAll};

inline bool takes_counts(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kReduceScatter;
}

// True if every block goes straight from one rank to another, whatever the trees of a strategy.
inline bool ignores_trees(Collective collective) {
  return collective == Collective::kGather || collective == Collective::kScatter ||
         collective == Collective::kAllToAll;
}

}  // namespace pliant
