// Shared memory with real concurrency: a thread for each rank, more of them than most machines have
// cores. A sanitizer sees every race between ranks here that processes would have.
#include <atomic>
#include <thread>

#include "pliant/collective/test_calls.h"
#include "pliant/collective/test_layouts.h"

namespace pliant {
namespace {

constexpr Rank kRanks = 4;

struct Round {
  Case call;
  std::vector<Data> inputs;
  std::vector<Data> wanted;
};

std::vector<Round> rounds() {
  std::vector<Round> all;
  for (const size_t count : {size_t{5}, size_t{6000}, size_t{1}, size_t{900}}) {
    for (const Collective collective : kWithBuffers) {
      for (const Memory memory : {Memory::kPlain, Memory::kRegistered, Memory::kMixed}) {
        Round round;
        round.call = {.collective = collective,
                      .count = count,
                      .root = static_cast<Rank>(all.size()) % kRanks,
                      .memory = memory,
                      .shared_result = collective == Collective::kAllReduce && all.size() % 2 == 0};
        for (Rank rank = 0; rank < kRanks; ++rank)
          round.inputs.push_back(values(round.call, rank, extent(round.call, rank, kRanks).input));
        round.wanted = expected(round.call, round.inputs);
        all.push_back(std::move(round));
      }
    }
  }
  return all;
}

// Runs one call as a caller alone does; empty if it went well.
std::string run_alone(TestCluster& cluster, Rank rank, const Round& round,
                      const std::string& name) {
  const bool registered = round.call.memory == Memory::kRegistered ||
                          (round.call.memory == Memory::kMixed && rank % 2 == 0);
  Segment* segment = registered ? &cluster.segment(rank) : nullptr;
  const Data& data = round.inputs[static_cast<size_t>(rank)];
  const Data& wanted = round.wanted[static_cast<size_t>(rank)];
  TestBuffer input(segment, data.size());
  TestBuffer output(segment, wanted.size());
  if (!data.empty()) std::memcpy(input.data(), data.data(), data.size());
  Operation operation;
  operation.collective = round.call.collective;
  operation.name = name;
  operation.input = input.data();
  operation.output = output.data();
  operation.count = round.call.count;
  operation.root = round.call.root;
  operation.shared_result = round.call.shared_result;
  Executor& executor = cluster.executor(rank);
  auto begun = executor.begin(operation, cluster.world(rank));
  if (!begun) return begun.error().message;
  Execution& execution = **begun;
  while (!execution.finished())
    if (!execution.advance()) std::this_thread::yield();
  const Status status = execution.take_status();
  std::string error = status.ok() ? "" : status.error().message;
  const std::byte* result = execution.result();
  if (status.ok() && !wanted.empty() && std::memcmp(result, wanted.data(), wanted.size()) != 0)
    error = "wrong result";
  if (!input.guards_intact() || !output.guards_intact()) error = "wrote outside of its buffers";
  executor.release(execution);
  return error.empty() ? "" : round.call.describe() + fmt::format(" on rank {}: ", rank) + error;
}

TEST(Threads, RanksRunConcurrently) {
  TestCluster cluster({.hosts = one_host(kRanks), .plan = plan_of("direct", 1024)});
  const std::vector<Round> all = rounds();
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& error = errors[static_cast<size_t>(rank)];
      for (int turn = 0; turn < 3; ++turn)
        for (size_t i = 0; i < all.size() && error.empty(); ++i) {
          // A name of its own now and then, so that calls are first and others are not.
          const std::string name = i % 5 == 0 ? fmt::format("call {}", i) : "call";
          error = run_alone(cluster, rank, all[i], name);
        }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Mismatches are found in shared memory alone, and the name works again at once, however far apart
// the ranks are.
TEST(Threads, MismatchesLeaveTheNameUsable) {
  TestCluster cluster({.hosts = one_host(kRanks), .plan = plan_of("direct", 1024)});
  std::vector<Round> all = rounds();
  std::atomic<int> failures = 0;
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (size_t i = 0; i < all.size() && errors[static_cast<size_t>(rank)].empty(); ++i) {
        std::vector<std::byte> memory(64 * 1024 * kRanks);
        Operation wrong;
        wrong.name = "call";
        wrong.input = wrong.output = memory.data();
        wrong.count = rank == static_cast<Rank>(i) % kRanks ? 16'000 : i % 2 == 0 ? 20 : 15'000;
        Executor& executor = cluster.executor(rank);
        Execution& execution = *executor.begin(wrong, cluster.world(rank)).value();
        while (!execution.finished())
          if (!execution.advance()) std::this_thread::yield();
        if (execution.take_status().ok()) errors[static_cast<size_t>(rank)] = "no mismatch";
        failures += 1;
        executor.release(execution);
        if (errors[static_cast<size_t>(rank)].empty())
          errors[static_cast<size_t>(rank)] = run_alone(cluster, rank, all[i], "call");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(failures, static_cast<int>(all.size()) * kRanks);
}

}  // namespace
}  // namespace pliant
