// Turns a strategy into the steps of one rank.
#include <algorithm>
#include <bit>
#include <numeric>

#include "pliant/base/check.h"
#include "pliant/collective/channel.h"
#include "pliant/collective/route.h"
#include "pliant/collective/strategy.h"

namespace pliant {
namespace {

using Kind = Action::Kind;

std::vector<Rank> children_of(const Tree& tree, int node) {
  std::vector<Rank> children;
  for (int i = 0; i < static_cast<int>(tree.parent.size()); ++i)
    if (i != tree.root && tree.parent[static_cast<size_t>(i)] == node) children.push_back(i);
  return children;
}

bool is_leaf(const Tree& tree, int node) { return children_of(tree, node).empty(); }

Action send(Buffer from, Phase phase, std::vector<Rank> peers) {
  return {.kind = Kind::kSend,
          .phase = phase,
          .from = from,
          .into = Buffer::kPartial,
          .peers = std::move(peers),
          .ordered = false,
          .partial = {}};
}
Action receive(Rank peer) {
  return {.kind = Kind::kReceive,
          .phase = Phase::kDown,
          .from = Buffer::kInput,
          .into = Buffer::kOutput,
          .peers = {peer},
          .ordered = false,
          .partial = {}};
}
Action plain(Kind kind) {
  return {.kind = kind,
          .phase = Phase::kUp,
          .from = Buffer::kInput,
          .into = Buffer::kPartial,
          .peers = {},
          .ordered = false,
          .partial = {}};
}

// Partial results flow to the root; `own` is what this node starts from.
void reduce_up(std::vector<Action>& steps, const Tree& tree, int node, Buffer own) {
  const auto children = children_of(tree, node);
  const bool root = node == tree.root;
  Buffer mine = own;
  if (!children.empty() || (root && own == Buffer::kPartial)) {
    Action step = plain(Kind::kReduce);
    step.from = own;
    step.into = root ? Buffer::kOutput : Buffer::kPartial;
    step.peers = children;
    for (const Rank child : children)
      step.partial.push_back(own == Buffer::kPartial || !is_leaf(tree, child));
    steps.push_back(std::move(step));
    mine = Buffer::kPartial;
  } else if (root) {
    steps.push_back(plain(Kind::kCopy));
  }
  if (!root) steps.push_back(send(mine, Phase::kUp, {tree.parent[static_cast<size_t>(node)]}));
}

// The result flows from the root, which has it in `from`.
void spread_down(std::vector<Action>& steps, const Tree& tree, int node, Buffer from) {
  const bool root = node == tree.root;
  if (!root) steps.push_back(receive(tree.parent[static_cast<size_t>(node)]));
  if (auto children = children_of(tree, node); !children.empty())
    steps.push_back(send(root ? from : Buffer::kOutput, Phase::kDown, std::move(children)));
  if (root && from == Buffer::kInput) steps.push_back(plain(Kind::kCopy));
}

// One hop: each of `ranks` sends what it has to the others, and all combine in the same order.
void exchange(std::vector<Action>& steps, std::vector<Rank> ranks, Rank self, Buffer own) {
  std::erase(ranks, self);
  std::sort(ranks.begin(), ranks.end());
  if (!ranks.empty()) steps.push_back(send(own, Phase::kUp, ranks));
  Action step = plain(Kind::kReduce);
  step.from = own;
  step.into = Buffer::kOutput;
  step.ordered = true;
  step.partial.assign(ranks.size(), own == Buffer::kPartial);
  step.peers = std::move(ranks);
  steps.push_back(std::move(step));
}

// What `peer` has is added to what this rank has, in the order of ranks, so that two partners who
// do this with each other have the same bits.
Action combine(Buffer from, Buffer into, Rank peer, bool peer_sends_partial) {
  Action step = plain(Kind::kReduce);
  step.from = from;
  step.into = into;
  step.ordered = true;
  step.peers = {peer};
  step.partial = {peer_sends_partial};
  return step;
}

// Partners exchange what they have, then pairs of pairs, and so on. Those beyond a power of two
// give theirs to one below it, and get the result from there. In the order of ranks: what the lower
// half of a round has then stands before what the upper half has, for each of its pairs alike.
void doubling(std::vector<Action>& steps, std::vector<Rank> ranks, Rank self, Buffer own) {
  std::sort(ranks.begin(), ranks.end());
  const auto node =
      static_cast<size_t>(std::find(ranks.begin(), ranks.end(), self) - ranks.begin());
  const size_t core = std::bit_floor(ranks.size());
  const size_t beyond = ranks.size() - core;
  if (ranks.size() == 1) {
    Action step = plain(own == Buffer::kPartial ? Kind::kReduce : Kind::kCopy);
    step.from = own;
    step.into = Buffer::kOutput;
    return steps.push_back(std::move(step));
  }
  if (node >= core) {
    steps.push_back(send(own, Phase::kUp, {ranks[node - core]}));
    return steps.push_back(receive(ranks[node - core]));
  }
  Buffer mine = own;
  if (node < beyond) {
    steps.push_back(combine(mine, Buffer::kPartial, ranks[node + core], own == Buffer::kPartial));
    mine = Buffer::kPartial;
  }
  for (size_t apart = 1; apart < core; apart *= 2) {
    const size_t partner = node ^ apart;
    const bool last = 2 * apart == core;
    const bool sends_partial = own == Buffer::kPartial || apart > 1 || partner < beyond;
    steps.push_back(send(mine, Phase::kUp, {ranks[partner]}));
    steps.push_back(
        combine(mine, last ? Buffer::kOutput : Buffer::kPartial, ranks[partner], sends_partial));
    mine = Buffer::kPartial;
  }
  if (node < beyond) steps.push_back(send(Buffer::kOutput, Phase::kDown, {ranks[node + core]}));
}

// One message from `source` to `target`, or a local copy if they are the same.
void move_one(std::vector<Action>& steps, Rank self, Rank source, Rank target) {
  if (source == target && self == source) {
    steps.push_back(plain(Kind::kCopy));
  } else if (self == source) {
    steps.push_back(send(Buffer::kInput, Phase::kDown, {target}));
  } else if (self == target) {
    steps.push_back(receive(source));
  }
}

// Relabels a tree over places as one over ranks is needed nowhere but here: the steps' peers.
void name_peers(std::vector<Action>& steps, const std::vector<Rank>& rank_of_node) {
  for (Action& step : steps)
    for (Rank& peer : step.peers) peer = rank_of_node[static_cast<size_t>(peer)];
}

// Where a block stands and, on one host, who hands it out and who gets it.
struct Cut {
  std::vector<Block> blocks;
  std::vector<Rank> source;  // of each block; -1: everyone contributes to a sum
  std::vector<Rank> target;  // of each block; -1: everyone gets it
};

void add_block(Cut& cut, size_t input, size_t output, size_t count, Rank source, Rank target) {
  Block block;
  block.input_offset = input;
  block.output_offset = output;
  block.count = count;
  cut.blocks.push_back(std::move(block));
  cut.source.push_back(source);
  cut.target.push_back(target);
}

// The blocks that the meaning of a collective asks for; an all-reduce is cut by its strategy.
Cut cut_by_meaning(const Signature& signature, const Group& group) {
  Cut cut;
  const Rank n = group.size();
  const Rank root = signature.root;
  size_t offset = 0;
  switch (signature.collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier: add_block(cut, 0, 0, signature.count, -1, -1); break;
    case Collective::kReduce: add_block(cut, 0, 0, signature.count, -1, root); break;
    case Collective::kBroadcast: add_block(cut, 0, 0, signature.count, root, -1); break;
    case Collective::kAllGather:
    case Collective::kGather:
      for (Rank r = 0; r < n; offset += signature.block_count(r++))
        add_block(cut, 0, offset, signature.block_count(r), r,
                  signature.collective == Collective::kGather ? root : -1);
      break;
    case Collective::kScatter:
    case Collective::kReduceScatter:
      for (Rank r = 0; r < n; offset += signature.block_count(r++))
        add_block(cut, offset, 0, signature.block_count(r),
                  signature.collective == Collective::kScatter ? root : -1, r);
      break;
    case Collective::kAllToAll:
      for (Rank shift = 0; shift < n; ++shift)
        for (Rank r = 0; r < n; ++r) {
          const Rank to = (r + shift) % n;
          add_block(cut, static_cast<size_t>(to) * signature.count,
                    static_cast<size_t>(r) * signature.count, signature.count, r, to);
        }
      break;
    case Collective::kSend: add_block(cut, 0, 0, signature.count, group.self, root); break;
    case Collective::kReceive: add_block(cut, 0, 0, signature.count, root, group.self); break;
  }
  return cut;
}

std::vector<Block> direct_blocks(const Signature& signature, const Group& group) {
  Cut cut = cut_by_meaning(signature, group);
  for (size_t i = 0; i < cut.blocks.size(); ++i) {
    HostPart& host = cut.blocks[i].host;
    host.reduce = cut.source[i] < 0;
    host.receiver = cut.target[i] < 0 ? HostPart::kEveryone : cut.target[i];
    host.reducer = !host.reduce        ? cut.source[i]
                   : cut.target[i] < 0 ? HostPart::kAnyone
                                       : cut.target[i];
    cut.blocks[i].steps = {plain(Kind::kHostReduce), plain(Kind::kHostDeliver)};
  }
  return std::move(cut.blocks);
}

std::vector<Block> flat_blocks(const Signature& signature, const Group& group,
                               const Strategy& strategy) {
  const Rank self = group.self;
  if (signature.collective == Collective::kAllReduce ||
      signature.collective == Collective::kBarrier) {
    if (strategy.kind == Strategy::Kind::kExchange || strategy.kind == Strategy::Kind::kDoubling) {
      Block block;
      block.count = signature.count;
      std::vector<Rank> everybody(static_cast<size_t>(group.size()));
      std::iota(everybody.begin(), everybody.end(), 0);
      if (strategy.kind == Strategy::Kind::kDoubling) {
        doubling(block.steps, std::move(everybody), self, Buffer::kInput);
      } else {
        exchange(block.steps, std::move(everybody), self, Buffer::kInput);
      }
      return {block};
    }
    const auto pairs = tree_pairs(strategy, group.host_of);
    std::vector<Block> blocks(pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      const Split part = split(signature.count, pairs.size(), i);
      blocks[i].input_offset = blocks[i].output_offset = part.offset;
      blocks[i].count = part.count;
      reduce_up(blocks[i].steps, pairs[i].up, self, Buffer::kInput);
      spread_down(blocks[i].steps, pairs[i].down, self, Buffer::kOutput);
    }
    return blocks;
  }
  Cut cut = cut_by_meaning(signature, group);
  for (size_t i = 0; i < cut.blocks.size(); ++i) {
    std::vector<Action>& steps = cut.blocks[i].steps;
    if (cut.source[i] < 0) {
      reduce_up(steps, tree_rooted_at(strategy, group.host_of, cut.target[i]), self,
                Buffer::kInput);
    } else if (cut.target[i] < 0) {
      spread_down(steps, tree_rooted_at(strategy, group.host_of, cut.source[i]), self,
                  Buffer::kInput);
    } else {
      move_one(steps, self, cut.source[i], cut.target[i]);
    }
  }
  return std::move(cut.blocks);
}

// An all-reduce in three stages: inside each host one member reduces the block (HostReduce), those
// members exchange it, each hands it out on its host (HostDeliver). The blocks go round over the
// members of a host, so that all of them carry traffic.
std::vector<Block> hierarchical_blocks(const Signature& signature, const Group& group,
                                       const Strategy& strategy) {
  const auto members = members_by_host(group);
  const size_t carriers = most_members(group);
  std::vector<int> hosts(members.size());
  for (size_t h = 0; h < hosts.size(); ++h) hosts[h] = static_cast<int>(h);

  const auto pairs = tree_pairs(strategy, hosts);
  const int my_host = group.host(group.self);
  std::vector<Block> blocks(pairs.size() * carriers);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const TreePair& pair = pairs[i % pairs.size()];
    std::vector<Rank> carrier_of_host;
    for (const auto& host : members)
      carrier_of_host.push_back(host[(i / pairs.size()) % host.size()]);
    Block& block = blocks[i];
    const Split part = split(signature.count, blocks.size(), i);
    block.input_offset = block.output_offset = part.offset;
    block.count = part.count;
    block.host = {.reduce = true,
                  .reducer = carrier_of_host[static_cast<size_t>(my_host)],
                  .receiver = HostPart::kEveryone};
    block.steps.push_back(plain(Kind::kHostReduce));
    if (block.host.reducer == group.self) {
      std::vector<Action> between;
      if (strategy.kind == Strategy::Kind::kExchange) {
        exchange(between, carrier_of_host, group.self, Buffer::kPartial);
      } else if (strategy.kind == Strategy::Kind::kDoubling) {
        doubling(between, carrier_of_host, group.self, Buffer::kPartial);
      } else {
        reduce_up(between, pair.up, my_host, Buffer::kPartial);
        spread_down(between, pair.down, my_host, Buffer::kOutput);
        name_peers(between, carrier_of_host);
      }
      for (Action& step : between) block.steps.push_back(std::move(step));
    }
    block.steps.push_back(plain(Kind::kHostDeliver));
  }
  return blocks;
}

// Nodes between the root and the leaf that is furthest from it, both counted.
size_t height_of(const Tree& tree) {
  size_t highest = 0;
  for (int leaf = 0; leaf < static_cast<int>(tree.parent.size()); ++leaf) {
    size_t height = 1;
    for (int node = leaf; node != tree.root; node = tree.parent[static_cast<size_t>(node)])
      ++height;
    highest = std::max(highest, height);
  }
  return highest;
}

// For an all-reduce by messages: enough to keep all hops of the way up and down busy, and the links
// between hosts, which have a latency; and no more. Each message is copied twice, which takes half
// as long again when what is on its way no longer fits the caches. `blocks`: those that one rank
// carries.
size_t lanes_in_flight(const Signature& signature, const Group& group, const CallPlan& plan,
                       size_t blocks) {
  constexpr size_t kByBytesMax = 64;
  const Route route = routes_of(signature, group, plan.strategy).front();
  const size_t by_hops = 2 * std::max({blocks, height_of(route.up), height_of(route.down)});
  if (group.one_host()) return by_hops;
  const size_t by_bytes =
      plan.in_flight_bytes / (most_members(group) * std::max<size_t>(plan.chunk_bytes, 1));
  return std::max(by_hops, std::min(by_bytes, kByBytesMax));
}

}  // namespace

Schedule make_schedule(const Signature& signature, const Group& group, const CallPlan& plan) {
  const Strategy& strategy = plan.strategy;
  PLIANT_CHECK(strategy.kind != Strategy::Kind::kAuto, "auto is resolved before");
  Schedule schedule;
  const bool reduces_everywhere = signature.collective == Collective::kAllReduce ||
                                  signature.collective == Collective::kBarrier;
  const bool pair_of_ranks = is_pair(signature.collective);
  const bool staged = strategy.hierarchical && reduces_everywhere;
  // With a single host there is nothing to exchange between hosts.
  if ((strategy.kind == Strategy::Kind::kDirect && !pair_of_ranks) ||
      (staged && group.one_host())) {
    schedule.on_host = true;
    schedule.blocks = direct_blocks(signature, group);
  } else if (staged) {
    schedule.on_host = true;
    schedule.blocks = hierarchical_blocks(signature, group, strategy);
  } else {
    schedule.blocks = flat_blocks(signature, group, strategy);
  }
  const bool by_messages = !schedule.on_host || !group.one_host();
  const size_t carriers = staged ? most_members(group) : 1;
  schedule.in_flight =
      reduces_everywhere && by_messages
          ? lanes_in_flight(signature, group, plan, schedule.blocks.size() / carriers)
          : kStageSlots;
  const size_t members = std::max<size_t>(group.local.size(), 1);
  schedule.workers = std::clamp<size_t>(static_cast<size_t>(std::max(plan.cores, 1)), 1, members);
  schedule.chunk_elements = std::max<size_t>(1, plan.chunk_bytes / size_of(signature.dtype));
  size_t longest = 0;
  for (const Block& block : schedule.blocks) longest = std::max(longest, block.count);
  schedule.chunks = (longest + schedule.chunk_elements - 1) / schedule.chunk_elements;
  return schedule;
}

}  // namespace pliant
