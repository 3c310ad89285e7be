#include "pliant/collective/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "pliant/base/time.h"
#include "pliant/collective/route.h"
#include "pliant/transport/transport.h"

namespace pliant {
namespace {

using Kind = Strategy::Kind;
using Hosts = std::pair<uint32_t, uint32_t>;

constexpr size_t kMiB = size_t{1} << 20;

// `members` peers on each of `hosts` hosts; host numbers start at 5, so that nobody takes the
// group's own numbering for the job's.
constexpr uint32_t kFirstHost = 5;
Group cluster_of(const std::vector<int>& members_of_host, Rank self = 0) {
  std::vector<PeerId> peers;
  for (size_t host = 0; host < members_of_host.size(); ++host)
    for (int slot = 0; slot < members_of_host[host]; ++slot)
      peers.push_back({kFirstHost + static_cast<uint32_t>(host), static_cast<uint16_t>(slot), 1});
  return make_group(peers, peers[static_cast<size_t>(self)], Epoch{1});
}
Group cluster(int hosts, int members, Rank self = 0) {
  return cluster_of(std::vector<int>(static_cast<size_t>(hosts), members), self);
}

Signature all_reduce(size_t bytes) {
  Signature signature;
  signature.count = bytes / 4;
  return signature;
}

// All links of one host, both ways, at this rate.
void set_rate(CostModel& model, int hosts, uint32_t host, double bytes_per_s) {
  for (uint32_t other = kFirstHost; other < kFirstHost + static_cast<uint32_t>(hosts); ++other) {
    if (other == host) continue;
    model.between[{host, other}] = {.latency_s = 40e-6, .bytes_per_s = bytes_per_s};
    model.between[{other, host}] = {.latency_s = 40e-6, .bytes_per_s = bytes_per_s};
  }
}

double time_of(const char* strategy, size_t bytes, const Group& group, const CostModel& model) {
  const Signature signature = all_reduce(bytes);
  const Strategy parsed = *parse_strategy(strategy);
  return predict(signature, group, parsed, chunk_bytes_for(signature, group, parsed, model.cores),
                 model);
}

bool is_tree(const Strategy& strategy) {
  return strategy.kind == Kind::kStar || strategy.kind == Kind::kBinaryTree;
}
// Every host is the root of some of the blocks.
bool shares_roots(const Strategy& strategy) {
  return strategy.kind == Kind::kRing || strategy.kind == Kind::kClique ||
         strategy.kind == Kind::kMultiBinaryTreeStar;
}

// ---- Routes: what the model believes about traffic is what the schedules do -------------------

using Traffic = std::map<std::pair<Rank, Rank>, size_t>;  // bytes by sender and receiver

Traffic by_schedules(const Signature& signature, Group group, const Strategy& strategy) {
  Traffic traffic;
  const size_t plain = size_of(signature.dtype);
  const size_t partial = size_of(accumulator_of(signature.dtype));
  for (group.self = 0; group.self < group.size(); ++group.self)
    for (const Block& block : make_schedule(signature, group, {.strategy = strategy}).blocks)
      for (const Action& step : block.steps)
        if (step.kind == Action::Kind::kSend)
          for (const Rank peer : step.peers)
            if (block.count > 0)
              traffic[{group.self, peer}] +=
                  block.count * (step.from == Buffer::kPartial ? partial : plain);
  return traffic;
}

Traffic by_routes(const Signature& signature, const Group& group, const Strategy& strategy) {
  Traffic traffic;
  const size_t plain = size_of(signature.dtype);
  const size_t partial = size_of(accumulator_of(signature.dtype));
  for (const Route& route : routes_of(signature, group, strategy)) {
    if (route.count == 0) continue;
    const std::set<int> inner(route.up.parent.begin(), route.up.parent.end());
    for (int node = 0; node < static_cast<int>(route.ranks.size()); ++node) {
      const auto i = static_cast<size_t>(node);
      const bool widened = in_stages(signature, strategy) || inner.contains(node);
      if (route.reduces() && node != route.up.root)
        traffic[{route.ranks[i], route.ranks[static_cast<size_t>(route.up.parent[i])]}] +=
            route.count * (widened ? partial : plain);
      if (route.spreads() && node != route.down.root)
        traffic[{route.ranks[static_cast<size_t>(route.down.parent[i])], route.ranks[i]}] +=
            route.count * plain;
    }
  }
  return traffic;
}

TEST(Route, CarriesTheTrafficOfTheSchedules) {
  for (const char* text :
       {"star", "star@2", "multi_star", "clique", "ring", "tree", "binary_tree", "binary_tree_star",
        "multi_binary_tree_star", "hierarchical:ring", "hierarchical:star@1",
        "hierarchical:binary_tree", "hierarchical:clique"})
    for (const auto& members :
         {std::vector{2, 2, 2}, {1, 1, 1, 1}, {2, 2}, {2, 2, 2, 2}, {1, 3, 2}})
      for (const auto collective :
           {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
            Collective::kAllGather, Collective::kGather, Collective::kScatter,
            Collective::kReduceScatter, Collective::kAllToAll, Collective::kBarrier}) {
        Signature signature;
        signature.collective = collective;
        signature.count = 37;
        signature.dtype = DType::kBF16;
        signature.root = 1;
        const Group group = cluster_of(members);
        const Strategy strategy = *parse_strategy(text);
        EXPECT_EQ(by_routes(signature, group, strategy), by_schedules(signature, group, strategy))
            << text << " " << to_string(collective) << " over " << group.size() << " ranks";
      }
}

TEST(Route, UnequalBlocksAndEmptyOnes) {
  Signature signature;
  signature.collective = Collective::kAllGather;
  signature.counts = {5, 0, 7, 1};
  const Group group = cluster(2, 2);
  const Strategy ring = *parse_strategy("ring");
  EXPECT_EQ(by_routes(signature, group, ring), by_schedules(signature, group, ring));
  EXPECT_EQ(total_bytes(signature, group), 13 * 4);
}

// ---- Prediction --------------------------------------------------------------------------------

TEST(Predict, IsTheWireLimitPlusLittleForLargeTensors) {
  CostModel model;
  model.cores = 4;
  const Group group = cluster(4, 1);
  const double wire = 1.5 * 256.0 * static_cast<double>(kMiB) / model.default_between.bytes_per_s;
  const double ring = time_of("hierarchical:ring", 256 * kMiB, group, model);
  EXPECT_GT(ring, wire);
  EXPECT_LT(ring, 1.02 * wire);
  // The root of a star takes in and sends out three times the tensor, at the same time.
  EXPECT_NEAR(time_of("hierarchical:star", 256 * kMiB, group, model) / wire, 2 * 1.1, 0.1);
}

TEST(Predict, CountsEveryHopOfASmallTensor) {
  CostModel model;
  model.cores = 4;
  model.default_between.latency_s = 1e-3;
  const Group group = cluster(5, 1);
  EXPECT_NEAR(time_of("star", 4, group, model), 2e-3, 1e-4);
  EXPECT_NEAR(time_of("binary_tree", 4, group, model), 4e-3, 1e-4);
  EXPECT_NEAR(time_of("ring", 4, group, model), 8e-3, 1e-4);
}

TEST(Predict, ALinkCostsInItsOwnDirectionOnly) {
  CostModel model;
  const Group group = cluster(2, 1);
  const double bytes = 64.0 * static_cast<double>(kMiB);
  model.between[{kFirstHost + 1, kFirstHost}] = {.latency_s = 0, .bytes_per_s = 1e7};
  Signature signature;
  signature.collective = Collective::kBroadcast;
  signature.count = 16 * kMiB;
  const Strategy star = *parse_strategy("star");
  EXPECT_LT(predict(signature, group, star, 1 << 18, model), bytes / 1e9);
  signature.root = 1;
  EXPECT_GE(predict(signature, group, star, 1 << 18, model), 0.99 * bytes / 1e7);
}

TEST(Predict, AllThatLeavesAHostPassesItsPort) {
  const CostModel model;
  Signature signature = all_reduce(64 * kMiB);
  signature.collective = Collective::kBroadcast;
  const double tensor_s = 64.0 * static_cast<double>(kMiB) / model.default_between.bytes_per_s;
  const double star = predict(signature, cluster(4, 1), *parse_strategy("star"), 1 << 18, model);
  const double ring = predict(signature, cluster(4, 1), *parse_strategy("ring"), 1 << 18, model);
  EXPECT_NEAR(star / tensor_s, 3, 0.1);
  EXPECT_NEAR(ring / tensor_s, 1, 0.1);
}

TEST(Predict, UsesTheLatencyOfTheVeryLink) {
  CostModel model;
  model.between[{kFirstHost, kFirstHost + 2}] = {.latency_s = 0.5, .bytes_per_s = 1e9};
  const Group group = cluster(3, 1);
  EXPECT_NEAR(time_of("star@0", 4, group, model), 0.5, 0.01);  // down to host 2
  EXPECT_LT(time_of("star@1", 4, group, model), 0.01);
}

TEST(Predict, NeverFallsAsTheTensorGrows) {
  CostModel slow_link;
  set_rate(slow_link, 4, kFirstHost + 3, 1.2e7);
  CostModel messages_only;
  messages_only.shared_memory = false;
  for (const CostModel& model : {CostModel{}, slow_link, messages_only})
    for (const char* strategy : {"hierarchical:ring", "hierarchical:clique", "hierarchical:star@1",
                                 "hierarchical:binary_tree", "ring", "clique", "star", "tree",
                                 "binary_tree", "multi_binary_tree_star"}) {
      double before = 0;
      for (size_t bytes = 4; bytes <= 1024 * kMiB; bytes += bytes / 2 + 4) {
        const double now = time_of(strategy, bytes, cluster(4, 3), model);
        // Two blocks of one element cost no less than one of two, so strictly more is not asked.
        EXPECT_GE(now, before) << strategy << " " << bytes;
        before = now;
      }
    }
}

TEST(Predict, OversubscribedCoresMakeMessagesInsideAHostSlower) {
  CostModel model;
  model.shared_memory = false;
  const Group group = cluster(1, 8);
  model.cores = 8;
  const double wide = time_of("ring", 64 * kMiB, group, model);
  model.cores = 2;
  EXPECT_NEAR(time_of("ring", 64 * kMiB, group, model) / wide, 4, 0.4);
}

TEST(Predict, PartialResultsOfHalvesTravelAsFloats) {
  const Group group = cluster(4, 1);
  const CostModel model;
  Signature signature;
  signature.collective = Collective::kReduce;
  signature.count = 16 * kMiB;
  const Strategy ring = *parse_strategy("ring");
  signature.dtype = DType::kI16;
  const double integers = predict(signature, group, ring, 1 << 18, model);
  signature.dtype = DType::kBF16;
  EXPECT_NEAR(predict(signature, group, ring, 1 << 18, model) / integers, 2, 0.1);
}

// ---- Choice ------------------------------------------------------------------------------------

TEST(Choose, OneHostWithSharedMemoryIsDirectExceptForMessages) {
  const Group group = cluster(1, 4);
  for (int i = 0; i < kCollectives; ++i) {
    Signature signature;
    signature.collective = static_cast<Collective>(i);
    signature.count = 1000;
    const bool message =
        signature.collective == Collective::kSend || signature.collective == Collective::kReceive;
    EXPECT_EQ(choose(signature, group, {}).strategy.kind, message ? Kind::kStar : Kind::kDirect);
  }
}

TEST(Choose, IsAlwaysOneThatCanRun) {
  for (const bool shared_memory : {true, false})
    for (const auto& [hosts, members] : {std::pair(1, 1), {1, 5}, {2, 1}, {3, 2}, {13, 1}, {5, 4}})
      for (int i = 0; i < kCollectives; ++i)
        for (const size_t count : {size_t{0}, size_t{1}, size_t{1} << 22}) {
          Signature signature;
          signature.collective = static_cast<Collective>(i);
          signature.count = count;
          CostModel model;
          model.shared_memory = shared_memory;
          const Group group = cluster(hosts, members);
          const Choice choice = choose(signature, group, model);
          EXPECT_TRUE(check_strategy(choice.strategy, group).ok()) << choice.reason;
          EXPECT_EQ(parse_strategy(to_string(choice.strategy)).value(), choice.strategy);
          EXPECT_GT(choice.chunk_bytes, 0u);
          EXPECT_EQ(choice.chunk_bytes % 64, 0u);
          EXPECT_TRUE(std::isfinite(choice.predicted_s));
          EXPECT_GE(choice.predicted_s, 0);
          // Without shared memory nothing may need it.
          if (!shared_memory) {
            EXPECT_NE(choice.strategy.kind, Kind::kDirect);
            EXPECT_FALSE(in_stages(signature, choice.strategy));
          }
        }
}

TEST(Choose, UniformClusterGoesFromFewHopsToSharedRootsOnceAsTheTensorGrows) {
  for (const bool shared_memory : {true, false}) {
    CostModel model;
    model.cores = 2;
    model.shared_memory = shared_memory;
    const Group group = cluster(4, 2);
    const Strategy small = choose(all_reduce(64), group, model).strategy;
    EXPECT_TRUE(is_tree(small) || small.kind == Kind::kExchange) << to_string(small);
    bool shared = false;
    for (size_t bytes = 64; bytes <= 256 * kMiB; bytes *= 2) {
      const Choice choice = choose(all_reduce(bytes), group, model);
      EXPECT_TRUE(!shared || shares_roots(choice.strategy)) << choice.reason;
      shared = shared || shares_roots(choice.strategy);
    }
    EXPECT_TRUE(shared);
  }
}

TEST(Choose, RanksThatShareTheCoresNeedNoEvenLoad) {
  CostModel model;
  model.shared_memory = false;
  for (const size_t bytes : {64 * 1024UL, kMiB, 16 * kMiB, 100 * kMiB}) {
    model.cores = 4;
    const Choice crowded = choose(all_reduce(bytes), cluster(1, 8), model);
    EXPECT_TRUE(is_tree(crowded.strategy)) << crowded.reason;
    model.cores = 5;
    const Choice roomy = choose(all_reduce(bytes), cluster(1, 8), model);
    EXPECT_TRUE(bytes < 16 * kMiB || shares_roots(roomy.strategy)) << roomy.reason;
  }
  model.cores = 1;
  EXPECT_EQ(choose(all_reduce(64), cluster(1, 2), model).strategy.kind, Kind::kExchange);
}

// One thread of a process does all that it sends and receives, so that what goes to everybody takes
// longer the more there are; trees and rounds do not. As measured with sixteen cores.
TEST(Choose, ManyRanksWithACoreEachSendLittleInRounds) {
  CostModel model;
  model.shared_memory = false;
  model.cores = 16;
  for (const size_t bytes : {1024UL, 16 * 1024UL}) {
    EXPECT_EQ(choose(all_reduce(bytes), cluster(1, 2), model).strategy.kind, Kind::kExchange);
    for (const int ranks : {8, 16}) {
      const Choice choice = choose(all_reduce(bytes), cluster(1, ranks), model);
      EXPECT_EQ(choice.strategy.kind, Kind::kDoubling) << choice.reason;
      EXPECT_LT(time_of("binary_tree", bytes, cluster(1, ranks), model),
                time_of("exchange", bytes, cluster(1, ranks), model));
    }
  }
}

TEST(Choose, AHostBehindASlowLinkBecomesALeaf) {
  for (const auto& [hosts, members] : {std::pair(3, 2), {4, 2}, {4, 1}, {6, 3}})
    for (uint32_t slow = 0; slow < static_cast<uint32_t>(hosts); ++slow) {
      const Group group = cluster(hosts, members);
      CostModel model;
      model.cores = 2;
      EXPECT_TRUE(shares_roots(choose(all_reduce(16 * kMiB), group, model).strategy));
      set_rate(model, hosts, kFirstHost + slow, 1.2e7);
      const Choice choice = choose(all_reduce(16 * kMiB), group, model);
      EXPECT_TRUE(is_tree(choice.strategy)) << choice.reason;
      EXPECT_NE(choice.strategy.root, static_cast<int>(slow)) << choice.reason;
      // Exactly the tensor passes the slow link each way, and nothing else counts.
      const double tensor_s = 16.0 * static_cast<double>(kMiB) / 1.2e7;
      EXPECT_NEAR(choice.predicted_s / tensor_s, 1, 0.1) << choice.reason;
      EXPECT_NEAR(time_of("hierarchical:ring", 16 * kMiB, group, model) / tensor_s,
                  2.0 * (hosts - 1) / hosts, 0.1);
    }
}

TEST(Choose, GoesAroundOneSlowPairOfHosts) {
  const Group group = cluster(3, 2);
  CostModel model;
  model.between[{kFirstHost, kFirstHost + 2}] = {.latency_s = 40e-6, .bytes_per_s = 1.2e7};
  model.between[{kFirstHost + 2, kFirstHost}] = {.latency_s = 40e-6, .bytes_per_s = 1.2e7};
  const Choice choice = choose(all_reduce(16 * kMiB), group, model);
  EXPECT_EQ(to_string(choice.strategy), "hierarchical:star@1") << choice.reason;
  EXPECT_LT(choice.predicted_s, 0.1);
  // The ring has no way around: 4/3 of the tensor.
  const double limit = 4.0 / 3 * 16.0 * static_cast<double>(kMiB) / 1.2e7;
  EXPECT_GE(time_of("hierarchical:ring", 16 * kMiB, group, model), limit);
}

TEST(Choose, ManyHostsHaveFewCandidatesAndStillAvoidTheSlowOnes) {
  const int hosts = 40;
  const Group group = cluster(hosts, 1);
  CostModel model;
  for (uint32_t host = 0; host < 12; ++host) set_rate(model, hosts, kFirstHost + host, 1e8);
  const auto all = candidates(all_reduce(4), group, model);
  EXPECT_LE(all.size(), 20u);
  for (const Strategy& strategy : all)
    EXPECT_TRUE(!is_tree(strategy) || strategy.root >= 12) << to_string(strategy);
}

TEST(Choose, IsTheSameOnEveryRank) {
  CostModel model;
  model.cores = 3;
  set_rate(model, 3, kFirstHost + 1, 3e7);
  for (const bool shared_memory : {true, false})
    for (int i = 0; i < kCollectives; ++i)
      for (const size_t bytes : {size_t{64}, size_t{300000}, 16 * kMiB}) {
        model.shared_memory = shared_memory;
        Signature signature = all_reduce(bytes);
        signature.collective = static_cast<Collective>(i);
        const bool message = signature.collective == Collective::kSend ||
                             signature.collective == Collective::kReceive;
        const Choice first = choose(signature, cluster(3, 3, 0), model);
        for (Rank self = 1; self < 9; ++self) {
          const Choice choice = choose(signature, cluster(3, 3, self), model);
          EXPECT_EQ(choice.strategy, first.strategy);
          EXPECT_EQ(choice.chunk_bytes, first.chunk_bytes);
          if (message) continue;  // takes the link to the other side, whose time depends on both
          EXPECT_EQ(choice.predicted_s, first.predicted_s);
          EXPECT_EQ(choice.reason, first.reason);
        }
      }
}

TEST(Choose, LargeBroadcastsAreNotSentByTheRootToEverybody) {
  const Group group = cluster(4, 4);
  Signature signature = all_reduce(64 * kMiB);
  signature.collective = Collective::kBroadcast;
  CostModel model;
  model.cores = 4;
  const Choice large = choose(signature, group, model);
  EXPECT_NE(large.strategy.kind, Kind::kStar) << large.reason;
  // The wire limit: the tensor leaves the root's host once.
  EXPECT_LT(large.predicted_s, 1.3 * 64.0 * static_cast<double>(kMiB) / 1.18e9) << large.reason;
}

TEST(Choose, ExplainsItself) {
  const auto time = [](double value) { return human_duration(from_seconds(value)); };
  const Group group = cluster(4, 2);
  CostModel model;
  model.cores = 2;
  const Choice uniform = choose(all_reduce(16 * kMiB), group, model);
  EXPECT_EQ(uniform.reason, "hierarchical:ring: 16 MiB over 4 hosts, predicted " +
                                time(uniform.predicted_s) + " (next best hierarchical:clique " +
                                time(time_of("hierarchical:clique", 16 * kMiB, group, model)) +
                                ")");
  set_rate(model, 4, kFirstHost, 1.2e7);
  const Choice adapted = choose(all_reduce(16 * kMiB), group, model);
  EXPECT_TRUE(adapted.reason.starts_with("hierarchical:star@1: 16 MiB over 4 hosts, predicted " +
                                         time(adapted.predicted_s)))
      << adapted.reason;
  EXPECT_TRUE(adapted.reason.ends_with("; slow link from host 5 to host 6: 12.0 MB/s"))
      << adapted.reason;
  EXPECT_EQ(choose(all_reduce(kMiB), cluster(1, 8), {}).reason,
            "direct: 1 MiB over 8 ranks, predicted 421.4 us");
  EXPECT_EQ(choose(all_reduce(kMiB), cluster(1, 1), {}).reason,
            "direct: 1 MiB alone, predicted 0.0 us");
  Signature barrier;
  barrier.collective = Collective::kBarrier;
  barrier.count = 1;
  barrier.dtype = DType::kU8;
  const std::string reason = choose(barrier, group, {}).reason;
  EXPECT_TRUE(reason.starts_with("hierarchical:exchange: barrier over 4 hosts, predicted "))
      << reason;
}

// ---- Chunks ------------------------------------------------------------------------------------

TEST(Chunks, FollowSizeRanksAndStrategy) {
  const auto chunk = [](const char* strategy, size_t bytes, const Group& group) {
    return chunk_bytes_for(all_reduce(bytes), group, *parse_strategy(strategy), 2) / 1024;
  };
  EXPECT_EQ(chunk("direct", 1024, cluster(1, 2)), 2u);
  EXPECT_EQ(chunk("direct", 16 << 10, cluster(1, 4)), 8u);
  EXPECT_EQ(chunk("direct", 64 << 10, cluster(1, 4)), 32u);
  EXPECT_EQ(chunk("direct", 96 << 10, cluster(1, 4)), 32u);
  EXPECT_EQ(chunk("direct", 256 << 10, cluster(1, 2)), 64u);
  EXPECT_EQ(chunk("direct", 16 * kMiB, cluster(1, 2)), 128u);
  EXPECT_EQ(chunk("direct", 16 * kMiB, cluster(1, 8)), 64u);
  EXPECT_EQ(chunk("direct", 32 * kMiB, cluster(1, 2)), 128u);
  EXPECT_EQ(chunk("direct", 64 * kMiB, cluster(1, 2)), 256u);
  EXPECT_EQ(chunk("direct", 64 * kMiB, cluster(1, 8)), 128u);
  EXPECT_EQ(chunk("ring", 256 << 10, cluster(1, 4)), 64u);
  EXPECT_EQ(chunk("ring", 512 << 10, cluster(1, 4)), 60u);
  EXPECT_EQ(chunk("ring", 2 * kMiB, cluster(1, 4)), 121u);
  EXPECT_EQ(chunk("ring", 4 * kMiB, cluster(1, 4)), 243u);
  EXPECT_EQ(chunk("ring", 16 * kMiB, cluster(1, 4)), 121u);
  EXPECT_EQ(chunk("ring", 16 * kMiB, cluster(1, 2)), 243u);
  EXPECT_EQ(chunk("star", 800 << 10, cluster(3, 1)), 182u);
  EXPECT_EQ(chunk("hierarchical:ring", 64 * kMiB, cluster(2, 2)), 243u);
  EXPECT_EQ(chunk("hierarchical:ring", 64 * kMiB, cluster(2, 4)), 60u);
}

// A long link holds more, and what is under way must fill it there and back.
TEST(CallPlans, FillTheLinks) {
  const Group group = cluster(2, 2);
  const Strategy ring = *parse_strategy("hierarchical:ring");
  CostModel model;
  model.cores = 3;
  const std::pair there(kFirstHost, kFirstHost + 1);
  const std::pair back(kFirstHost + 1, kFirstHost);
  model.between[there] = {.latency_s = 20e-6, .bytes_per_s = 1e9};
  model.between[back] = {.latency_s = 20e-6, .bytes_per_s = 1e9};
  EXPECT_EQ(call_plan(all_reduce(kMiB), group, ring, model).in_flight_bytes, 1536u << 10);
  EXPECT_EQ(call_plan(all_reduce(kMiB), group, ring, model).cores, 3);
  model.between[back].latency_s = 5e-3;
  EXPECT_EQ(call_plan(all_reduce(kMiB), group, ring, model).in_flight_bytes, 20'000'000u);
  // Links that were not measured count too.
  model.between.clear();
  model.default_between = {.latency_s = 1e-3, .bytes_per_s = 1e9};
  EXPECT_EQ(call_plan(all_reduce(kMiB), group, ring, model).in_flight_bytes, 4'000'000u);
}

// The largest packets: a whole number of segments, of 64 KiB at most with their heads.
TEST(Chunks, MessagesFillWholePackets) {
  constexpr size_t kHeads = 40 + 20 + 12;  // IPv6, TCP, its time stamps
  for (const size_t frame : {1500, 9000, 65536}) {
    const size_t segment = frame - kHeads;
    const size_t packet = std::max<size_t>((65535 - kHeads) / segment, 1) * segment;
    for (const Group& group : {cluster(1, 2), cluster(1, 4), cluster(2, 1)}) {
      for (const size_t bytes : {1 * kMiB, 16 * kMiB}) {
        const size_t message =
            sizeof(Frame) + chunk_bytes_for(all_reduce(bytes), group, *parse_strategy("ring"), 2);
        const size_t last = (message - 1) % packet + 1;
        EXPECT_GT(last, packet * 3 / 4)
            << "of a message of " << message << " bytes, frames of " << frame;
      }
    }
  }
}

// Its own arithmetic of blocks must not drift from the schedule's.
TEST(Chunks, LongTensorsHaveAtLeastFourChunksABlock) {
  for (const char* text : {"ring", "clique", "star", "multi_star", "tree", "hierarchical:ring",
                           "hierarchical:star", "hierarchical:multi_star"}) {
    const Group group = cluster(3, 2);
    const Strategy strategy = *parse_strategy(text);
    for (const size_t bytes : {4 * kMiB, 5 * kMiB, 64 * kMiB}) {
      const Signature signature = all_reduce(bytes);
      const CallPlan plan = call_plan(signature, group, strategy, {});
      EXPECT_GE(make_schedule(signature, group, plan).chunks, 4u) << text << " " << bytes;
      EXPECT_LE(plan.chunk_bytes, 256u << 10);
    }
  }
}

// ---- Encoding ----------------------------------------------------------------------------------

CostModel some_model() {
  CostModel model;
  model.cores = 7;
  model.shared_memory = false;
  model.inside = {.latency_s = 1e-6, .bytes_per_s = 3e9};
  model.memory_bytes_per_s = 5e10;
  set_rate(model, 3, kFirstHost + 1, 3e7);
  return model;
}

TEST(Encoding, ComesBackAsItWas) {
  for (const CostModel& model : {CostModel{}, some_model()}) {
    const auto decoded = decode_cost_model(encode(model));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, model);
  }
}

TEST(Encoding, RejectsEveryPrefixAndWhateverFollows) {
  std::vector<std::byte> bytes = encode(some_model());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_cost_model(Bytes(bytes).first(size)).ok()) << size;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_cost_model(bytes).ok());
}

TEST(Encoding, RejectsWhatCannotBe) {
  const auto rejects = [](auto change) {
    CostModel model = some_model();
    change(model);
    return !decode_cost_model(encode(model)).ok();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(rejects([](CostModel& model) { model.cores = 0; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.memory_bytes_per_s = nan; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.inside.latency_s = nan; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.inside.latency_s = -1; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.inside.latency_s = -0.0; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.default_between.bytes_per_s = 0; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.default_between.bytes_per_s = infinity; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.between[{5, 6}].bytes_per_s = nan; }));
  EXPECT_TRUE(rejects([&](CostModel& model) { model.between[{5, 5}] = {}; }));
  CostModel two;
  two.between = {{{1, 2}, {}}, {{2, 1}, {}}};
  std::vector<std::byte> swapped = encode(two);
  std::swap_ranges(swapped.end() - 48, swapped.end() - 24, swapped.end() - 24);
  EXPECT_FALSE(decode_cost_model(swapped).ok()) << "links in another order";
  std::vector<std::byte> bytes = encode(CostModel{});
  const size_t links_at = bytes.size() - 4;
  for (size_t i = 0; i < 4; ++i) bytes[links_at + i] = std::byte{0xff};
  EXPECT_FALSE(decode_cost_model(bytes).ok()) << "4 billion links in no bytes";
}

// ---- Fitting -----------------------------------------------------------------------------------

std::vector<LinkSample> samples_of(const LinkCost& link, std::initializer_list<size_t> sizes) {
  std::vector<LinkSample> samples;
  for (const size_t size : sizes)
    for (int i = 0; i < 7; ++i)
      samples.emplace_back(size, link.latency_s + static_cast<double>(size) / link.bytes_per_s);
  return samples;
}

TEST(Fit, FindsLatencyAndBandwidth) {
  const LinkCost link{.latency_s = 33e-6, .bytes_per_s = 1.1e9};
  const LinkCost fitted = fit_link(samples_of(link, {64, 65536, kMiB, 4 * kMiB}));
  EXPECT_NEAR(fitted.latency_s / link.latency_s, 1, 1e-6);
  EXPECT_NEAR(fitted.bytes_per_s / link.bytes_per_s, 1, 1e-6);
}

TEST(Fit, IsNotMovedByAMinorityOfDisturbedSamples) {
  const LinkCost link{.latency_s = 33e-6, .bytes_per_s = 1.1e9};
  auto samples = samples_of(link, {64, 65536, kMiB, 4 * kMiB});
  std::mt19937 random(1);
  // Up to three of the seven of each size are a hundred times too slow.
  for (size_t i = 0; i < samples.size(); ++i)
    if (i % 7 < 3) samples[i].second *= 2 + static_cast<double>(random() % 100);
  const LinkCost fitted = fit_link(samples);
  EXPECT_NEAR(fitted.latency_s / link.latency_s, 1, 1e-6);
  EXPECT_NEAR(fitted.bytes_per_s / link.bytes_per_s, 1, 1e-6);
}

TEST(Fit, IsNotMovedByOneSizeThatIsAlwaysDisturbed) {
  const LinkCost link{.latency_s = 33e-6, .bytes_per_s = 1.1e9};
  auto samples = samples_of(link, {64, kMiB / 4, kMiB / 2, kMiB, 2 * kMiB, 4 * kMiB});
  for (LinkSample& sample : samples)
    if (sample.first == kMiB / 4) sample.second *= 20;
  EXPECT_NEAR(fit_link(samples).bytes_per_s / link.bytes_per_s, 1, 1e-6);
}

TEST(Fit, LargeMessagesDecideTheBandwidth) {
  // A rate limiter lets the first 128 KiB through at once.
  std::vector<LinkSample> samples;
  for (const size_t size : {size_t{64}, size_t{1024}, size_t{8192}, size_t{16384}, size_t{32768},
                            size_t{65536}, kMiB, 2 * kMiB}) {
    const double limited = size <= 131072 ? 0 : static_cast<double>(size - 131072) / 1.2e7;
    samples.emplace_back(size, 40e-6 + static_cast<double>(size) / 1.2e9 + limited);
  }
  EXPECT_NEAR(fit_link(samples).bytes_per_s / 1.2e7, 1, 0.15);
}

TEST(Fit, WorksWithLittle) {
  const LinkCost otherwise{.latency_s = 1, .bytes_per_s = 2};
  EXPECT_EQ(fit_link({}, otherwise), otherwise);
  const std::vector<LinkSample> unusable = {{64, -1.0}, {64, 0.0}};
  EXPECT_EQ(fit_link(unusable, otherwise), otherwise);
  const std::vector<LinkSample> empty_messages = {{0, 5e-6}};
  EXPECT_EQ(fit_link(empty_messages, otherwise), (LinkCost{5e-6, 2}));
  const std::vector<LinkSample> one_size = {{1000, 1e-3}};
  EXPECT_NEAR(fit_link(one_size).bytes_per_s, 1e6, 1);
  // More bytes took less time: noise. Whatever comes out must be usable.
  const std::vector<LinkSample> backwards = {{1000, 2e-3}, {2000, 1e-3}};
  CostModel model;
  model.inside = fit_link(backwards);
  EXPECT_TRUE(decode_cost_model(encode(model)).ok());
}

}  // namespace
}  // namespace pliant
