#include "pliant/collective/call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "pliant/collective/test_cluster.h"

namespace pliant {
namespace {

struct Repeat : ::testing::Test {
  Repeat() {
    before.name = "name";
    before.input = data.data();
    before.output = data.data() + 50;
    before.count = 10;
  }

  std::vector<float> data = std::vector<float>(200);
  std::vector<size_t> counts = std::vector<size_t>(4, 1);
  std::vector<const std::byte*> left = std::vector<const std::byte*>(1);
  Operation before;
};

TEST_F(Repeat, MayUseOtherMemory) {
  Operation call = before;
  EXPECT_TRUE(repeats(call, before));
  call.input = data.data() + 100;
  EXPECT_TRUE(repeats(call, before));
  call.output = data.data() + 90;  // ends where the input begins
  EXPECT_TRUE(repeats(call, before));
  call.output = data.data() + 110;  // begins where the input ends
  EXPECT_TRUE(repeats(call, before));
  call.output = data.data() + 100;  // in place
  EXPECT_TRUE(repeats(call, before));
  call.mark = 7;
  call.mean_over = 3;
  EXPECT_TRUE(repeats(call, before));
}

TEST_F(Repeat, IsNoneIfAnythingHasToBeCheckedAgain) {
  const auto differs = [&](auto change) {
    Operation call = before;
    change(call);
    return !repeats(call, before) && !repeats(before, call);
  };
  EXPECT_TRUE(differs([](Operation& c) { c.collective = Collective::kBroadcast; }));
  EXPECT_TRUE(differs([](Operation& c) { c.count = 11; }));
  EXPECT_TRUE(differs([](Operation& c) { c.dtype = DType::kI32; }));
  EXPECT_TRUE(differs([](Operation& c) { c.op = Op::kMax; }));
  EXPECT_TRUE(differs([](Operation& c) { c.shared_result = true; }));
  EXPECT_TRUE(differs([](Operation& c) { c.input = nullptr; }));
  EXPECT_TRUE(differs([](Operation& c) { c.output = nullptr; }));
  EXPECT_TRUE(differs([&](Operation& c) { c.counts = counts; }));
  EXPECT_TRUE(differs([&](Operation& c) { c.left_behind = left; }));
  const auto overlaps = [&](int offset) {
    Operation call = before;
    call.output = data.data() + offset;
    return !repeats(call, before);
  };
  EXPECT_TRUE(overlaps(1));
  EXPECT_TRUE(overlaps(9));
  EXPECT_FALSE(overlaps(10));
}

// Two ranks, two buffers each, which change places; the divisor changes, and so does the size.
void repeat_calls(const std::string& strategy, bool registered) {
  constexpr size_t kElements = 6000;
  TestCluster cluster({.hosts = {0, 0}, .plan = plan_of(strategy, 4096)});
  std::vector<std::vector<float>> own(4, std::vector<float>(kElements));
  std::vector<std::span<float>> buffers(own.begin(), own.end());
  for (size_t i = 0; registered && i < buffers.size(); ++i) {
    auto memory = cluster.segment(static_cast<Rank>(i / 2)).allocate(kElements * sizeof(float));
    ASSERT_TRUE(memory.ok());
    buffers[i] = std::span(reinterpret_cast<float*>(memory->data()), kElements);
  }
  for (size_t turn = 0; turn < 6; ++turn) {
    const size_t count = turn % 3 == 2 ? kElements - 1000 : kElements;
    std::vector<Execution*> begun;
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      const std::span<float> input = buffers[rank * 2 + turn % 2];
      std::fill(input.begin(), input.end(), static_cast<float>(12 * (turn + rank)));
      Operation call;
      call.name = "name";
      call.input = input.data();
      call.output = buffers[rank * 2 + (turn + 1) % 2].data();
      call.count = count;
      call.op = Op::kMean;
      call.mean_over = turn % 2 == 0 ? 0 : 3;
      Executor& executor = cluster.executor(static_cast<Rank>(rank));
      auto execution = executor.begin(call, cluster.world(static_cast<Rank>(rank)));
      ASSERT_TRUE(execution.ok());
      begun.push_back(*execution);
      executor.adopt(**execution, cluster.now());
    }
    ASSERT_TRUE(cluster.run_until([&] { return begun[0]->finished() && begun[1]->finished(); }));
    const float mean = 12.0F * static_cast<float>(2 * turn + 1) / (turn % 2 == 0 ? 2.0F : 3.0F);
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      EXPECT_TRUE(begun[rank]->take_status().ok());
      const auto* result = reinterpret_cast<const float*>(begun[rank]->result());
      EXPECT_EQ(std::count(result, result + count, mean), static_cast<ptrdiff_t>(count)) << turn;
      cluster.executor(static_cast<Rank>(rank)).release(*begun[rank]);
    }
  }
}

TEST(RepeatedCalls, GiveWhatEachIsAskedFor) {
  for (const char* strategy : {"direct", "star"})
    for (const bool registered : {false, true}) repeat_calls(strategy, registered);
}

TEST(RepeatedCalls, OnMemoryThatOverlapsAreRefused) {
  TestCluster cluster({.hosts = {0}, .plan = plan_of("star")});
  std::vector<float> data(100);
  Operation call;
  call.name = "name";
  call.input = data.data();
  call.output = data.data() + 50;
  call.count = 10;
  const auto code = [&] {
    auto begun = cluster.executor(0).begin(call, cluster.world(0));
    if (!begun) return begun.code();
    cluster.executor(0).release(**begun);
    return Code{};
  };
  EXPECT_EQ(code(), Code{});
  EXPECT_EQ(code(), Code{});
  call.output = data.data() + 5;
  EXPECT_EQ(code(), Code::kInvalid);
  EXPECT_EQ(code(), Code::kInvalid);
  call.output = data.data();
  EXPECT_EQ(code(), Code{});
}

}  // namespace
}  // namespace pliant
