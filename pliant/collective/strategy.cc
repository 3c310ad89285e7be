#include "pliant/collective/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <utility>

namespace pliant {
namespace {

using Kind = Strategy::Kind;

constexpr std::array<std::pair<std::string_view, Kind>, 12> kNames = {{
    {"auto", Kind::kAuto},
    {"direct", Kind::kDirect},
    {"star", Kind::kStar},
    {"multi_star", Kind::kMultiStar},
    {"clique", Kind::kClique},
    {"exchange", Kind::kExchange},
    {"doubling", Kind::kDoubling},
    {"ring", Kind::kRing},
    {"tree", Kind::kTree},
    {"binary_tree", Kind::kBinaryTree},
    {"binary_tree_star", Kind::kBinaryTreeStar},
    {"multi_binary_tree_star", Kind::kMultiBinaryTreeStar},
}};
constexpr std::string_view kHierarchical = "hierarchical:";
constexpr std::string_view kExplicitTree = "tree:";

Error unknown(std::string_view text) {
  return invalid(fmt::format("unknown strategy '{}'; known are {}", text, strategy_names()));
}

Result<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0)
    return invalid(fmt::format("'{}' is no rank", text));
  return value;
}

Result<Strategy> parse_explicit(std::string_view list) {
  Strategy strategy;
  strategy.kind = Kind::kExplicit;
  while (true) {
    const size_t comma = list.find(',');
    const auto parent = parse_number(list.substr(0, comma));
    if (!parent) return invalid(fmt::format("strategy tree: {}", parent.error().message));
    strategy.parents.push_back(*parent);
    if (comma == std::string_view::npos) return strategy;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string strategy_names() {
  std::string names;
  for (const auto& [name, kind] : kNames) names += std::string(name) + ", ";
  return names + "star@RANK, tree:PARENT,PARENT,... and hierarchical:STRATEGY";
}

Result<Strategy> parse_strategy(std::string_view text) {
  if (text.starts_with(kHierarchical)) {
    auto inner = parse_strategy(text.substr(kHierarchical.size()));
    if (!inner) return inner;
    if (inner->hierarchical || inner->kind == Kind::kAuto || inner->kind == Kind::kDirect)
      return unknown(text);
    inner->hierarchical = true;
    return inner;
  }
  if (text.starts_with(kExplicitTree)) return parse_explicit(text.substr(kExplicitTree.size()));
  const size_t at = text.find('@');
  for (const auto& [name, kind] : kNames) {
    if (name != text.substr(0, at)) continue;
    Strategy strategy{.kind = kind, .hierarchical = false, .root = 0, .parents = {}};
    if (at == std::string_view::npos) return strategy;
    const auto root = parse_number(text.substr(at + 1));
    if (!root || (kind != Kind::kStar && kind != Kind::kBinaryTree)) return unknown(text);
    strategy.root = *root;
    return strategy;
  }
  return unknown(text);
}

std::string to_string(const Strategy& strategy) {
  std::string text = strategy.hierarchical ? std::string(kHierarchical) : "";
  if (strategy.kind == Kind::kExplicit)
    return text + fmt::format("{}{}", kExplicitTree, fmt::join(strategy.parents, ","));
  for (const auto& [name, kind] : kNames)
    if (kind == strategy.kind) text += name;
  if (strategy.root != 0) text += fmt::format("@{}", strategy.root);
  return text;
}

Status check_strategy(const Strategy& strategy, const Group& group) {
  const int nodes = strategy.hierarchical ? group.hosts : group.size();
  if (strategy.kind == Kind::kDirect && !group.one_host())
    return invalid(
        fmt::format("strategy direct works inside one host; this group has {} hosts", group.hosts));
  if (strategy.root >= nodes)
    return invalid(fmt::format("strategy {}: there is no rank {} among {}", to_string(strategy),
                               strategy.root, nodes));
  if (strategy.kind != Kind::kExplicit) return {};
  if (static_cast<int>(strategy.parents.size()) != nodes)
    return invalid(fmt::format("strategy {} names {} parents for {} ranks", to_string(strategy),
                               strategy.parents.size(), nodes));
  int roots = 0;
  for (int node = 0; node < nodes; ++node) {
    int at = node;
    // A path to the root has fewer edges than there are nodes; a longer one runs in a circle.
    for (int hops = 0; strategy.parents[static_cast<size_t>(at)] != at; ++hops) {
      at = strategy.parents[static_cast<size_t>(at)];
      if (at >= nodes || hops >= nodes)
        return invalid(
            fmt::format("strategy {}: rank {} does not reach the root", to_string(strategy), node));
    }
    roots += at == node ? 1 : 0;
  }
  if (roots != 1)
    return invalid(
        fmt::format("strategy {} has {} roots; a tree has one", to_string(strategy), roots));
  return {};
}

// ---- Trees ------------------------------------------------------------------------------------

namespace {

int size_of(const std::vector<int>& host_of) { return static_cast<int>(host_of.size()); }

Tree star(int nodes, int root) {
  return {root, std::vector<int>(static_cast<size_t>(nodes), root)};
}

// The heap 0 -> 1, 2 -> ..., its numbers rotated so that `root` is on top.
Tree heap(int nodes, int root) {
  Tree tree{root, std::vector<int>(static_cast<size_t>(nodes))};
  for (int i = 0; i < nodes; ++i) {
    const int above = i == 0 ? 0 : (i - 1) / 2;
    tree.parent[static_cast<size_t>((i + root) % nodes)] = (above + root) % nodes;
  }
  return tree;
}

// root -> root+1 -> ... -> root-1, as a path to spread along; reversed: to reduce along.
Tree chain(int nodes, int root, int direction) {
  Tree tree{root, std::vector<int>(static_cast<size_t>(nodes))};
  for (int i = 0; i < nodes; ++i)
    tree.parent[static_cast<size_t>(i)] = i == root ? root : (i + direction + nodes) % nodes;
  return tree;
}

// The first node of every host; `root` stands for its own host.
std::vector<int> masters_of(const std::vector<int>& host_of, int root) {
  const int hosts = 1 + *std::max_element(host_of.begin(), host_of.end());
  std::vector<int> masters(static_cast<size_t>(hosts), -1);
  for (int node = size_of(host_of) - 1; node >= 0; --node)
    masters[static_cast<size_t>(host_of[static_cast<size_t>(node)])] = node;
  masters[static_cast<size_t>(host_of[static_cast<size_t>(root)])] = root;
  return masters;
}

// A star inside each host under its master, and `over_hosts` between the masters.
Tree over_masters(const std::vector<int>& host_of, const std::vector<int>& masters,
                  const Tree& over_hosts) {
  Tree tree{masters[static_cast<size_t>(over_hosts.root)], std::vector<int>(host_of.size())};
  for (size_t node = 0; node < host_of.size(); ++node)
    tree.parent[node] = masters[static_cast<size_t>(host_of[node])];
  for (size_t host = 0; host < masters.size(); ++host)
    tree.parent[static_cast<size_t>(masters[host])] =
        masters[static_cast<size_t>(over_hosts.parent[host])];
  return tree;
}

Tree reroot(const std::vector<int>& parents, int root) {
  Tree tree{root, parents};
  int child = root;
  int at = parents[static_cast<size_t>(root)];
  tree.parent[static_cast<size_t>(root)] = root;
  while (at != child) {
    const int above = parents[static_cast<size_t>(at)];
    tree.parent[static_cast<size_t>(at)] = child;
    if (above == at) break;
    child = at;
    at = above;
  }
  return tree;
}

int host_count(const std::vector<int>& host_of) {
  return 1 + *std::max_element(host_of.begin(), host_of.end());
}

}  // namespace

Tree tree_rooted_at(const Strategy& strategy, const std::vector<int>& host_of, int root) {
  const int nodes = size_of(host_of);
  const int root_host = host_of[static_cast<size_t>(root)];
  if (strategy.hierarchical) {
    Strategy between = strategy;
    between.hierarchical = false;
    std::vector<int> hosts(static_cast<size_t>(host_count(host_of)));
    std::iota(hosts.begin(), hosts.end(), 0);
    return over_masters(host_of, masters_of(host_of, root),
                        tree_rooted_at(between, hosts, root_host));
  }
  switch (strategy.kind) {
    case Kind::kRing: return chain(nodes, root, -1);
    case Kind::kBinaryTree: return heap(nodes, root);
    case Kind::kTree:
    case Kind::kMultiStar:
      return over_masters(host_of, masters_of(host_of, root), star(host_count(host_of), root_host));
    case Kind::kBinaryTreeStar:
    case Kind::kMultiBinaryTreeStar:
      return over_masters(host_of, masters_of(host_of, root), heap(host_count(host_of), root_host));
    case Kind::kExplicit: return reroot(strategy.parents, root);
    default: return star(nodes, root);
  }
}

std::vector<TreePair> tree_pairs(const Strategy& strategy, const std::vector<int>& host_of) {
  const int nodes = size_of(host_of);
  const auto same = [](const Tree& tree) { return TreePair{tree, tree}; };
  std::vector<TreePair> pairs;
  switch (strategy.kind) {
    case Kind::kRing:
      for (int root = 0; root < nodes; ++root)
        pairs.push_back({chain(nodes, root, +1), chain(nodes, root, -1)});
      return pairs;
    case Kind::kClique:
      for (int root = 0; root < nodes; ++root) pairs.push_back(same(star(nodes, root)));
      return pairs;
    case Kind::kMultiStar:
    case Kind::kMultiBinaryTreeStar:
      for (const int master : masters_of(host_of, 0))
        pairs.push_back(same(tree_rooted_at(strategy, host_of, master)));
      return pairs;
    case Kind::kExplicit: {
      const auto at = std::find_if(strategy.parents.begin(), strategy.parents.end(),
                                   [&, node = 0](int parent) mutable { return parent == node++; });
      const int root = static_cast<int>(at - strategy.parents.begin());
      return {same({root, strategy.parents})};
    }
    default: return {same(tree_rooted_at(strategy, host_of, strategy.root))};
  }
}

}  // namespace pliant
