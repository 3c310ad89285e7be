// Strategies as text and as trees, and every schedule interpreted over plain arrays.
#include "pliant/collective/strategy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "pliant/collective/channel.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

// ---- Text ---------------------------------------------------------------------------------------

TEST(StrategyText, ReadsWhatItWrites) {
  for (const char* text :
       {"auto", "direct", "star", "star@3", "multi_star", "clique", "ring", "tree", "binary_tree",
        "binary_tree@2", "binary_tree_star", "multi_binary_tree_star", "tree:0", "tree:1,1,1,0",
        "hierarchical:ring", "hierarchical:star@1", "hierarchical:tree:0,0"}) {
    const auto strategy = parse_strategy(text);
    ASSERT_TRUE(strategy.ok()) << text << ": " << strategy.error().message;
    EXPECT_EQ(to_string(*strategy), text);
  }
}

TEST(StrategyText, RefusesWhatMeansNothing) {
  for (const char* text : {"",
                           "rings",
                           "Ring",
                           " ring",
                           "ring ",
                           "ring@1",
                           "star@",
                           "star@x",
                           "star@-1",
                           "star@1x",
                           "star@99999999999999999999",
                           "tree:",
                           "tree:0,",
                           "tree:,0",
                           "tree:a",
                           "tree:0,-1",
                           "@1",
                           "hierarchical",
                           "hierarchical:",
                           "hierarchical:auto",
                           "hierarchical:direct",
                           "hierarchical:hierarchical:ring"}) {
    const auto strategy = parse_strategy(text);
    EXPECT_FALSE(strategy.ok()) << "'" << text << "'";
    if (!strategy.ok()) {
      EXPECT_EQ(strategy.code(), Code::kInvalid);
    }
  }
  EXPECT_NE(parse_strategy("rings").error().message.find("multi_star"), std::string::npos)
      << "the error says what there is";
}

Group group_of(const std::vector<uint32_t>& hosts, Rank self) {
  std::vector<PeerId> members;
  for (size_t i = 0; i < hosts.size(); ++i)
    members.push_back({hosts[i], static_cast<uint16_t>(i), 1});
  return make_group(members, members[static_cast<size_t>(self)], Epoch{1});
}

TEST(StrategyCheck, FindsWhatCannotRun) {
  const Group one = group_of(one_host(4), 0);
  const Group two = group_of(in_pairs(4), 0);
  const auto fits = [](const char* text, const Group& group) {
    return check_strategy(parse_strategy(text).value(), group).ok();
  };
  EXPECT_TRUE(fits("direct", one));
  EXPECT_FALSE(fits("direct", two));
  EXPECT_TRUE(fits("star@3", one));
  EXPECT_FALSE(fits("star@4", one));
  EXPECT_TRUE(fits("hierarchical:star@1", two));
  EXPECT_FALSE(fits("hierarchical:star@2", two));
  EXPECT_FALSE(fits("hierarchical:star@1", one));
  EXPECT_TRUE(fits("tree:0,0,0,0", one));
  EXPECT_TRUE(fits("tree:1,2,3,3", one));
  EXPECT_FALSE(fits("tree:0,0,0", one)) << "too short";
  EXPECT_FALSE(fits("tree:0,0,0,0,0", one)) << "too long";
  EXPECT_FALSE(fits("tree:0,1,0,0", one)) << "two roots";
  EXPECT_FALSE(fits("tree:1,2,3,0", one)) << "a circle";
  EXPECT_FALSE(fits("tree:0,2,1,0", one)) << "a circle beside the root";
  EXPECT_FALSE(fits("tree:0,0,0,4", one)) << "no such parent";
  EXPECT_TRUE(fits("hierarchical:tree:1,1", two));
  EXPECT_FALSE(fits("hierarchical:tree:1,1,1,1", two)) << "one parent a host";
}

// ---- Trees --------------------------------------------------------------------------------------

bool is_tree(const Tree& tree, size_t nodes) {
  if (tree.parent.size() != nodes || tree.parent[static_cast<size_t>(tree.root)] != tree.root)
    return false;
  for (size_t node = 0; node < nodes; ++node) {
    auto at = static_cast<int>(node);
    for (size_t hops = 0; at != tree.root; ++hops) {
      if (hops > nodes || at < 0 || static_cast<size_t>(at) >= nodes) return false;
      at = tree.parent[static_cast<size_t>(at)];
    }
  }
  return true;
}

TEST(Trees, ReachEveryoneFromEveryRoot) {
  for (Rank ranks = 1; ranks <= 17; ++ranks) {
    for (const auto& hosts : {one_host(ranks), in_pairs(ranks), scattered(ranks)}) {
      const Group group = group_of(hosts, 0);
      for (const std::string& text : strategies_over(hosts)) {
        const Strategy strategy = parse_strategy(text).value();
        ASSERT_TRUE(check_strategy(strategy, group).ok()) << text << " over " << ranks;
        for (Rank root = 0; root < ranks; ++root) {
          const Tree tree = tree_rooted_at(strategy, group.host_of, root);
          ASSERT_TRUE(is_tree(tree, hosts.size())) << text << " over " << ranks;
          ASSERT_EQ(tree.root, root) << text << " over " << ranks;
        }
        if (strategy.hierarchical || strategy.kind == Strategy::Kind::kDirect) continue;
        for (const TreePair& pair : tree_pairs(strategy, group.host_of)) {
          ASSERT_TRUE(is_tree(pair.up, hosts.size())) << text << " over " << ranks;
          ASSERT_TRUE(is_tree(pair.down, hosts.size())) << text << " over " << ranks;
          ASSERT_EQ(pair.up.root, pair.down.root) << text << " over " << ranks;
        }
      }
    }
  }
}

int edges_between_hosts(const Tree& tree, const Group& group) {
  int edges = 0;
  for (Rank rank = 0; rank < group.size(); ++rank)
    edges += group.host(rank) != group.host(tree.parent[static_cast<size_t>(rank)]) ? 1 : 0;
  return edges;
}

// What the names promise, on 8 ranks of 4 hosts.
TEST(Trees, HaveTheirShapes) {
  const Group group = group_of(in_pairs(8), 0);
  const auto pairs = [&](const char* text) {
    return tree_pairs(parse_strategy(text).value(), group.host_of);
  };
  EXPECT_EQ(pairs("star").size(), 1U);
  EXPECT_EQ(pairs("star@5")[0].up.root, 5);
  EXPECT_EQ(pairs("clique").size(), 8U);
  EXPECT_EQ(pairs("ring").size(), 8U);
  EXPECT_EQ(pairs("multi_star").size(), 4U) << "one for each host";
  EXPECT_EQ(pairs("multi_binary_tree_star").size(), 4U);
  EXPECT_EQ(pairs("binary_tree")[0].up.parent, (std::vector<int>{0, 0, 0, 1, 1, 2, 2, 3}));
  // In a ring every rank receives from one neighbour and sends to the other, both ways round.
  for (const TreePair& pair : pairs("ring")) {
    for (Rank rank = 0; rank < 8; ++rank) {
      if (rank != pair.up.root) {
        EXPECT_EQ(pair.up.parent[static_cast<size_t>(rank)], (rank + 1) % 8);
        EXPECT_EQ(pair.down.parent[static_cast<size_t>(rank)], (rank + 7) % 8);
      }
    }
  }
  // Those that know hosts cross between them as rarely as a tree can.
  for (const char* text : {"tree", "multi_star", "binary_tree_star", "multi_binary_tree_star"})
    for (const TreePair& pair : pairs(text))
      EXPECT_EQ(edges_between_hosts(pair.up, group), 3) << text;
}

// ---- Schedules ----------------------------------------------------------------------------------

// Runs the schedules of all ranks over symbols instead of numbers: a value is the multiset of the
// (rank, input element) pairs that went into it, so nothing can be lost, doubled or misplaced
// unseen.
class Interpreter {
 public:
  using Value = std::multiset<std::pair<Rank, size_t>>;

  Interpreter(const Signature& signature, const std::vector<uint32_t>& hosts,
              const std::string& strategy, size_t chunk_bytes)
      : signature_(signature), ranks_(static_cast<Rank>(hosts.size())) {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      groups_.push_back(group_of(hosts, rank));
      schedules_.push_back(make_schedule(
          signature, groups_.back(),
          {.strategy = parse_strategy(strategy).value(), .chunk_bytes = chunk_bytes}));
    }
    outputs_.resize(hosts.size());
  }

  // Why it went wrong; empty: it went well.
  std::string run() {
    for (Rank rank = 1; rank < ranks_; ++rank)
      if (schedule(rank).lanes() != schedule(0).lanes()) return "ranks have different lanes";
    for (size_t lane = 0; lane < schedule(0).lanes(); ++lane)
      if (std::string error = run_lane(lane); !error.empty())
        return fmt::format("lane {}: {}", lane, error);
    return "";
  }
  const std::map<size_t, Value>& output(Rank rank) const {
    return outputs_[static_cast<size_t>(rank)];
  }

 private:
  // One element of one lane at one rank.
  struct State {
    size_t step = 0;
    Value partial;
    Value output;
    bool has_output = false;
  };
  using Wire = std::tuple<Rank, Rank, Phase>;

  const Schedule& schedule(Rank rank) const { return schedules_[static_cast<size_t>(rank)]; }

  std::string run_lane(size_t lane) {
    const LaneRange range = range_of(schedule(0), lane);
    for (Rank rank = 0; rank < ranks_; ++rank) {
      const LaneRange mine = range_of(schedule(rank), lane);
      if (mine.count != range.count || mine.offset != range.offset || mine.block != range.block)
        return "ranks disagree about its range";
    }
    // All elements of a lane go the same way: the first and the last stand for them.
    for (size_t element : {size_t{0}, range.count - 1})
      if (range.count > 0)
        if (std::string error = run_element(range, range.offset + element); !error.empty())
          return error;
    return "";
  }

  std::string run_element(const LaneRange& range, size_t element) {
    std::vector<State> states(static_cast<size_t>(ranks_));
    wires_.clear();
    host_.clear();
    bool moved = true;
    while (moved) {
      moved = false;
      for (Rank rank = 0; rank < ranks_; ++rank) {
        const Block& block = schedule(rank).blocks[range.block];
        State& state = states[static_cast<size_t>(rank)];
        while (state.step < block.steps.size() &&
               run_step(rank, block, block.steps[state.step], state, element)) {
          ++state.step;
          moved = true;
        }
      }
    }
    for (Rank rank = 0; rank < ranks_; ++rank) {
      const Block& block = schedule(rank).blocks[range.block];
      const State& state = states[static_cast<size_t>(rank)];
      if (state.step < block.steps.size()) return fmt::format("rank {} is stuck", rank);
      if (state.has_output)
        outputs_[static_cast<size_t>(rank)][block.output_offset + element] = state.output;
    }
    for (const auto& [wire, values] : wires_)
      if (!values.empty())
        return fmt::format("rank {} never takes what {} sent", std::get<1>(wire),
                           std::get<0>(wire));
    return "";
  }

  Value input(Rank rank, const Block& block, size_t element) const {
    return {{rank, block.input_offset + element}};
  }

  bool run_step(Rank rank, const Block& block, const Action& step, State& state, size_t element) {
    const auto own = [&](Buffer buffer) {
      return buffer == Buffer::kInput    ? input(rank, block, element)
             : buffer == Buffer::kOutput ? state.output
                                         : state.partial;
    };
    switch (step.kind) {
      case Action::Kind::kReduce: {
        for (const Rank peer : step.peers)
          if (wires_[{peer, rank, Phase::kUp}].empty()) return false;
        Value sum = own(step.from);
        for (const Rank peer : step.peers) {
          const auto value = take({peer, rank, Phase::kUp});
          sum.insert(value.begin(), value.end());
        }
        put(state, step.into, sum);
        return true;
      }
      case Action::Kind::kReceive:
        if (wires_[{step.peers[0], rank, Phase::kDown}].empty()) return false;
        put(state, Buffer::kOutput, take({step.peers[0], rank, Phase::kDown}));
        return true;
      case Action::Kind::kSend:
        for (const Rank peer : step.peers)
          wires_[{rank, peer, step.phase}].push_back(own(step.from));
        return true;
      case Action::Kind::kCopy:
        put(state, Buffer::kOutput, input(rank, block, element));
        return true;
      case Action::Kind::kHostReduce: return host_reduce(rank, block, state, element);
      case Action::Kind::kHostDeliver: return host_deliver(rank, block, state);
    }
    return false;
  }

  // What host.h says of a block, without shared memory.
  bool host_reduce(Rank rank, const Block& block, State& state, size_t element) {
    const Group& group = groups_[static_cast<size_t>(rank)];
    Rank reducer = block.host.reducer;
    if (reducer == HostPart::kAnyone) reducer = group.local.front();
    if (reducer != rank) return true;
    Value value = input(rank, block, element);
    if (block.host.reduce)
      for (const Rank other : group.local)
        if (other != rank) {
          const Block& theirs =
              schedule(other).blocks[static_cast<size_t>(&block - schedule(rank).blocks.data())];
          const Value more = input(other, theirs, element);
          value.insert(more.begin(), more.end());
        }
    const bool between_hosts = block.steps.size() > 2;
    if (between_hosts) {
      state.partial = value;
    } else {
      host_[group.host(rank)] = value;
    }
    return true;
  }
  bool host_deliver(Rank rank, const Block& block, State& state) {
    const Group& group = groups_[static_cast<size_t>(rank)];
    const int host = group.host(rank);
    if (block.host.reducer == rank && block.steps.size() > 2) host_[host] = state.output;
    if (!host_.contains(host)) return false;
    const bool receives = block.host.receiver == HostPart::kEveryone || block.host.receiver == rank;
    if (receives) put(state, Buffer::kOutput, host_[host]);
    return true;
  }

  static void put(State& state, Buffer buffer, const Value& value) {
    (buffer == Buffer::kOutput ? state.output : state.partial) = value;
    if (buffer == Buffer::kOutput) state.has_output = true;
  }
  Value take(const Wire& wire) {
    Value value = wires_[wire].front();
    wires_[wire].pop_front();
    return value;
  }

  const Signature signature_;
  const Rank ranks_;
  std::vector<Group> groups_;
  std::vector<Schedule> schedules_;
  std::vector<std::map<size_t, Value>> outputs_;
  std::map<Wire, std::deque<Value>> wires_;
  std::map<int, Value> host_;
};

// What an element of a rank's output must be made of; empty: there is no such element.
Interpreter::Value wanted(const Signature& signature, Rank rank, Rank ranks, size_t element) {
  const auto block = [&](Rank r) { return signature.block_count(r); };
  size_t before = 0;
  for (Rank r = 0; r < rank; ++r) before += block(r);
  Interpreter::Value all;
  switch (signature.collective) {
    case Collective::kReduce:
      if (rank != signature.root) return {};
      [[fallthrough]];
    case Collective::kAllReduce:
    case Collective::kBarrier:
      for (Rank r = 0; r < ranks && element < signature.count; ++r) all.insert({r, element});
      return all;
    case Collective::kBroadcast:
      if (element < signature.count) all.insert({signature.root, element});
      return all;
    case Collective::kGather:
      if (rank != signature.root) return {};
      [[fallthrough]];
    case Collective::kAllGather:
      for (Rank r = 0; r < ranks; element -= block(r++))
        if (element < block(r)) return {{r, element}};
      return {};
    case Collective::kScatter:
      if (element < block(rank)) all.insert({signature.root, before + element});
      return all;
    case Collective::kReduceScatter:
      for (Rank r = 0; r < ranks && element < block(rank); ++r) all.insert({r, before + element});
      return all;
    case Collective::kAllToAll: {
      const auto from = signature.count == 0 ? size_t{0} : element / signature.count;
      if (signature.count == 0 || from >= static_cast<size_t>(ranks)) return {};
      return {{static_cast<Rank>(from),
               static_cast<size_t>(rank) * signature.count + element % signature.count}};
    }
    default: return {};
  }
}

void expect_schedule_right(const Signature& signature, const std::vector<uint32_t>& hosts,
                           const std::string& strategy, size_t chunk_bytes) {
  const auto ranks = static_cast<Rank>(hosts.size());
  const std::string what =
      fmt::format("{} of {} by {} over {} ranks, chunks of {}", to_string(signature.collective),
                  signature.count, strategy, ranks, chunk_bytes);
  Interpreter interpreter(signature, hosts, strategy, chunk_bytes);
  const std::string error = interpreter.run();
  ASSERT_EQ(error, "") << what;
  for (Rank rank = 0; rank < ranks; ++rank) {
    for (const auto& [element, value] : interpreter.output(rank))
      ASSERT_EQ(value, wanted(signature, rank, ranks, element))
          << what << ": element " << element << " of rank " << rank;
    // Chunks of one element leave out none; the first and the last of a larger one stand for all.
    if (chunk_bytes > 1) continue;
    size_t elements = 0;
    while (!wanted(signature, rank, ranks, elements).empty()) ++elements;
    ASSERT_EQ(interpreter.output(rank).size(), elements) << what << ": rank " << rank;
  }
}

class Schedules : public testing::TestWithParam<Rank> {};

TEST_P(Schedules, MoveEveryElementOnce) {
  const Rank ranks = GetParam();
  constexpr Collective kAll[] = {
      Collective::kAllReduce,     Collective::kReduce,   Collective::kBroadcast,
      Collective::kAllGather,     Collective::kGather,   Collective::kScatter,
      Collective::kReduceScatter, Collective::kAllToAll, Collective::kBarrier};
  for (const auto& hosts : {one_host(ranks), in_pairs(ranks), scattered(ranks)}) {
    for (const std::string& strategy : strategies_over(hosts)) {
      for (const Collective collective : kAll) {
        for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{19}}) {
          // Few ranks show what depends on the count, many what depends on the ranks.
          if ((collective == Collective::kAllToAll || ranks > 9) && count > 5) continue;
          Signature signature;
          signature.collective = collective;
          signature.dtype = DType::kU8;
          signature.root = static_cast<Rank>(count) % ranks;
          signature.count = collective == Collective::kBarrier ? 1 : count;
          expect_schedule_right(signature, hosts, strategy, count == 5 ? 3 : 1);
          if (HasFatalFailure()) return;
          if (!takes_counts(collective)) continue;
          for (Rank rank = 0; rank < ranks; ++rank)
            signature.counts.push_back((count + static_cast<size_t>(rank) * 5) % 4);
          expect_schedule_right(signature, hosts, strategy, 1);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Schedules, testing::ValuesIn(ranks_up_to_17()));

TEST(Schedule, CutsIntoEqualParts) {
  for (size_t count = 0; count < 40; ++count) {
    for (size_t parts = 1; parts < 20; ++parts) {
      size_t next = 0;
      for (size_t i = 0; i < parts; ++i) {
        const Split part = split(count, parts, i);
        ASSERT_EQ(part.offset, next);
        ASSERT_LE(part.count, count / parts + 1);
        ASSERT_GE(part.count, count / parts);
        next += part.count;
      }
      ASSERT_EQ(next, count);
    }
  }
}

TEST(Schedule, SendsAndReceivesMatch) {
  const auto hosts = in_pairs(3);
  Signature signature;
  signature.count = 10;
  signature.dtype = DType::kF64;
  signature.collective = Collective::kSend;
  signature.root = 2;
  const CallPlan ring = {.strategy = parse_strategy("ring").value(), .chunk_bytes = 32};
  const Schedule sends = make_schedule(signature, group_of(hosts, 0), ring);
  signature.collective = Collective::kReceive;
  signature.root = 0;
  const Schedule receives = make_schedule(signature, group_of(hosts, 2), ring);
  ASSERT_EQ(sends.lanes(), 3U);
  ASSERT_EQ(receives.lanes(), 3U);
  EXPECT_EQ(sends.blocks[0].steps[0].kind, Action::Kind::kSend);
  EXPECT_EQ(sends.blocks[0].steps[0].peers, std::vector<Rank>{2});
  EXPECT_EQ(receives.blocks[0].steps[0].kind, Action::Kind::kReceive);
  EXPECT_EQ(receives.blocks[0].steps[0].peers, std::vector<Rank>{0});
  EXPECT_EQ(range_of(sends, 2).count, 2U);
}

TEST(Schedule, KeepsTheWayUpAndDownBusyAndNoMore) {
  const auto in_flight = [](const char* strategy, const std::vector<uint32_t>& hosts,
                            size_t bytes = 0) {
    Signature signature;
    signature.count = 1 << 20;
    signature.dtype = DType::kF32;
    return make_schedule(signature, group_of(hosts, 0),
                         {.strategy = parse_strategy(strategy).value(),
                          .chunk_bytes = 4096,
                          .in_flight_bytes = bytes})
        .in_flight;
  };
  const auto one_host = [](size_t ranks) { return std::vector<uint32_t>(ranks, 0); };
  EXPECT_EQ(in_flight("exchange", one_host(2)), 4U);
  EXPECT_EQ(in_flight("ring", one_host(2)), 4U);
  EXPECT_EQ(in_flight("ring", one_host(8)), 16U);
  EXPECT_EQ(in_flight("clique", one_host(8)), 16U);
  EXPECT_EQ(in_flight("star", one_host(8)), 4U);
  EXPECT_EQ(in_flight("binary_tree", one_host(4)), 6U);
  EXPECT_EQ(in_flight("binary_tree", one_host(8)), 8U);
  EXPECT_EQ(in_flight("direct", one_host(8)), kStageSlots);
  // Between hosts also what keeps the links busy, which the ranks of a host share.
  EXPECT_EQ(in_flight("ring", in_pairs(4)), 8U);
  EXPECT_EQ(in_flight("hierarchical:ring", in_pairs(4)), 4U);
  EXPECT_EQ(in_flight("hierarchical:ring", in_pairs(64)), 64U);
  EXPECT_EQ(in_flight("hierarchical:ring", in_pairs(4), 20 * 2 * 4096), 20U);
  EXPECT_EQ(in_flight("hierarchical:ring", in_pairs(4), size_t{1} << 40), 64U);
}

}  // namespace
}  // namespace pliant
