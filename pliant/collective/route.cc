#include "pliant/collective/route.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace pliant {
namespace {

std::vector<Rank> all_ranks(const Group& group) {
  std::vector<Rank> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// One message, as the smallest tree there is.
Route one_message(size_t count, Rank source, Rank target) {
  if (source == target) return {.count = count, .up = {}, .down = {0, {0}}, .ranks = {source}};
  return {.count = count, .up = {}, .down = {0, {0, 0}}, .ranks = {source, target}};
}

// Everybody spreads its own to all others.
void add_exchange(std::vector<Route>& routes, size_t count, const std::vector<Rank>& ranks) {
  for (int root = 0; root < static_cast<int>(ranks.size()); ++root)
    routes.push_back({.count = count,
                      .up = {},
                      .down = {root, std::vector<int>(ranks.size(), root)},
                      .ranks = ranks});
}

// Partners exchange what they have; those beyond a power of two give theirs away before, and get
// the result after.
void add_doubling(std::vector<Route>& routes, size_t count, const std::vector<Rank>& ranks) {
  if (ranks.size() == 1) return routes.push_back(one_message(count, ranks[0], ranks[0]));
  const size_t core = std::bit_floor(ranks.size());
  const auto add = [&](size_t from, size_t to, int round) {
    routes.push_back(one_message(count, ranks[from], ranks[to]));
    routes.back().round = round;
  };
  int round = 0;
  for (size_t node = core; node < ranks.size(); ++node) add(node, node - core, round);
  for (size_t apart = 1; apart < core; apart *= 2) {
    ++round;
    for (size_t node = 0; node < core; ++node) add(node, node ^ apart, round);
  }
  ++round;
  for (size_t node = core; node < ranks.size(); ++node) add(node - core, node, round);
}

// Those of several blocks at once: the rounds of all begin together.
std::vector<Route> by_round(std::vector<Route> routes) {
  std::stable_sort(routes.begin(), routes.end(),
                   [](const Route& left, const Route& right) { return left.round < right.round; });
  return routes;
}

// The blocks of an all-reduce go round over the members of each host.
std::vector<Route> staged_routes(const Signature& signature, const Group& group,
                                 const Strategy& strategy) {
  const auto members = members_by_host(group);
  const size_t carriers = most_members(group);
  std::vector<int> hosts(members.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  if (strategy.kind == Strategy::Kind::kExchange || strategy.kind == Strategy::Kind::kDoubling) {
    const auto add = strategy.kind == Strategy::Kind::kExchange ? add_exchange : add_doubling;
    std::vector<Route> routes;
    for (size_t carrier = 0; carrier < carriers; ++carrier) {
      std::vector<Rank> ranks;
      for (const auto& host : members) ranks.push_back(host[carrier % host.size()]);
      add(routes, split(signature.count, carriers, carrier).count, ranks);
    }
    return by_round(std::move(routes));
  }
  const auto pairs = tree_pairs(strategy, hosts);
  std::vector<Route> routes(pairs.size() * carriers);
  for (size_t i = 0; i < routes.size(); ++i) {
    const TreePair& pair = pairs[i % pairs.size()];
    routes[i] = {.count = split(signature.count, routes.size(), i).count,
                 .up = pair.up,
                 .down = pair.down,
                 .ranks = {}};
    for (const auto& host : members)
      routes[i].ranks.push_back(host[(i / pairs.size()) % host.size()]);
  }
  return routes;
}

std::vector<Route> all_reduce_routes(const Signature& signature, const Group& group,
                                     const Strategy& strategy) {
  std::vector<Route> routes;
  if (strategy.kind == Strategy::Kind::kExchange) {
    add_exchange(routes, signature.count, all_ranks(group));
    return routes;
  }
  if (strategy.kind == Strategy::Kind::kDoubling) {
    add_doubling(routes, signature.count, all_ranks(group));
    return routes;
  }
  const auto pairs = tree_pairs(strategy, group.host_of);
  for (size_t i = 0; i < pairs.size(); ++i)
    routes.push_back({.count = split(signature.count, pairs.size(), i).count,
                      .up = pairs[i].up,
                      .down = pairs[i].down,
                      .ranks = all_ranks(group)});
  return routes;
}

}  // namespace

std::vector<std::vector<Rank>> members_by_host(const Group& group) {
  std::vector<std::vector<Rank>> members(static_cast<size_t>(group.hosts));
  for (Rank rank = 0; rank < group.size(); ++rank)
    members[static_cast<size_t>(group.host(rank))].push_back(rank);
  return members;
}

size_t most_members(const Group& group) {
  size_t most = 0;
  for (const auto& host : members_by_host(group)) most = std::max(most, host.size());
  return most;
}

bool in_stages(const Signature& signature, const Strategy& strategy) {
  return strategy.hierarchical && (signature.collective == Collective::kAllReduce ||
                                   signature.collective == Collective::kBarrier);
}

std::vector<Route> routes_of(const Signature& signature, const Group& group,
                             const Strategy& strategy) {
  const auto reduce_to = [&](size_t count, Rank root) -> Route {
    return {count, tree_rooted_at(strategy, group.host_of, root), {}, all_ranks(group)};
  };
  const auto spread_from = [&](size_t count, Rank root) -> Route {
    return {count, {}, tree_rooted_at(strategy, group.host_of, root), all_ranks(group)};
  };
  std::vector<Route> routes;
  switch (signature.collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier:
      return in_stages(signature, strategy) ? staged_routes(signature, group, strategy)
                                            : all_reduce_routes(signature, group, strategy);
    case Collective::kReduce: return {reduce_to(signature.count, signature.root)};
    case Collective::kBroadcast: return {spread_from(signature.count, signature.root)};
    case Collective::kSend: return {one_message(signature.count, group.self, signature.root)};
    case Collective::kReceive: return {one_message(signature.count, signature.root, group.self)};
    default: break;
  }
  for (Rank r = 0; r < group.size(); ++r) {
    const size_t count = signature.block_count(r);
    switch (signature.collective) {
      case Collective::kAllGather: routes.push_back(spread_from(count, r)); break;
      case Collective::kReduceScatter: routes.push_back(reduce_to(count, r)); break;
      case Collective::kGather: routes.push_back(one_message(count, r, signature.root)); break;
      case Collective::kScatter: routes.push_back(one_message(count, signature.root, r)); break;
      default:  // all_to_all
        for (Rank to = 0; to < group.size(); ++to)
          routes.push_back(one_message(signature.count, r, to));
    }
  }
  return routes;
}

}  // namespace pliant
