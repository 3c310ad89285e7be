// Sizes at which something changes: nothing at all, fewer elements than ranks, many chunks, more
// than fits inline, more than is sent unasked.
#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

// More lanes than the stage slots hold three times over, in each block of a ring.
constexpr size_t kManyChunks = 900;

struct Layout {
  const char* name;
  std::vector<uint32_t> (*hosts)(Rank ranks);
};
constexpr Layout kLayouts[] = {
    {"one_host", one_host}, {"pairs", in_pairs}, {"scattered", scattered}};

class Sizes : public testing::TestWithParam<std::tuple<Rank, Layout>> {
 protected:
  Sizes() : ranks_(std::get<0>(GetParam())), hosts_(std::get<1>(GetParam()).hosts(ranks_)) {}

  // Every collective, with equal blocks and, where it takes them, unequal ones.
  void run_all(TestCluster& cluster, Case call, const std::string& strategy) {
    TestBatch batch(cluster, " by " + strategy);
    for (const Collective collective : kWithBuffers) {
      call.collective = collective;
      call.counts = {};
      batch.add(call, fmt::format("{}", to_string(collective)));
      if (!takes_counts(collective)) continue;
      for (Rank rank = 0; rank < ranks_; ++rank)
        call.counts.push_back(call.count * static_cast<size_t>(rank % 3) / 2);
      batch.add(call, fmt::format("{} unequal", to_string(collective)));
    }
    batch.finish();
  }

  const Rank ranks_;
  const std::vector<uint32_t> hosts_;
};

TEST_P(Sizes, NothingOneAndFewerThanRanks) {
  TestCluster cluster({.hosts = hosts_, .taking = FakeNetwork::Taking::kInSend});
  for (const std::string& strategy : sampled(strategies_over(hosts_))) {
    cluster.set_plan(plan_of(strategy, 8));
    for (const size_t count : {size_t{0}, size_t{1}, static_cast<size_t>(ranks_ - 1) | 1}) {
      run_all(cluster, {.dtype = DType::kF32, .count = count, .root = ranks_ - 1}, strategy);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Sizes, ManyChunks) {
  TestCluster cluster({.hosts = hosts_});
  for (const std::string& strategy : sampled(strategies_over(hosts_))) {
    cluster.set_plan(plan_of(strategy, 64));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Collective collective : kWithBuffers) {
        if (ignores_trees(collective) && strategy != "ring" && strategy != "direct") continue;
        // An all_to_all has a block for each pair of ranks.
        const size_t many = collective == Collective::kAllToAll ? 90 : kManyChunks;
        TestCall(cluster, {.collective = collective, .dtype = dtype, .count = many, .root = 1},
                 "chunks")
            .run();
        if (HasFatalFailure()) FAIL() << "by " << strategy;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sizes,
                         testing::Combine(testing::Values(2, 3, 5, 8), testing::ValuesIn(kLayouts)),
                         [](const auto& param) {
                           return fmt::format("{}_{}", std::get<1>(param.param).name,
                                              std::get<0>(param.param));
                         });

// Above the limits of what travels inline (8 KiB) and of what is sent unasked (64 KiB), and far
// enough above to need several chunks.
TEST(LargeCalls, AllCollectives) {
  for (const auto& hosts : {one_host(5), scattered(5)}) {
    TestCluster cluster({.hosts = hosts});
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      cluster.set_plan(plan_of(strategy, 8 << 10));
      for (const Collective collective : kWithBuffers) {
        for (const size_t count : {size_t{5001}, size_t{20'003}}) {
          TestCall(cluster, {.collective = collective, .count = count, .root = 4}, "large").run();
          if (HasFatalFailure()) FAIL() << "by " << strategy;
        }
      }
    }
  }
}

TEST(LargeCalls, SeventeenRanks) {
  for (const auto& hosts : {one_host(17), in_pairs(17)}) {
    TestCluster cluster({.hosts = hosts});
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      cluster.set_plan(plan_of(strategy, 16 << 10));
      TestCall(cluster, {.collective = Collective::kAllReduce, .count = 17'001}, "large").run();
      if (HasFatalFailure()) FAIL() << "by " << strategy;
    }
  }
}

// In place, a result must not overwrite an input that is still on its way to a slow rank.
TEST(InPlaceByMessages, EverySize) {
  for (const auto& hosts : {in_pairs(5), scattered(4)}) {
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
      cluster.shuffle(hosts.size());
      for (const Collective collective : kWithBuffers) {
        for (const size_t count : {size_t{3}, size_t{300}}) {
          for (const Rank slow : {0, 2}) {
            TestCall call(
                cluster,
                {.collective = collective, .count = count, .root = 1, .place = Place::kInPlace},
                "in place");
            call.begin();
            cluster.pause(slow);
            for (int i = 0; i < 20; ++i) cluster.step();
            cluster.resume(slow);
            cluster.run_until([&] { return call.done(); });
            call.judge(" by " + strategy);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// The receivers of large data come late: nothing may be sent to them before, and nothing is lost.
TEST(LargeCalls, RanksComeOneByOne) {
  for (const auto& hosts : {one_host(4), in_pairs(4)}) {
    TestCluster cluster({.hosts = hosts});
    for (const std::string& strategy : sampled(strategies_over(hosts))) {
      cluster.set_plan(plan_of(strategy, 4 << 10));
      for (const Collective collective : kWithBuffers) {
        for (const Rank last : {0, 3}) {
          TestCall call(cluster, {.collective = collective, .count = 20'000, .root = 1}, "late");
          for (Rank rank = 0; rank < 4; ++rank) {
            const Rank comes = (rank + last + 1) % 4;
            call.begin(comes);
            for (int i = 0; i < 50; ++i) cluster.step();
            for (Rank other = 0; rank < 3 && other < 4; ++other)
              ASSERT_FALSE(call.finished(other)) << call.describe() << " before rank " << last;
          }
          cluster.run_until([&] { return call.done(); });
          call.judge(" by " + strategy);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// ---- Between two ranks --------------------------------------------------------------------------

struct Message {
  TestCluster& cluster;
  Rank from;
  Rank to;
  size_t count;
  Data sent = values({.dtype = DType::kI32}, from, count);
  Data received = Data(count * 4);
  Execution* sender = nullptr;
  Execution* receiver = nullptr;

  Operation operation(Collective collective) {
    Operation call;
    call.collective = collective;
    call.name = "message";
    call.dtype = DType::kI32;
    call.count = count;
    return call;
  }
  void send() {
    Operation call = operation(Collective::kSend);
    call.input = sent.data();
    call.root = to;
    sender = cluster.executor(from).begin(call, cluster.world(from)).value();
    cluster.executor(from).adopt(*sender, cluster.now());
  }
  void receive() {
    Operation call = operation(Collective::kReceive);
    call.output = received.data();
    call.root = from;
    receiver = cluster.executor(to).begin(call, cluster.world(to)).value();
    cluster.executor(to).adopt(*receiver, cluster.now());
  }
  void finish() {
    ASSERT_TRUE(cluster.run_until([&] { return sender->finished() && receiver->finished(); }))
        << "from " << from << " to " << to << ", " << count << " elements";
    EXPECT_TRUE(sender->take_status().ok());
    EXPECT_TRUE(receiver->take_status().ok());
    EXPECT_EQ(received, sent);
    cluster.executor(from).release(*sender);
    cluster.executor(to).release(*receiver);
  }
};

TEST(SendAndReceive, AnySizeInAnyOrder) {
  for (const char* strategy : {"direct", "ring", "hierarchical:star"}) {
    for (const auto& hosts : {one_host(3), in_pairs(3)}) {
      if (hosts[2] != 0 && std::string_view(strategy) == "direct") continue;
      TestCluster cluster({.hosts = hosts, .plan = plan_of(strategy)});
      for (const size_t count : {0, 1, 17, 999, 20'000}) {
        for (const bool sender_first : {true, false}) {
          Message message{cluster, 2, 0, count};
          sender_first ? message.send() : message.receive();
          for (int i = 0; i < 20; ++i) cluster.step();
          sender_first ? message.receive() : message.send();
          message.finish();
        }
      }
    }
  }
}

TEST(SendAndReceive, ManyPairsUseOneName) {
  TestCluster cluster({.hosts = scattered(5)});
  cluster.shuffle(7);
  std::vector<std::unique_ptr<Message>> messages;
  for (Rank from = 0; from < 5; ++from)
    for (Rank to = 0; to < 5; ++to)
      if (from != to)
        messages.push_back(std::make_unique<Message>(
            Message{cluster, from, to, static_cast<size_t>(30 + from * 7 + to)}));
  for (auto& message : messages) message->send();
  for (auto at = messages.rbegin(); at != messages.rend(); ++at) (*at)->receive();
  for (auto& message : messages) message->finish();
}

TEST(SendAndReceive, SenderCompletesOnlyWithTheReceiver) {
  TestCluster cluster({.hosts = {0, 1}});
  Message message{cluster, 0, 1, 3};
  message.send();
  for (int i = 0; i < 20; ++i) cluster.step();
  EXPECT_FALSE(message.sender->finished());
  message.receive();
  message.finish();
}

}  // namespace
}  // namespace pliant
