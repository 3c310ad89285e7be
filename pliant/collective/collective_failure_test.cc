// Calls that cannot succeed because a rank never comes or dies: the others hear of it and of whom,
// and what can go on does.
#include <gmock/gmock.h>

#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

using testing::HasSubstr;

// ---- Deadlines ----------------------------------------------------------------------------------

class Deadlines : public testing::TestWithParam<const char*> {};

TEST_P(Deadlines, NameTheRankThatDidNotCome) {
  const std::string strategy = GetParam();
  for (const Collective collective : kWithBuffers) {
    for (const size_t count : {size_t{0}, size_t{30}, size_t{30'000}}) {
      const auto hosts = strategy == "direct" ? one_host(5) : std::vector<uint32_t>{0, 0, 1, 1, 2};
      TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy, 1024)});
      constexpr Rank kMissing = 3;
      TestCall call(cluster, {.collective = collective, .count = count, .root = 1}, "name");
      for (Rank rank = 0; rank < 5; ++rank)
        if (rank != kMissing) call.begin(rank);
      for (int i = 0; i < 110 && !call.done(); ++i) {
        cluster.run_until([&] { return call.done(); });
        cluster.pass(std::chrono::milliseconds(100));
      }
      ASSERT_TRUE(call.done()) << call.describe() << " by " << strategy;
      call.release();
      for (Rank rank = 0; rank < 5; ++rank) {
        if (rank == kMissing) continue;
        ASSERT_FALSE(call.status(rank).ok()) << call.describe() << " by " << strategy;
        const Error& error = call.status(rank).error();
        ASSERT_EQ(error.code, Code::kTimeout) << error.message;
        ASSERT_EQ(error.peer, cluster.peer(kMissing)) << call.describe() << ": " << error.message;
        ASSERT_THAT(error.message, HasSubstr("rank 3 did not make the same call"))
            << call.describe() << " by " << strategy << " on rank " << rank;
      }
      // The group is out of step; other groups are not.
      TestCall again(cluster, {.count = 3}, "other");
      again.begin(0);
      again.release();
      ASSERT_TRUE(again.ended(0));
      EXPECT_EQ(again.status(0).code(), Code::kTimeout);
      TestCall others(cluster, {.count = 3}, "other", {0, 1});
      others.run();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Deadlines,
                         testing::Values("direct", "star", "ring", "clique", "binary_tree",
                                         "exchange", "doubling", "hierarchical:ring"));

// Nothing goes from rank 0 to rank 1, which asks after the others like everybody: rank 0 has all
// it waits for, and cannot get rid of what it has to give.
TEST(Deadline, NamesTheRankThatDoesNotTakeItsData) {
  for (const char* const strategy : {"star", "clique", "exchange"}) {
    TestCluster cluster({.hosts = {0, 1}, .plan = plan_of(strategy), .shared_memory = false});
    cluster.network().hold(cluster.peer(0), cluster.peer(1));
    TestCall call(cluster, {.count = 30}, "name");
    call.begin();
    for (int i = 0; i < 110; ++i) {
      cluster.run_until([&] { return call.done(); });
      cluster.pass(std::chrono::milliseconds(100));
    }
    call.release();
    ASSERT_FALSE(call.status(0).ok()) << strategy;
    EXPECT_EQ(call.status(0).error().peer, cluster.peer(1)) << call.status(0).error().message;
    cluster.network().release(cluster.peer(0), cluster.peer(1));
  }
}

// A rank that made its call and then stopped does not answer; those that wait like us do.
TEST(Deadline, NamesTheRankThatFellSilent) {
  for (const auto& [hosts, strategy] :
       {std::pair(one_host(4), "direct"), std::pair(in_pairs(4), "ring"),
        std::pair(in_pairs(4), "hierarchical:ring"), std::pair(in_pairs(4), "binary_tree")}) {
    TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
    TestCall call(cluster, {.count = 30'000}, "name");
    call.begin();
    cluster.step();
    cluster.pause(2);
    for (int i = 0; i < 110; ++i) {
      for (int j = 0; j < 5; ++j) cluster.step();
      cluster.pass(std::chrono::milliseconds(100));
    }
    call.release();
    for (const Rank rank : {0, 1, 3}) {
      ASSERT_TRUE(call.ended(rank)) << strategy;
      ASSERT_FALSE(call.status(rank).ok()) << strategy;
      EXPECT_EQ(call.status(rank).code(), Code::kTimeout);
      EXPECT_EQ(call.status(rank).error().peer, cluster.peer(2))
          << strategy << ": " << call.status(rank).error().message;
    }
  }
}

// The deadline counts from the call, also for a name that was used before.
TEST(Deadline, CountsFromTheCall) {
  TestCluster cluster({.hosts = one_host(2), .plan = plan_of("direct")});
  for (int round = 0; round < 5; ++round) {
    TestCall call(cluster, {.count = 10}, "name");
    call.begin(0);
    cluster.step();
    cluster.pass(std::chrono::seconds(9));
    cluster.step();
    EXPECT_FALSE(call.done());
    call.begin(1);
    cluster.run_until([&] { return call.done(); });
    call.judge();
  }
}

// ---- Losses -------------------------------------------------------------------------------------

class Losses : public testing::TestWithParam<const char*> {
 protected:
  std::vector<uint32_t> hosts() const {
    return std::string_view(GetParam()) == "direct" ? one_host(5)
                                                    : std::vector<uint32_t>{0, 0, 1, 1, 2};
  }
};

// Killed after any number of steps; the others are told, as an agent would, and must all fail or
// have finished before.
TEST_P(Losses, InTheMiddleOfACall) {
  for (const Collective collective : kWithBuffers) {
    for (const Rank victim : {0, 3}) {
      for (const int steps : {0, 1, 2, 4, 8, 16}) {
        TestCluster cluster({.hosts = hosts(), .plan = plan_of(GetParam(), 256)});
        cluster.shuffle(static_cast<uint64_t>(steps) + 1);
        TestCall call(cluster,
                      {.collective = collective,
                       .count = 30'000,
                       .root = 1,
                       .memory = steps % 2 == 0 ? Memory::kMixed : Memory::kRegistered},
                      "name");
        call.begin();
        for (int i = 0; i < steps; ++i) cluster.step();
        cluster.kill(victim);
        for (Rank rank = 0; rank < 5; ++rank)
          if (rank != victim)
            cluster.executor(rank).lost(cluster.peer(victim),
                                        {Code::kPeerLost, fmt::format("rank {} died", victim),
                                         cluster.peer(victim), TestCluster::kEpoch});
        const auto others_done = [&] {
          for (Rank rank = 0; rank < 5; ++rank)
            if (rank != victim && !call.finished(rank)) return false;
          return true;
        };
        ASSERT_TRUE(cluster.run_until(others_done)) << call.describe() << " by " << GetParam();
        call.release();
        for (Rank rank = 0; rank < 5; ++rank) {
          if (rank == victim || call.status(rank).ok()) continue;
          EXPECT_EQ(call.status(rank).code(), Code::kPeerLost);
          EXPECT_EQ(call.status(rank).error().peer, cluster.peer(victim));
        }
        if (steps == 0) {
          EXPECT_FALSE(call.status(1).ok());
        }
        // Whoever calls later hears of it at once; a group without the dead goes on.
        TestCall later(cluster, {.count = 3}, "later");
        later.begin(1);
        later.release();
        ASSERT_TRUE(later.ended(1));
        EXPECT_EQ(later.status(1).code(), Code::kPeerLost);
        TestCall(cluster, {.count = 300}, "name", {1, 2, 4}).run();
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Losses,
                         testing::Values("direct", "star", "ring", "clique", "hierarchical:ring"));

// The network alone notices, for those that have a link to the dead.
TEST(Loss, IsSeenByTheNetwork) {
  TestCluster cluster({.hosts = {0, 1, 2}, .plan = plan_of("clique")});
  TestCall(cluster, {.count = 30}, "warm up").run();
  TestCall call(cluster, {.count = 30'000}, "name");
  call.begin(0);
  call.begin(1);
  cluster.kill(2);
  ASSERT_TRUE(cluster.run_until([&] { return call.done(); }));
  call.release();
  for (const Rank rank : {0, 1}) {
    EXPECT_EQ(call.status(rank).code(), Code::kPeerLost);
    EXPECT_EQ(call.status(rank).error().peer, cluster.peer(2));
  }
}

// A rank that has done its part may end; the rest of the call does not need it.
TEST(Loss, OfARankThatLeftInOrderDisturbsNobody) {
  for (const auto& [hosts, strategy] :
       {std::pair(one_host(4), "direct"), std::pair(in_pairs(4), "star@1"),
        std::pair(in_pairs(4), "ring"), std::pair(in_pairs(4), "hierarchical:ring")}) {
    TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
    TestCall(cluster, {.count = 30}, "before").run();
    TestCall call(cluster, {.count = 2000}, "last");
    call.begin();
    cluster.pause(3);
    // Rank 3 is slow: it has all it needs, but does not get to it before the others have left.
    for (int i = 0; i < 200; ++i) cluster.step();
    cluster.resume(3);
    Rank first = -1;
    ASSERT_TRUE(cluster.run_until([&] {
      for (Rank rank = 0; rank < 3 && first < 0; ++rank)
        if (call.finished(rank)) first = rank;
      return first >= 0;
    })) << strategy;
    call.release();
    ASSERT_TRUE(call.status(first).ok()) << strategy;
    cluster.leave(first);
    ASSERT_TRUE(cluster.run_until([&] { return call.done(); })) << strategy;
    call.release();
    for (Rank rank = 0; rank < 4; ++rank)
      ASSERT_TRUE(call.status(rank).ok())
          << strategy << " on rank " << rank << ": " << call.status(rank).error().message;
    // A call that needs it fails.
    const Rank other = first == 0 ? 1 : 0;
    cluster.executor(other).lost(cluster.peer(first),
                                 {Code::kPeerLost, "gone", cluster.peer(first), {}});
    TestCall later(cluster, {.count = 3}, "later");
    later.begin(other);
    later.release();
    ASSERT_TRUE(later.ended(other)) << strategy;
    EXPECT_EQ(later.status(other).code(), Code::kPeerLost) << strategy;
  }
}

// Rank 2 saw rank 1 die and ended; its good-bye comes before the news of that death.
TEST(Loss, IsNamedByThoseThatLeaveBecauseOfIt) {
  for (const bool in_flight : {true, false}) {
    TestCluster cluster({.hosts = {0, 1, 2}, .plan = plan_of("star")});
    TestCall(cluster, {.collective = Collective::kAllToAll, .count = 30}, "before").run();
    cluster.pause(1);
    TestCall call(cluster, {.count = 3}, "now");
    if (in_flight) call.begin(0);
    const PeerId told = cluster.peer(0);
    cluster.executor(2).say_goodbye({&told, 1}, cluster.peer(1));
    for (int i = 0; i < 10; ++i) cluster.step();
    cluster.executor(0).lost(cluster.peer(2), {Code::kPeerLost, "gone", cluster.peer(2), {}});
    if (!in_flight) call.begin(0);
    ASSERT_TRUE(cluster.run_until([&] { return call.done(); }));
    call.release();
    ASSERT_FALSE(call.status(0).ok());
    EXPECT_EQ(call.status(0).code(), Code::kPeerLost);
    EXPECT_EQ(call.status(0).error().peer, cluster.peer(1)) << call.status(0).error().message;
  }
}

// It left before it made the call: those that wait for it learn so.
TEST(Loss, OfARankThatLeftWithoutItsPart) {
  for (const auto& [hosts, strategy] :
       {std::pair(one_host(4), "direct"), std::pair(in_pairs(4), "star"),
        std::pair(in_pairs(4), "hierarchical:ring")}) {
    TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
    TestCall before(cluster, {.collective = Collective::kAllToAll, .count = 30}, "before");
    before.run();
    TestCall call(cluster, {.count = 2000}, "name");
    for (const Rank rank : {0, 1, 2}) call.begin(rank);
    for (int i = 0; i < 20; ++i) cluster.step();
    cluster.leave(3);
    // On one host no link was needed so far; there the agent tells.
    if (std::string_view(strategy) == "direct")
      for (Rank rank = 0; rank < 3; ++rank)
        cluster.executor(rank).lost(cluster.peer(3),
                                    {Code::kPeerLost, "gone", cluster.peer(3), {}});
    ASSERT_TRUE(cluster.run_until([&] { return call.done(); })) << strategy;
    call.release();
    for (const Rank rank : {0, 1, 2}) {
      EXPECT_EQ(call.status(rank).code(), Code::kPeerLost) << strategy;
      EXPECT_EQ(call.status(rank).error().peer, cluster.peer(3)) << strategy;
    }
  }
}

TEST(Cancelling, EndsEveryCall) {
  TestCluster cluster({.hosts = {0, 0, 1}, .plan = plan_of("hierarchical:ring")});
  TestCall call(cluster, {.count = 3000}, "name");
  call.begin(0);
  cluster.executor(0).cancel_all({Code::kCancelled, "the session ends", {}, {}});
  ASSERT_TRUE(cluster.run_until([&] { return call.done(); }));
  call.release();
  EXPECT_EQ(call.status(0).code(), Code::kCancelled);
}

// ---- Changes of the view ------------------------------------------------------------------------

// Rank 0 has the next view and makes calls in it. Rank 1 may still complete the call that rank 0
// has left, from what rank 0 had posted: it has not heard of the view yet, or another thread of it
// is in that call.
TEST(ViewChange, LeavesTheFormerCallsToThoseStillInThem) {
  for (const bool knows_the_view : {false, true}) {
    TestCluster cluster({.hosts = one_host(2), .plan = plan_of("direct", 64)});
    const Case large{.count = 30'000, .memory = Memory::kRegistered};
    TestCall call(cluster, large, "large");
    call.begin();
    ASSERT_FALSE(call.finished(1));
    cluster.executor(0).interrupt({Code::kStaleEpoch, "the view changed", {}, {}});
    cluster.executor(0).advance_all(cluster.now());
    call.release();
    ASSERT_EQ(call.status(0).code(), Code::kStaleEpoch);
    cluster.pause(0);
    cluster.install(0, Epoch{2});
    if (knows_the_view) cluster.install(1, Epoch{2});
    // Enough of them for every channel that is free.
    std::vector<std::unique_ptr<TestCall>> calls;
    for (int name = 0; name < 1500; ++name) {
      calls.push_back(
          std::make_unique<TestCall>(cluster, Case{.count = 3}, fmt::format("name {}", name)));
      calls.back()->begin(0);
    }
    ASSERT_TRUE(cluster.run_until([&] { return call.finished(1); }));
    call.release();
    ASSERT_TRUE(call.status(1).ok()) << call.status(1).error().message;
    const std::vector<Data> inputs = {values(large, 0, large.count), values(large, 1, large.count)};
    EXPECT_TRUE(call.output(1) == expected(large, inputs)[1]) << "wrong values";

    if (!knows_the_view) cluster.install(1, Epoch{2});
    cluster.resume(0);
    for (auto& each : calls) each->begin(1);
    cluster.run_until([&] {
      return std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c->done(); });
    });
    for (auto& each : calls) {
      ASSERT_TRUE(each->done());
      each->release();
      ASSERT_EQ(each->status(0).ok(), each->status(1).ok());
    }
    TestCall(cluster, large, "large").run();
  }
}

// Names that nobody is using do not hold back those of the next view.
TEST(ViewChange, LeavesRoom) {
  TestCluster cluster({.hosts = one_host(2), .plan = plan_of("direct", 256)});
  for (int name = 0; name < 3000; ++name)
    TestCall(cluster, {.count = 3}, fmt::format("name {}", name)).run();
  cluster.install(0, Epoch{2});
  TestCall call(cluster, {.count = 3}, "name");
  call.begin(0);
  cluster.install(1, Epoch{2});
  call.begin(1);
  cluster.run_until([&] { return call.done(); });
  call.judge();
}

// Whoever keeps a call of a former view in its hands keeps nothing of those who have departed.
TEST(ViewChange, MayComeBeforeACallIsGivenBack) {
  for (const size_t count : {size_t{3}, size_t{30'000}}) {
    TestCluster cluster({.hosts = one_host(3), .plan = plan_of("direct", 4096)});
    TestCall kept(cluster, {.count = count}, "kept");
    kept.begin();
    ASSERT_TRUE(cluster.run_until([&] { return kept.done(); }));
    for (const Rank rank : {0, 1}) cluster.install(rank, Epoch{2});
    cluster.kill(2);
    cluster.drop_segment(2);
    kept.judge();
    TestCall(cluster, {.count = count}, "next", {0, 1}).run();
    for (const Rank rank : {0, 1}) cluster.install(rank, Epoch{3});
    TestCall(cluster, {.count = count}, "last", {0, 1}).run();
  }
}

}  // namespace
}  // namespace pliant
