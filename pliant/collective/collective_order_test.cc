// What may not depend on the order of things: the bits of a sum, which rank calls what first, and
// which groups work at the same time.
#include <map>

#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

// ---- Bits ---------------------------------------------------------------------------------------

// Values of very different size, so that every other order of summation gives other bits.
Data rough_values(DType dtype, Rank rank, size_t count) {
  std::mt19937_64 prng(static_cast<uint64_t>(rank) + 1);
  Data data;
  for (size_t i = 0; i < count; ++i) {
    const double value =
        std::ldexp(static_cast<double>(prng() % 2001) - 1000.0, static_cast<int>(prng() % 20) - 10);
    if (dtype == DType::kF64) reduce_reference::append(data, value / 3);
    if (dtype == DType::kF32) reduce_reference::append(data, static_cast<float>(value / 3));
    if (dtype == DType::kBF16)
      reduce_reference::append(
          data, reduce_reference::encode(static_cast<float>(value), reduce_reference::kBrain));
  }
  return data;
}

// What every rank got, in a run whose order of events the seed decides.
std::vector<Data> run_with(const Case& call, const std::vector<uint32_t>& hosts,
                           const std::string& strategy, uint64_t seed,
                           Data (*values)(DType, Rank, size_t) = rough_values) {
  TestCluster cluster(
      {.hosts = hosts,
       .plan = plan_of(strategy),
       .taking = seed % 2 == 0 ? FakeNetwork::Taking::kOnArrival : FakeNetwork::Taking::kInSend});
  if (seed > 0) cluster.shuffle(seed);
  std::vector<Data> inputs;
  for (Rank rank = 0; rank < cluster.size(); ++rank)
    inputs.push_back(values(call.dtype, rank, extent(call, rank, cluster.size()).input));
  TestCall one(cluster, call, "sum");
  one.set_inputs(inputs);
  one.begin();
  EXPECT_TRUE(cluster.run_until([&] { return one.done(); })) << one.describe();
  one.release();
  std::vector<Data> outputs;
  for (Rank rank = 0; rank < cluster.size(); ++rank) {
    EXPECT_TRUE(one.status(rank).ok()) << one.describe();
    outputs.push_back(one.output(rank));
  }
  return outputs;
}

TEST(Bits, AreTheSameInEveryOrderOfEvents) {
  for (const auto& hosts : {one_host(6), scattered(7)}) {
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      for (const Collective collective : kReductions) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const Case call{.collective = collective, .dtype = dtype, .count = 333, .root = 2};
          const auto first = run_with(call, hosts, strategy, 0);
          for (uint64_t seed = 1; seed <= 3; ++seed)
            ASSERT_EQ(run_with(call, hosts, strategy, seed), first)
                << call.describe() << " by " << strategy << ", seed " << seed;
          for (const Data& output : first) {
            if (collective == Collective::kAllReduce) {
              ASSERT_EQ(output, first[0])
                  << call.describe() << " by " << strategy << ": ranks differ";
            }
          }
        }
      }
    }
  }
}

Data signed_zeros(DType /*dtype*/, Rank rank, size_t count) {
  Data data;
  for (size_t i = 0; i < count; ++i)
    reduce_reference::append(data, (i >> rank & 1) != 0 ? -0.0F : 0.0F);
  return data;
}

// Which of two equal values is taken depends on which stands first. On the last of these hosts the
// second members are not in the order of the first ones.
TEST(Bits, OfEqualValuesAllRanksTakeTheSame) {
  for (const auto& hosts :
       {one_host(6), scattered(7), std::vector<uint32_t>{0, 1, 2, 3, 1, 2, 3, 0}}) {
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      for (const Op op : {Op::kMin, Op::kMax}) {
        const Case call{.op = op, .count = 128};
        const auto outputs = run_with(call, hosts, strategy, 0, signed_zeros);
        for (const Data& output : outputs)
          ASSERT_EQ(output, outputs[0]) << call.describe() << " by " << strategy;
      }
    }
  }
}

// Registered or not, in place or not, shared or not: the same order of summation.
TEST(Bits, DoNotDependOnTheKindOfMemory) {
  for (const auto& [hosts, strategy] :
       {std::pair(one_host(5), "direct"), std::pair(scattered(7), "hierarchical:ring")}) {
    const Case call{.dtype = DType::kF64, .count = 6000};
    const auto first = run_with(call, hosts, strategy, 0);
    for (const Memory memory : {Memory::kPlain, Memory::kRegistered, Memory::kMixed}) {
      for (const Place place : {Place::kApart, Place::kInPlace}) {
        for (const bool shared : {false, true}) {
          Case other = call;
          other.memory = memory;
          other.place = shared ? Place::kApart : place;
          other.shared_result = shared;
          ASSERT_EQ(run_with(other, hosts, strategy, 5), first) << other.describe();
        }
      }
    }
  }
}

// ---- Names --------------------------------------------------------------------------------------

TEST(Names, RanksMayCallInDifferentOrders) {
  for (const auto& hosts : {one_host(4), in_pairs(5)}) {
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
        cluster.shuffle(seed);
        std::mt19937_64 prng(seed);
        std::vector<std::unique_ptr<TestCall>> calls;
        for (size_t i = 0; i < 24; ++i) {
          const Case call{.collective = kWithBuffers[i % std::size(kWithBuffers)],
                          .dtype = i % 3 == 0 ? DType::kI32 : DType::kF32,
                          .count = i * 11,
                          .root = static_cast<Rank>(i) % cluster.size()};
          calls.push_back(std::make_unique<TestCall>(cluster, call, fmt::format("call {}", i)));
        }
        for (const Rank rank : cluster.order()) {
          std::vector<size_t> order(calls.size());
          std::iota(order.begin(), order.end(), size_t{0});
          for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng() % i]);
          for (const size_t i : order) {
            calls[i]->begin(rank);
            if (prng() % 4 == 0) cluster.step();
          }
        }
        cluster.run_until([&] {
          return std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c->done(); });
        });
        for (auto& call : calls) call->judge(" by " + strategy + fmt::format(", seed {}", seed));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// A rank may be a call ahead of another: its messages wait.
TEST(Names, AFastRankMayBeAhead) {
  for (const char* strategy : {"ring", "hierarchical:ring", "star"}) {
    TestCluster cluster({.hosts = in_pairs(4), .plan = plan_of(strategy)});
    // Rank 0 begins its next broadcast at once; rank 3 sees nothing until the end.
    cluster.pause(3);
    for (int round = 0; round < 3; ++round) {
      TestCall ahead(cluster, {.collective = Collective::kAllReduce, .count = 100}, "a");
      TestCall other(cluster, {.collective = Collective::kBroadcast, .count = 50}, "b");
      for (Rank rank = 0; rank < 4; ++rank) {
        ahead.begin(rank);
        other.begin(rank);
      }
      for (int i = 0; i < 30; ++i) cluster.step();
      EXPECT_FALSE(ahead.done() || other.done());
      cluster.resume(3);
      cluster.run_until([&] { return ahead.done() && other.done(); });
      ahead.judge();
      other.judge();
      cluster.pause(3);
    }
  }
}

TEST(Names, InFlightTwiceIsAnError) {
  TestCluster cluster({.hosts = in_pairs(3), .plan = plan_of("ring")});
  TestCall call(cluster, {.count = 10}, "twice");
  call.begin(0);
  TestCall second(cluster, {.count = 10}, "twice");
  second.begin(0);
  second.release();
  ASSERT_TRUE(second.ended(0));
  EXPECT_EQ(second.status(0).code(), Code::kInvalid);
  EXPECT_NE(second.status(0).error().message.find("already in flight"), std::string::npos);
  // The first is not disturbed.
  call.begin(1);
  call.begin(2);
  cluster.run_until([&] { return call.done(); });
  call.judge();
}

// A callback may make further calls; each runs exactly once.
TEST(Names, CallbacksMayCall) {
  for (const auto& [hosts, strategy] :
       {std::pair(one_host(3), "direct"), std::pair(in_pairs(3), "ring"),
        std::pair(in_pairs(3), "hierarchical:ring")}) {
    TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
    constexpr int kLinks = 5;
    std::vector<std::vector<int32_t>> sums(3, std::vector<int32_t>(kLinks, 1));
    std::vector<int> ran(3, 0);
    std::vector<std::function<void(int)>> start(3);
    for (Rank rank = 0; rank < 3; ++rank) {
      const auto r = static_cast<size_t>(rank);
      start[r] = [&, rank, r](int link) {
        const std::string name = fmt::format("link {}", link);
        Operation call;
        call.name = name;
        call.dtype = DType::kI32;
        call.count = 1;
        call.input = call.output = &sums[r][static_cast<size_t>(link)];
        auto begun = cluster.executor(rank).begin(
            call, cluster.world(rank), [&, r, link](const Status& status, const std::byte*) {
              EXPECT_TRUE(status.ok());
              ++ran[r];
              if (link + 1 < kLinks) start[r](link + 1);
            });
        ASSERT_TRUE(begun.ok()) << begun.error().message;
        cluster.executor(rank).adopt(**begun, cluster.now());
      };
      start[r](0);
    }
    EXPECT_TRUE(cluster.run_until([&] { return ran == std::vector<int>(3, kLinks); })) << strategy;
    for (const auto& sum : sums) EXPECT_EQ(sum, std::vector<int32_t>(kLinks, 3)) << strategy;
    for (Rank rank = 0; rank < 3; ++rank) EXPECT_TRUE(cluster.executor(rank).idle());
  }
}

// ---- Groups -------------------------------------------------------------------------------------

// A 2 x 3 grid: rows are tensor groups, columns data groups. All work at once, under equal names.
TEST(Groups, TensorAndDataGroupsOverlap) {
  for (const auto& hosts : {one_host(6), in_pairs(6), scattered(6)}) {
    for (const char* strategy : {"ring", "star", "clique", "hierarchical:ring", "binary_tree"}) {
      TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
      cluster.shuffle(3);
      std::vector<std::vector<Rank>> groups = {{0, 1, 2}, {3, 4, 5}, {0, 3},
                                               {1, 4},    {5, 2},    {4, 3, 2, 1, 0, 5}};
      for (int round = 0; round < 4; ++round) {
        std::vector<std::unique_ptr<TestCall>> calls;
        for (size_t i = 0; i < groups.size(); ++i) {
          for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather}) {
            Case call;
            call.collective = collective;
            call.count = 40 + i;
            call.memory = round % 2 == 0 ? Memory::kPlain : Memory::kMixed;
            calls.push_back(std::make_unique<TestCall>(
                cluster, call, std::string(to_string(collective)), groups[i]));
            calls.back()->begin();
          }
        }
        cluster.run_until([&] {
          return std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c->done(); });
        });
        for (auto& call : calls) call->judge(std::string(" by ") + strategy);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Groups, TwoOfFiveOnDifferentHosts) {
  TestCluster cluster({.hosts = {0, 0, 1, 1, 2}});
  for (const char* strategy : {"ring", "star", "hierarchical:ring", "multi_star", "tree"}) {
    cluster.set_plan(plan_of(strategy));
    for (const std::vector<Rank>& ranks : {std::vector<Rank>{1, 2}, {4, 0}, {3, 1}}) {
      for (const Collective collective : kWithBuffers) {
        TestCall call(cluster, {.collective = collective, .count = 100, .root = 1}, "two", ranks);
        call.run();
        if (testing::Test::HasFatalFailure()) FAIL() << "by " << strategy;
      }
    }
  }
}

// The same members in another order are another group: what was rank 0 is another peer.
TEST(Groups, OrderOfMembersCounts) {
  TestCluster cluster({.hosts = in_pairs(4), .plan = plan_of("ring")});
  TestCall forward(cluster, {.collective = Collective::kAllGather}, "name", {0, 1, 2, 3});
  TestCall backward(cluster, {.collective = Collective::kAllGather}, "name", {3, 2, 1, 0});
  forward.begin();
  backward.begin();
  cluster.run_until([&] { return forward.done() && backward.done(); });
  forward.judge();
  backward.judge();
}

// ---- Strategies ---------------------------------------------------------------------------------

TEST(Strategies, MayChangeBetweenCalls) {
  const auto hosts = in_pairs(5);
  TestCluster cluster({.hosts = hosts});
  for (const size_t count : {size_t{3}, size_t{500}, size_t{20'000}}) {
    for (const std::string& strategy : strategies_over(hosts)) {
      cluster.set_plan(plan_of(strategy, count > 1000 ? 4096 : 64));
      TestCall(cluster, {.count = count, .memory = Memory::kMixed}, "gradient").run();
      if (testing::Test::HasFatalFailure()) FAIL() << "by " << strategy;
    }
  }
}

// Without shared memory every strategy of messages works, also on one host.
TEST(Strategies, WithoutSharedMemory) {
  TestCluster cluster({.hosts = one_host(4), .shared_memory = false});
  for (const char* strategy : {"ring", "star", "clique", "binary_tree"}) {
    cluster.set_plan(plan_of(strategy));
    for (const Collective collective : kWithBuffers) {
      TestCall(cluster, {.collective = collective, .count = 99}, "call").run();
      if (testing::Test::HasFatalFailure()) FAIL() << "by " << strategy;
    }
  }
  cluster.set_plan(plan_of("direct"));
  TestCall direct(cluster, {.count = 9}, "direct");
  direct.begin();
  direct.release();
  for (Rank rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(direct.ended(rank));
    EXPECT_EQ(direct.status(rank).code(), Code::kInvalid);
  }
}

}  // namespace
}  // namespace pliant
