// Shared memory: where buffers are, in place or not, shared results, one name over and over.
#include <sys/mman.h>

#include <set>

#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

constexpr Memory kMemories[] = {Memory::kPlain, Memory::kRegistered, Memory::kMixed};
constexpr Place kPlaces[] = {Place::kApart, Place::kInPlace};
// Inline; too many elements for that; and back, so that nothing depends on the call before.
constexpr size_t kCounts[] = {7, 6000, 0, 900, 1, 6001, 7};

class HostModes : public testing::TestWithParam<Rank> {
 protected:
  // One name for all calls, which differ in size, type, memory and collective.
  void run_sequence(TestCluster& cluster, Case call, const std::string& where) {
    for (const size_t count : kCounts) {
      call.count = count;
      call.dtype = count % 2 == 0 ? DType::kF32 : DType::kI16;
      TestCall one(cluster, call, "again");
      one.begin();
      cluster.run_until([&] { return one.done(); });
      one.judge(where);
      if (HasFatalFailure()) return;
    }
  }

  void run_modes(const std::vector<uint32_t>& hosts, const std::string& strategy, int cores = 1) {
    TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy, 256, cores)});
    for (const Collective collective : kWithBuffers) {
      for (const Memory memory : kMemories) {
        for (const Place place : kPlaces) {
          run_sequence(cluster,
                       {.collective = collective,
                        .root = cluster.size() - 1,
                        .memory = memory,
                        .place = place},
                       " by " + strategy);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

TEST_P(HostModes, Direct) { run_modes(one_host(GetParam()), "direct"); }
TEST_P(HostModes, DirectOnTwoCores) { run_modes(one_host(GetParam()), "direct", 2); }
TEST_P(HostModes, DirectOnManyCores) { run_modes(one_host(GetParam()), "direct", 64); }
TEST_P(HostModes, BetweenHosts) { run_modes(in_pairs(GetParam()), "hierarchical:ring"); }
TEST_P(HostModes, BetweenUnequalHosts) { run_modes(scattered(GetParam()), "hierarchical:star@1"); }

TEST_P(HostModes, SharedResult) {
  for (const auto& hosts : {one_host(GetParam()), in_pairs(GetParam()), scattered(GetParam())}) {
    for (const char* strategy :
         {"direct", "hierarchical:ring", "hierarchical:binary_tree", "ring"}) {
      const bool several = hosts != one_host(GetParam());
      if (several && std::string_view(strategy) == "direct") continue;
      TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy, 256)});
      for (const Memory memory : kMemories) {
        run_sequence(cluster, {.memory = memory, .shared_result = true},
                     std::string(" by ") + strategy);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostModes, testing::Values(2, 3, 4, 7));

// The ranks of a host get the same memory, not copies of it.
TEST(SharedResult, IsOneForAHost) {
  TestCluster cluster({.hosts = {0, 0, 1, 1}, .plan = plan_of("hierarchical:ring", 256)});
  std::vector<float> input(9000, 1.0F);
  std::vector<Execution*> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    Operation call;
    call.name = "shared";
    call.input = input.data();
    call.count = input.size();
    call.shared_result = true;
    calls.push_back(cluster.executor(rank).begin(call, cluster.world(rank)).value());
    cluster.executor(rank).adopt(*calls.back(), cluster.now());
  }
  ASSERT_TRUE(cluster.run_until([&] {
    return std::all_of(calls.begin(), calls.end(), [](auto* c) { return c->finished(); });
  }));
  EXPECT_EQ(calls[0]->result(), calls[1]->result());
  EXPECT_EQ(calls[2]->result(), calls[3]->result());
  EXPECT_NE(calls[0]->result(), calls[2]->result());
  float first = 0;
  std::memcpy(&first, calls[3]->result(), sizeof first);
  EXPECT_EQ(first, 4.0F);
  for (Rank rank = 0; rank < 4; ++rank)
    cluster.executor(rank).release(*calls[static_cast<size_t>(rank)]);
}

class Workers : public testing::Test {
 protected:
  static constexpr size_t kLanes = 12;
  static constexpr size_t kLaneElements = 4096;
  static constexpr size_t kBytes = kLanes * kLaneElements * sizeof(float);
  TestCluster cluster_{{.hosts = one_host(3), .plan = plan_of("direct", kBytes / kLanes, 3)}};
  std::array<std::span<std::byte>, 3> tensors_;

  void SetUp() override {
    for (Rank rank = 0; rank < 3; ++rank) {
      auto& tensor = tensors_[static_cast<size_t>(rank)];
      tensor = cluster_.segment(rank).allocate(kBytes).value();
      for (size_t i = 0; i < kBytes; i += sizeof(float)) put(tensor, i, 1.0F);
    }
  }
  // All make the call; the last meets the others, and begins to work.
  std::array<Execution*, 3> post() {
    std::array<Execution*, 3> calls{};
    for (const size_t rank : {0U, 1U, 2U}) {
      Operation call;
      call.name = "tensor";
      call.input = call.output = tensors_[rank].data();
      call.count = kBytes / sizeof(float);
      const auto self = static_cast<Rank>(rank);
      calls[rank] = cluster_.executor(self).begin(call, cluster_.world(self)).value();
      cluster_.executor(self).adopt(*calls[rank], cluster_.now());
    }
    return calls;
  }
  // Which lanes have been reduced.
  std::vector<size_t> done() const {
    std::vector<size_t> lanes;
    for (size_t lane = 0; lane < kLanes; ++lane)
      if (get(tensors_[0], lane * kBytes / kLanes) == 3.0F) lanes.push_back(lane);
    return lanes;
  }
  static void put(std::span<std::byte> to, size_t at, float value) {
    std::memcpy(to.data() + at, &value, sizeof value);
  }
  static float get(std::span<const std::byte> from, size_t at) {
    float value = 0;
    std::memcpy(&value, from.data() + at, sizeof value);
    return value;
  }
};

// Each call of a name gives a worker the same lanes, which its caches may still hold.
TEST_F(Workers, BeginWithLanesOfTheirOwn) {
  const auto calls = post();
  EXPECT_EQ(done(), (std::vector<size_t>{8, 9, 10, 11}));
  cluster_.pause(0);
  cluster_.pause(2);
  cluster_.step();
  EXPECT_EQ(done(), (std::vector<size_t>{4, 5, 6, 7, 8, 9, 10, 11}));
  cluster_.resume(0);
  cluster_.run_until([&] { return calls[0]->finished() && calls[1]->finished(); });
  EXPECT_EQ(done().size(), kLanes);
}

TEST_F(Workers, DoTheLanesOfThoseThatAreLate) {
  const auto calls = post();
  cluster_.pause(0);
  cluster_.pause(1);
  EXPECT_TRUE(cluster_.run_until([&] { return calls[2]->finished(); }));
  EXPECT_EQ(done().size(), kLanes);
}

// Where all members can work at once, none waits for another to reduce everything.
TEST_F(Workers, TakeTurnsWithPrivateMemory) {
  TestCall(cluster_, {.count = kLanes * kLaneElements, .memory = Memory::kPlain}, "tensor").run();
  const ControlArea& area = ControlArea::of(cluster_.segment(0).control());
  std::vector<uint64_t> reducers;
  for (const Channel& channel : area.channels)
    for (const StageSlot& slot : channel.slots)
      if (const uint64_t reduced = slot.reduced.load(); reduced != 0)
        reducers.push_back(reduced & 0xffff);
  EXPECT_EQ(reducers, (std::vector<uint64_t>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
}

// Also with more of them than the lanes are claimed in parts.
TEST(Crowds, OnAsManyCoresTakeTurnsAndShareLanes) {
  constexpr Rank kRanks = 20;
  TestCluster cluster({.hosts = one_host(kRanks), .plan = plan_of("direct", 2048, kRanks)});
  for (const Memory memory : {Memory::kPlain, Memory::kRegistered}) {
    TestCall(cluster, {.count = 20'000, .memory = memory}, "tensor").run();
    if (testing::Test::HasFatalFailure()) return;
  }
  std::set<uint64_t> reducers;
  for (const Channel& channel : ControlArea::of(cluster.segment(0).control()).channels)
    for (const StageSlot& slot : channel.slots)
      if (const uint64_t reduced = slot.reduced.load(); reduced != 0)
        reducers.insert(reduced & 0xffff);
  EXPECT_GE(reducers.size(), 10U);
}

// Without an input the data stands in the output.
TEST(InPlace, NullInput) {
  for (const char* strategy : {"direct", "ring"}) {
    TestCluster cluster({.hosts = one_host(3), .plan = plan_of(strategy)});
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather}) {
      TestCall call(cluster, {.collective = collective, .place = Place::kInPlace}, "in place");
      for (Rank rank = 0; rank < 3; ++rank)
        call.begin(rank, [](Operation& operation) { operation.input = nullptr; });
      cluster.run_until([&] { return call.done(); });
      call.judge(std::string(" by ") + strategy);
    }
  }
}

// The root of a broadcast in place may read its data meanwhile: nobody writes there.
TEST(InPlace, TheRootOfABroadcastIsOnlyRead) {
  constexpr size_t kBytes = 8192;
  void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  for (const char* strategy : {"direct", "ring"})
    for (const size_t count : {size_t{8}, kBytes}) {
      TestCluster cluster({.hosts = one_host(3), .plan = plan_of(strategy, 256)});
      TestCall call(cluster,
                    {.collective = Collective::kBroadcast,
                     .dtype = DType::kU8,
                     .count = count,
                     .root = 1,
                     .place = Place::kInPlace},
                    "in place");
      for (Rank rank = 0; rank < 3; ++rank)
        call.begin(rank, [&](Operation& operation) {
          if (rank == 1) operation.input = operation.output = mapped;
        });
      EXPECT_TRUE(cluster.run_until([&] { return call.done(); })) << strategy << " of " << count;
    }
  munmap(mapped, kBytes);
}

// Ranks may use a different kind of memory at every call of a name.
TEST(Buffers, MayChangeFromCallToCall) {
  TestCluster cluster({.hosts = {0, 0, 0, 1, 1}, .plan = plan_of("hierarchical:ring", 256)});
  for (int round = 0; round < 12; ++round) {
    const auto memory = kMemories[round % 3];
    TestCall(cluster, {.count = 1000, .memory = memory, .shared_result = round % 4 == 0}, "name")
        .run();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Who is left alone finishes with what the dead had handed in, and divides by what it is told.
TEST(LeftBehind, CountsForOneAlone) {
  TestCluster cluster({.hosts = {0}, .plan = plan_of("direct", 256)});
  const std::vector<int64_t> own = {1, 2, 3};
  const std::vector<int64_t> dead = {10, 20, 30};
  std::vector<int64_t> sum(3);
  const std::byte* const left[] = {reinterpret_cast<const std::byte*>(dead.data())};
  Operation call;
  call.name = "alone";
  call.input = own.data();
  call.output = sum.data();
  call.count = 3;
  call.dtype = DType::kI64;
  call.left_behind = left;
  auto begun = cluster.executor(0).begin(call, cluster.world(0));
  ASSERT_TRUE(begun.ok());
  ASSERT_TRUE((*begun)->finished());
  cluster.executor(0).release(**begun);
  EXPECT_EQ(sum, (std::vector<int64_t>{11, 22, 33}));
  call.op = Op::kMean;
  call.mean_over = 11;
  begun = cluster.executor(0).begin(call, cluster.world(0));
  ASSERT_TRUE(begun.ok());
  cluster.executor(0).release(**begun);
  EXPECT_EQ(sum, (std::vector<int64_t>{1, 2, 3}));
}

// A peer that completed the call may have changed its input since; one that did not cannot have.
TEST(LeftBehind, TellsWhetherThePeerHadFinished) {
  TestCluster cluster({.hosts = one_host(3), .plan = plan_of("direct", 256)});
  const Case registered{.count = 5000, .memory = Memory::kRegistered, .shared_result = true};
  TestCall call(cluster, registered, "gradient");
  std::array<Operation, 3> made;
  for (Rank rank = 0; rank < 3; ++rank)
    call.begin(rank, [&](Operation& operation) {
      operation.mark = 7;
      made[static_cast<size_t>(rank)] = operation;
    });
  const auto given = [&] {
    return cluster.executor(0).handed_in(cluster.peer(2), made[0], cluster.world(0));
  };
  cluster.pause(1);
  cluster.pause(2);
  EXPECT_NE(given().data, nullptr);
  EXPECT_FALSE(given().finished);
  made[0].mark = 8;
  EXPECT_EQ(given().data, nullptr) << "this rank has not made that call";
  made[0].mark = 7;
  cluster.resume(1);
  cluster.resume(2);
  ASSERT_TRUE(cluster.run_until([&] { return call.done(); }));
  EXPECT_NE(given().data, nullptr);
  EXPECT_TRUE(given().finished);
  call.release();
}

// Also at the first call of a name, of which no rank has seen another's part yet.
TEST(Channels, WakeThoseThatSleep) {
  TestCluster cluster({.hosts = one_host(3), .plan = plan_of("direct", 256)});
  cluster.segment(1).header().asleep.store(kWakeForHost);
  TestCall call(cluster, {.count = 3}, "first");
  call.begin(0);
  EXPECT_EQ(cluster.woken(), std::vector<PeerId>{cluster.peer(1)});
  cluster.segment(1).header().asleep.store(0);
  call.begin(1);
  call.begin(2);
  cluster.run_until([&] { return call.done(); });
  call.judge("");
}

// More names than there are channels: those that are idle give theirs up.
TEST(Channels, AreUsedAgain) {
  TestCluster cluster({.hosts = one_host(3), .plan = plan_of("direct", 256)});
  for (int round = 0; round < 3; ++round) {
    for (int name = 0; name < 1500; ++name) {
      TestCall(cluster, {.count = name % 3 == 0 ? size_t{5000} : size_t{3}},
               fmt::format("name {}", name))
          .run();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Where all of a name's channels are taken by calls in flight, the call is refused on every rank.
TEST(Channels, TooManyAtOnceIsAnError) {
  TestCluster cluster({.hosts = one_host(2), .plan = plan_of("direct", 256)});
  std::vector<std::unique_ptr<TestCall>> calls;
  for (int name = 0; name < 3000; ++name) {
    calls.push_back(
        std::make_unique<TestCall>(cluster, Case{.count = 3}, fmt::format("name {}", name)));
    calls.back()->begin(0);
  }
  for (auto& call : calls) call->begin(1);
  cluster.run_until([&] {
    return std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c->done(); });
  });
  int refused = 0;
  for (auto& call : calls) {
    ASSERT_TRUE(call->done()) << call->describe();
    call->release();
    ASSERT_EQ(call->status(0).ok(), call->status(1).ok()) << call->describe();
    if (call->status(0).ok()) continue;
    ++refused;
    EXPECT_EQ(call->status(0).code(), Code::kOverloaded);
    EXPECT_NE(call->status(1).error().message.find("in flight"), std::string::npos);
  }
  EXPECT_GT(refused, 1000);
  // Afterwards there is room again, for the refused names too.
  TestCall(cluster, {.count = 3}, "name 2999").run();
}

}  // namespace
}  // namespace pliant
