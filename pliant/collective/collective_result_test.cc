// The memory of shared results, which outlives the leader that provided it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

constexpr Case kStep{
    .count = 30'000, .memory = Memory::kRegistered, .shared_result = true, .mark = 7};

class ResultMemoryTest : public ::testing::Test {
 protected:
  // Runs a call of these ranks, and says in whose memory its result stood; -1 if in nobody's.
  Rank run(const Case& step, const std::string& name, const std::vector<Rank>& ranks) {
    TestCall call(cluster_, step, name, ranks);
    call.run();
    at_ = call.result_at(0);
    for (Rank rank = 0; rank < cluster_.size(); ++rank)
      if (!dropped(rank) && cluster_.segment(rank).contains(at_, 1)) return rank;
    return -1;
  }
  void install(const std::vector<Rank>& ranks, uint32_t epoch, const TestCluster::Gone& gone) {
    for (const Rank rank : ranks) cluster_.install(rank, Epoch{epoch}, gone);
  }
  // Four made a step, then rank 0 was killed.
  void lose_the_leader() {
    ASSERT_EQ(run(kStep, "step", {0, 1, 2, 3}), 0);
    cluster_.kill(0);
    install({1, 2, 3}, 2, {.ended = {0}});
  }
  // The ranks whose memory these still need for results; all must say the same.
  std::vector<Rank> needed(const std::vector<Rank>& ranks) {
    std::vector<PeerId> first;
    for (const Rank rank : ranks) {
      const std::vector<PeerId> in_use =
          cluster_.executor(rank).forget_departed(cluster_.group(ranks, rank));
      if (rank == ranks.front()) first = in_use;
      EXPECT_EQ(in_use, first);
    }
    std::vector<Rank> owners;
    for (const PeerId peer : first)
      for (Rank rank = 0; rank < cluster_.size(); ++rank)
        if (cluster_.peer(rank) == peer) owners.push_back(rank);
    return owners;
  }
  void drop(Rank rank) {
    cluster_.drop_segment(rank);
    dropped_.push_back(rank);
  }
  bool dropped(Rank rank) const {
    return std::find(dropped_.begin(), dropped_.end(), rank) != dropped_.end();
  }

  TestCluster cluster_{{.hosts = one_host(4), .plan = plan_of("direct", 4096)}};
  const std::byte* at_ = nullptr;
  std::vector<Rank> dropped_;
};

TEST_F(ResultMemoryTest, OutlivesItsLeaderUntilTheNextHasItsOwn) {
  lose_the_leader();
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  EXPECT_EQ(needed({1, 2, 3}), std::vector<Rank>{0});
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  cluster_.run_tasks();
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 1);
  EXPECT_TRUE(needed({1, 2, 3}).empty());
  drop(0);
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 1);
}

// A step may ask for more than what was there.
TEST_F(ResultMemoryTest, IsReplacedByMore) {
  lose_the_leader();
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  Case larger = kStep;
  larger.count *= 2;
  EXPECT_EQ(run(larger, "step", {1, 2, 3}), 1);
  cluster_.run_tasks();
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 1);
  EXPECT_TRUE(needed({1, 2, 3}).empty());
}

TEST_F(ResultMemoryTest, StaysWhereThereIsNoRoomForAnother) {
  lose_the_leader();
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  // What a call needs besides: its input and its output.
  Segment& heap = cluster_.segment(1);
  std::vector<std::byte*> rooms;
  for (int i = 0; i < 2; ++i) rooms.push_back(heap.allocate(130'000).value().data());
  while (heap.allocate(1)) {
  }
  for (std::byte* const room : rooms) heap.release(room);
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 0);
  EXPECT_EQ(needed({1, 2, 3}), std::vector<Rank>{0});
}

TEST_F(ResultMemoryTest, OutlivesSeveralLeadersAndServesOneNameAtATime) {
  std::vector<std::string> names = {"a", "b"};
  for (const std::string& name : names) ASSERT_EQ(run(kStep, name, {0, 1, 2, 3}), 0);
  std::vector<Rank> dead;
  for (std::vector<Rank> rest = {1, 2, 3}; rest.size() > 1; rest.erase(rest.begin())) {
    dead.push_back(rest.front() - 1);
    cluster_.kill(dead.back());
    install(rest, static_cast<uint32_t>(rest.front()) + 1, {.ended = dead});
    names.push_back("new with leader " + std::to_string(rest.front()));
    std::vector<std::unique_ptr<TestCall>> calls;
    for (const std::string& name : names) {
      calls.push_back(std::make_unique<TestCall>(cluster_, kStep, name, rest));
      calls.back()->begin();
    }
    cluster_.run_until([&] {
      return std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call->done(); });
    });
    std::set<const std::byte*> places;
    for (const auto& call : calls) {
      call->judge();
      places.insert(call->result_at(0));
    }
    EXPECT_EQ(places.size(), names.size());
    // The two of the first leader are in use again.
    EXPECT_EQ(
        std::count_if(places.begin(), places.end(),
                      [&](const std::byte* at) { return cluster_.segment(0).contains(at, 1); }),
        2);
  }
}

// Several die at once, and the first view without some of them comes to nothing.
TEST_F(ResultMemoryTest, OfALeaderThatIsFoundDeadOneViewLater) {
  ASSERT_EQ(run(kStep, "step", {0, 1, 2, 3}), 0);
  cluster_.kill(3);
  cluster_.kill(0);
  install({1, 2}, 2, {.ended = {3}});
  install({1, 2}, 3, {.ended = {3, 0}});
  EXPECT_EQ(run(kStep, "step", {1, 2}), 0);
}

// What a leader had in one view it may have used otherwise in the next.
TEST_F(ResultMemoryTest, IsWhatTheLeaderUsedLast) {
  ASSERT_EQ(run(kStep, "step", {0, 1, 2, 3}), 0);
  const std::byte* const former = at_;
  install({0, 1, 2}, 2, {.ended = {3}});
  Case larger = kStep;
  larger.count *= 2;
  ASSERT_EQ(run(larger, "step", {0, 1, 2}), 0);
  const std::byte* const last = at_;
  ASSERT_NE(former, last);
  cluster_.kill(0);
  install({1, 2}, 3, {.ended = {0, 3}});
  EXPECT_EQ(run(kStep, "step", {1, 2}), 0);
  EXPECT_EQ(at_, last);
  EXPECT_EQ(run(kStep, "another", {1, 2}), 1);
}

TEST_F(ResultMemoryTest, IsNotForThoseWhoNeverSawIt) {
  ASSERT_EQ(run(kStep, "step", {0, 1, 2}), 0);
  cluster_.kill(0);
  install({1, 2, 3}, 2, {.ended = {0}});
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 1);
  EXPECT_EQ(run(kStep, "step", {1, 2}), 0);
  // The first group is the one that goes on.
  EXPECT_TRUE(needed({1, 2, 3}).empty());
  drop(0);
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 1);
  EXPECT_EQ(run(kStep, "step", {1, 2}), 1);
}

TEST_F(ResultMemoryTest, IsNotTakenFromTheLiving) {
  ASSERT_EQ(run(kStep, "step", {0, 1, 2, 3}), 0);
  install({0, 1, 2, 3}, 2, {});
  EXPECT_EQ(run(kStep, "step", {1, 2}), 1);
}

// Members agree by their steps on what they still need; other calls come when they come.
TEST_F(ResultMemoryTest, IsInheritedByStepsAlone) {
  lose_the_leader();
  Case other = kStep;
  other.mark = 0;
  EXPECT_EQ(run(other, "other", {1, 2, 3}), 1);
  EXPECT_TRUE(needed({1, 2, 3}).empty());
  drop(0);
  EXPECT_EQ(run(kStep, "step", {1, 2, 3}), 1);
}

// One that was only stopped may go on to write into a result of a former view.
TEST_F(ResultMemoryTest, WaitsForThoseWhoMayStillWriteToIt) {
  ASSERT_EQ(run(kStep, "step", {0, 1, 2, 3}), 0);
  cluster_.kill(0);
  cluster_.pause(3);
  install({1, 2}, 2, {.ended = {0}, .at_large = {3}});
  EXPECT_EQ(run(kStep, "step", {1, 2}), 1);
  EXPECT_EQ(run(kStep, "step", {1, 2}), 1);
}

}  // namespace
}  // namespace pliant
