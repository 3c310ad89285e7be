// Ranks that disagree about a call: all must hear of it, nobody may wait for ever, and the name can
// be used again.
#include <gmock/gmock.h>

#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

using testing::HasSubstr;

struct Mismatch {
  const char* name;
  Case call;
  std::function<void(Operation&)> change;  // what one rank does differently
};

std::vector<Mismatch> mismatches(std::vector<size_t>& other_counts) {
  const auto of = [](Collective collective, size_t count = 50) {
    return Case{.collective = collective, .count = count, .root = 1};
  };
  std::vector<Mismatch> all;
  for (const Collective collective : kWithBuffers) {
    all.push_back({"count", of(collective), [](Operation& call) { call.count = 49; }});
    all.push_back({"no elements", of(collective), [](Operation& call) { call.count = 0; }});
    all.push_back({"dtype", of(collective), [](Operation& call) { call.dtype = DType::kI32; }});
    all.push_back({"collective", of(collective), [](Operation& call) {
                     call.collective = call.collective == Collective::kAllReduce
                                           ? Collective::kBroadcast
                                           : Collective::kAllReduce;
                   }});
    all.push_back({"barrier", of(collective),
                   [](Operation& call) { call.collective = Collective::kBarrier; }});
    all.push_back({"type that cannot be", of(collective),
                   [](Operation& call) { call.dtype = static_cast<DType>(99); }});
    if (reduces(collective)) {
      all.push_back({"op", of(collective), [](Operation& call) { call.op = Op::kMax; }});
      all.push_back({"bool", of(collective), [](Operation& call) { call.dtype = DType::kBool; }});
    }
    if (takes_counts(collective))
      all.push_back({"counts", of(collective),
                     [&other_counts](Operation& call) { call.counts = other_counts; }});
    all.push_back(
        {"large and small", of(collective, 30'000), [](Operation& call) { call.count = 5; }});
  }
  for (const Collective collective :
       {Collective::kReduce, Collective::kBroadcast, Collective::kGather, Collective::kScatter}) {
    all.push_back({"root", of(collective), [](Operation& call) { call.root = 0; }});
    all.push_back({"no such root", of(collective), [](Operation& call) { call.root = 99; }});
    all.push_back({"root of nothing", of(collective, 0), [](Operation& call) { call.root = 0; }});
  }
  return all;
}

// Lets the call end on every rank, with the time that may take; it must fail on all of them.
void expect_invalid_everywhere(TestCluster& cluster, TestCall& call, const std::string& what) {
  cluster.run_until([&] { return call.done(); });
  // Calls that send each other nothing find out when they ask.
  if (!call.done()) cluster.pass(std::chrono::seconds(2));
  cluster.run_until([&] { return call.done(); });
  ASSERT_TRUE(call.done()) << what << " hangs: " << call.describe();
  call.release();
  for (Rank rank = 0; rank < cluster.size(); ++rank) {
    ASSERT_TRUE(call.ended(rank)) << what << " on rank " << rank << ": " << call.describe();
    ASSERT_FALSE(call.status(rank).ok()) << what << " on rank " << rank << ": " << call.describe();
    ASSERT_EQ(call.status(rank).code(), Code::kInvalid)
        << what << " on rank " << rank << ": " << call.describe() << ": "
        << call.status(rank).error().message;
    ASSERT_THAT(call.status(rank).error().message, HasSubstr("'name'")) << what << call.describe();
  }
}

class Mismatches : public testing::TestWithParam<const char*> {
 protected:
  void run_all(const std::vector<uint32_t>& hosts, uint64_t seed) {
    const std::string strategy = GetParam();
    TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
    if (seed > 0) cluster.shuffle(seed);
    std::vector<size_t> other_counts(hosts.size(), 50);
    other_counts[1] = 51;
    for (const Mismatch& mismatch : mismatches(other_counts)) {
      for (const Rank odd : {0, cluster.size() - 1}) {
        // The buffers are large enough for what every rank asks for.
        Case call = mismatch.call;
        TestCall wrong(cluster, call, "name");
        std::vector<std::byte> room(call.count * 4 * hosts.size() + 4096);
        std::vector<std::byte> more(room.size());
        for (const Rank rank : cluster.order()) {
          wrong.begin(rank, [&](Operation& operation) {
            if (rank != odd) return;
            operation.input = room.data();
            operation.output = more.data();
            mismatch.change(operation);
          });
        }
        expect_invalid_everywhere(cluster, wrong,
                                  fmt::format("{} of rank {} by {}", mismatch.name, odd, strategy));
        if (HasFatalFailure()) return;
        // The name is as good as new, again and again.
        for (int round = 0; round < 3; ++round) {
          Case right = call;
          right.count = round == 1 ? 1000 : 20;
          right.memory = round == 2 ? Memory::kRegistered : Memory::kPlain;
          TestCall(cluster, right, "name").run();
          if (HasFatalFailure()) {
            FAIL() << "after " << mismatch.name << " of rank " << odd << " by " << strategy;
          }
        }
      }
    }
  }
};

TEST_P(Mismatches, FailOnEveryRank) {
  const std::string strategy = GetParam();
  if (strategy == "direct") return run_all(one_host(4), 0);
  run_all({0, 0, 1, 1, 2}, 0);
}
TEST_P(Mismatches, FailOnEveryRankInAnyOrder) {
  const std::string strategy = GetParam();
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    run_all(strategy == "direct" ? one_host(3) : std::vector<uint32_t>{0, 1, 0, 1}, seed);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Mismatches,
                         testing::Values("direct", "star", "star@1", "ring", "clique",
                                         "binary_tree", "multi_star", "hierarchical:ring",
                                         "exchange", "doubling", "hierarchical:exchange",
                                         "hierarchical:star@1"));

// Each rank plans for itself; if the plans differ, nothing may be mixed up.
TEST(StrategyMismatch, FailsOnEveryRank) {
  const std::vector<std::string> plans = {
      "star", "star@1", "ring", "clique", "binary_tree", "direct", "hierarchical:ring"};
  for (const auto& hosts : {one_host(3), std::vector<uint32_t>{0, 0, 1}}) {
    for (const std::string& most : plans) {
      for (const std::string& one : plans) {
        const bool several = hosts.back() != 0;
        if (several && (most == "direct" || one == "direct")) continue;
        // Over one host these two are one.
        if (most == one || (!several && most[0] + one[0] == 'd' + 'h')) continue;
        TestCluster cluster({.hosts = hosts, .plan = plan_of(most)});
        for (const size_t count : {size_t{5}, size_t{30'000}}) {
          for (const Rank odd : {0, 2}) {
            cluster.set_plan(odd, plan_of(one));
            TestCall wrong(cluster, {.count = count}, "name");
            wrong.begin();
            expect_invalid_everywhere(cluster, wrong, most + " and " + one);
            if (testing::Test::HasFatalFailure()) return;
            cluster.set_plan(plan_of(most));
            TestCall(cluster, {.count = count}, "name").run();
            if (testing::Test::HasFatalFailure()) FAIL() << "after " << most << " and " << one;
          }
        }
      }
    }
  }
}

TEST(Mismatch, SendAndReceive) {
  TestCluster cluster({.hosts = {0, 1}});
  for (const auto& [sends, takes] :
       {std::pair<size_t, size_t>{5, 6}, {0, 6}, {5, 0}, {30'000, 5}, {5, 30'000}}) {
    std::vector<float> data(30'000);
    Operation call;
    call.name = "message";
    call.collective = Collective::kSend;
    call.input = data.data();
    call.count = sends;
    call.root = 1;
    Execution* sender = cluster.executor(0).begin(call, cluster.world(0)).value();
    call.collective = Collective::kReceive;
    call.output = data.data();
    call.count = takes;
    call.root = 0;
    Execution* receiver = cluster.executor(1).begin(call, cluster.world(1)).value();
    cluster.executor(0).adopt(*sender, cluster.now());
    cluster.executor(1).adopt(*receiver, cluster.now());
    ASSERT_TRUE(cluster.run_until([&] { return sender->finished() && receiver->finished(); }))
        << sends << " sent, " << takes << " awaited";
    EXPECT_EQ(sender->take_status().code(), Code::kInvalid);
    EXPECT_EQ(receiver->take_status().code(), Code::kInvalid);
    cluster.executor(0).release(*sender);
    cluster.executor(1).release(*receiver);
  }
}

// On one host all ranks must agree where the result goes.
TEST(Mismatch, SharedResult) {
  TestCluster cluster({.hosts = one_host(3), .plan = plan_of("direct", 1024)});
  TestCall call(cluster, {.count = 6000}, "name");
  call.begin(0);
  call.begin(1, [](Operation& operation) { operation.shared_result = true; });
  call.begin(2);
  expect_invalid_everywhere(cluster, call, "shared result");
  TestCall(cluster, {.count = 6000}, "name").run();
}

// A rank that has not heard of the failure yet still works in shared memory on the call that the
// others have given up; it must not get in the way of the next one.
TEST(Mismatch, IsNotHeardOfByASlowRank) {
  for (const Rank slow : {0, 1}) {
    TestCluster cluster({.hosts = {0, 0, 1}, .plan = plan_of("hierarchical:ring")});
    for (int round = 0; round < 4; ++round) {
      for (const Rank rank : {0, 1, 2})
        cluster.network().hold(cluster.peer(rank), cluster.peer(slow));
      TestCall wrong(cluster, {.count = 900}, "name");
      wrong.begin(slow);
      cluster.pause(slow);
      wrong.begin(1 - slow);
      wrong.begin(2, [](Operation& operation) { operation.count = 899; });
      const auto others_done = [&] { return wrong.finished(1 - slow) && wrong.finished(2); };
      ASSERT_TRUE(cluster.run_until(others_done));
      wrong.release();
      TestCall right(cluster, {.count = 900}, "name");
      right.begin(1 - slow);
      right.begin(2);
      for (int i = 0; i < 10; ++i) cluster.step();
      cluster.resume(slow);
      for (int i = 0; i < 10; ++i) cluster.step();
      for (const Rank rank : {0, 1, 2})
        cluster.network().release(cluster.peer(rank), cluster.peer(slow));
      ASSERT_TRUE(cluster.run_until([&] { return wrong.done(); }));
      wrong.release();
      for (const Rank rank : {0, 1, 2}) EXPECT_EQ(wrong.status(rank).code(), Code::kInvalid);
      right.begin(slow);
      cluster.run_until([&] { return right.done(); });
      right.judge();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Posting takes memory that all calls share; only when it is done may a caller go on by itself.
TEST(Mismatch, IsSettledWithTheLoop) {
  TestCluster cluster({.hosts = one_host(2), .plan = plan_of("direct")});
  TestCall wrong(cluster, {.count = 900}, "name");
  wrong.begin(0);
  cluster.pause(0);
  wrong.begin(1, [](Operation& operation) { operation.count = 899; });
  ASSERT_TRUE(cluster.run_until([&] { return wrong.finished(1); }));
  wrong.release();
  TestCall right(cluster, {.count = 900}, "name");
  right.begin(1);
  EXPECT_FALSE(right.runs_alone(1));
  cluster.resume(0);
  ASSERT_TRUE(cluster.run_until([&] { return wrong.done(); }));
  wrong.release();
  right.begin(0);
  EXPECT_TRUE(right.runs_alone(0));
  cluster.run_until([&] { return right.done(); });
  right.judge();
}

TEST(Mismatch, SaysWhatDiffers) {
  for (const auto& hosts : {one_host(2), std::vector<uint32_t>{0, 1}}) {
    TestCluster cluster({.hosts = hosts, .plan = plan_of("hierarchical:ring")});
    TestCall call(cluster, {.count = 12}, "loss");
    call.begin(0);
    call.begin(1, [](Operation& operation) { operation.count = 11; });
    cluster.run_until([&] { return call.done(); });
    call.release();
    for (Rank rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(call.status(rank).error().message,
                  testing::AllOf(HasSubstr("operation 'loss' differs between ranks"),
                                 HasSubstr("all_reduce of 12 x f32 sum"),
                                 HasSubstr("all_reduce of 11 x f32 sum")));
    }
  }
}

// What is wrong by itself is refused before anything is sent; the others are told.
TEST(WrongCalls, AreRefused) {
  TestCluster cluster({.hosts = {0, 0, 1}, .plan = plan_of("ring")});
  std::vector<float> data(100);
  std::vector<size_t> counts(4, 1);
  Operation right;
  right.name = "name";
  right.input = data.data();
  right.output = data.data() + 50;
  right.count = 10;
  const auto code = [&](auto change) {
    Operation wrong = right;
    change(wrong);
    auto begun = cluster.executor(0).begin(wrong, cluster.world(0));
    return begun.ok() ? Code{} : begun.code();
  };
  EXPECT_EQ(code([](Operation& c) { c.name = ""; }), Code::kInvalid);
  const std::string long_name(257, 'x');
  EXPECT_EQ(code([&](Operation& c) { c.name = long_name; }), Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) { c.collective = static_cast<Collective>(77); }), Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) { c.op = static_cast<Op>(77); }), Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) { c.dtype = DType::kBool; }), Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) { c.output = nullptr; }), Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) { c.input = c.output = nullptr; }), Code::kInvalid);
  EXPECT_EQ(code([&](Operation& c) { c.output = data.data() + 5; }), Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) { c.count = SIZE_MAX / 2; }), Code::kInvalid);
  EXPECT_EQ(code([&](Operation& c) { c.counts = counts; }), Code::kInvalid);
  EXPECT_EQ(code([&](Operation& c) {
              c.collective = Collective::kAllGather;
              c.counts = counts;
            }),
            Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) {
              c.collective = Collective::kBroadcast;
              c.root = 3;
            }),
            Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) {
              c.collective = Collective::kSend;
              c.root = 0;
            }),
            Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) {
              c.collective = Collective::kAllToAll;
              c.count = size_t{1} << 63;
            }),
            Code::kInvalid);
  EXPECT_EQ(code([](Operation& c) {
              c.collective = Collective::kReduceScatter;
              c.input = nullptr;
            }),
            Code::kInvalid);
}

}  // namespace
}  // namespace pliant
