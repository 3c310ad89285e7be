#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/bench_data.h"
#include "cli/bench_plan.h"
#include "cli/bench_report.h"
#include "pliant/collective/reduce.h"

namespace pliant::cli {
namespace {

BenchArguments arguments_for(const std::string& op) {
  BenchArguments arguments;
  arguments.op = op;
  return arguments;
}

std::string fault(const BenchArguments& arguments) {
  const auto plan = make_bench_plan(arguments);
  return plan ? "" : plan.error().message;
}

TEST(BenchPlan, ReadsLists) {
  BenchArguments arguments = arguments_for("all_reduce");
  arguments.np = "1,2,8";
  arguments.sizes = "0,1K,16M";
  const auto plan = make_bench_plan(arguments);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->nps, (std::vector<int>{1, 2, 8}));
  EXPECT_EQ(plan->sizes, (std::vector<uint64_t>{0, 1024, 16 << 20}));
}

TEST(BenchPlan, ABarrierHasOneSize) {
  const auto plan = make_bench_plan(arguments_for("barrier"));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->sizes, std::vector<uint64_t>{0});
}

TEST(BenchPlan, FaultsNameWhatIsKnown) {
  EXPECT_NE(fault(arguments_for("all_redude")).find("all_reduce, reduce,"), std::string::npos);
  BenchArguments arguments = arguments_for("all_reduce");
  arguments.dtype = "f33";
  EXPECT_NE(fault(arguments).find("bf16"), std::string::npos);
  arguments = arguments_for("all_reduce");
  arguments.strategy = "rings";
  EXPECT_NE(fault(arguments).find("multi_star"), std::string::npos);
  arguments = arguments_for("all_reduce");
  arguments.buffer = "ring";
  EXPECT_NE(fault(arguments).find("registered, plain, shared"), std::string::npos);
}

TEST(BenchPlan, RefusesWhatCannotRun) {
  const auto with = [](const char* op, auto change) {
    BenchArguments arguments = arguments_for(op);
    change(arguments);
    return fault(arguments);
  };
  EXPECT_EQ(with("all_reduce", [](BenchArguments&) {}), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.dtype = "bool"; }), "");
  EXPECT_EQ(with("broadcast", [](auto& a) { a.dtype = "bool"; }), "");
  EXPECT_NE(with("broadcast", [](auto& a) { a.buffer = "shared"; }), "");
  EXPECT_EQ(with("all_reduce", [](auto& a) { a.buffer = "shared"; }), "");
  EXPECT_NE(with("send_recv", [](auto& a) { a.np = "1"; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.np = "0"; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.np = "2,"; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.np = "1000000"; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.sizes = "1Q"; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.sizes = "1023"; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.seconds = 0; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.repetitions = -1; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.transport = "rdma"; }), "");
  // A tree of three does not fit two.
  EXPECT_NE(with("all_reduce", [](auto& a) { a.np = "2", a.strategy = "tree:0,0,0"; }), "");
  EXPECT_EQ(with("all_reduce", [](auto& a) { a.np = "3", a.strategy = "tree:0,0,0"; }), "");
  EXPECT_NE(with("all_reduce", [](auto& a) { a.transport = "tcp", a.strategy = "direct"; }), "");
}

TEST(BenchPlan, TheWorkersPlanIsTheSame) {
  BenchArguments arguments = arguments_for("reduce");
  arguments.np = "3";
  arguments.sizes = "64,1M";
  arguments.dtype = "bf16";
  arguments.op_kind = "max";
  arguments.strategy = "tree:0,0,0";
  arguments.seconds = 0.25;
  arguments.repetitions = 7;
  arguments.json = true;
  CLI::App app;
  BenchArguments read;
  add_bench_options(app, read);
  std::vector<std::string> words = to_words(arguments);
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  app.parse(words);
  EXPECT_EQ(to_words(read), to_words(arguments));
}

TEST(BenchReport, SummarizesByRank) {
  std::vector<double> samples;
  for (int i = 200; i >= 1; --i) samples.push_back(i * 1e-6);
  const BenchSummary summary = summarize(samples);
  EXPECT_EQ(summary.repetitions, 200u);
  EXPECT_DOUBLE_EQ(summary.min_us, 1);
  EXPECT_DOUBLE_EQ(summary.median_us, 100.5);
  EXPECT_DOUBLE_EQ(summary.p99_us, 198);
  EXPECT_DOUBLE_EQ(summarize({3e-6}).p99_us, 3);
}

TEST(BenchReport, CountsBytesThatTravel) {
  const BenchCell cell{.np = 4, .bytes = 1000, .summary = {1, 1, 1, 1}};
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(Collective::kAllReduce, cell), 1e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(Collective::kAllReduce, cell), 1.5e9);
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(Collective::kAllGather, cell), 4e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(Collective::kAllGather, cell), 3e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(Collective::kBroadcast, cell), 1e9);
  const BenchCell alone{.np = 1, .bytes = 1000, .summary = {1, 1, 1, 1}};
  EXPECT_DOUBLE_EQ(bus_bandwidth(Collective::kAllReduce, alone), 0);
}

TEST(BenchReport, RowsAreAsWideAsTheHeader) {
  BenchArguments arguments = arguments_for("reduce_scatter");
  arguments.np = "4";
  arguments.strategy = "tree:0,0,0,0";
  const auto plan = make_bench_plan(arguments);
  ASSERT_TRUE(plan) << plan.error().message;
  const BenchCell cell{.np = 4, .bytes = 100 << 20, .summary = {12345, 1.5, 2e3, 3e6}};
  EXPECT_EQ(table_header(*plan).size(), table_row(*plan, cell).size());
}

TEST(BenchReport, JsonHasTheDocumentedFields) {
  const auto plan = make_bench_plan(arguments_for("all_reduce"));
  ASSERT_TRUE(plan);
  const BenchCell cell{.np = 2, .bytes = 64, .summary = {5, 1.25, 2, 3}};
  const auto object = nlohmann::ordered_json::parse(json_line(*plan, cell));
  std::string names;
  for (const auto& [name, value] : object.items()) names += name + " ";
  EXPECT_EQ(names,
            "op np bytes dtype op_kind strategy transport buffer repetitions min_us median_us "
            "p99_us ");
  EXPECT_EQ(object["min_us"], 1.25);
}

class BenchDataOf : public testing::TestWithParam<DType> {};

TEST_P(BenchDataOf, KnowsWhatReduceComputes) {
  const DType dtype = GetParam();
  constexpr size_t kCount = 100;
  for (const int size : {1, 2, 3, 17}) {
    for (int op = 0; op < kOps; ++op) {
      const BenchData data{.dtype = dtype, .op = static_cast<Op>(op), .size = size};
      std::vector<std::vector<std::byte>> blocks;
      std::vector<ReduceInput> inputs;
      for (int rank = 0; rank < size; ++rank) {
        blocks.emplace_back(kCount * size_of(dtype));
        data.fill(blocks.back().data(), kCount, rank, 2);
        EXPECT_EQ(data.check_moved(blocks.back().data(), kCount, rank, 2), std::nullopt);
      }
      for (const auto& block : blocks) inputs.push_back({block.data(), false});
      std::vector<std::byte> output(kCount * size_of(dtype));
      std::byte* const outputs[] = {output.data()};
      Reduction reduction;
      reduction.dtype = dtype;
      reduction.op = data.op;
      reduction.count = kCount;
      reduction.inputs = inputs;
      reduction.outputs = outputs;
      reduction.mean_over = size;
      reduce(reduction);
      EXPECT_EQ(data.check_reduced(output.data(), kCount, 2), std::nullopt)
          << to_string(data.op) << " over " << size;
    }
  }
}

TEST_P(BenchDataOf, NoticesAWrongElement) {
  const BenchData data{.dtype = GetParam(), .op = Op::kSum, .size = 3};
  constexpr size_t kCount = 50;
  std::vector<std::byte> block(kCount * size_of(data.dtype));
  data.fill(block.data(), kCount, 1, 0);
  EXPECT_NE(data.check_moved(block.data(), kCount, 2, 0), std::nullopt);
  EXPECT_NE(data.check_moved(block.data(), kCount, 1, 1), std::nullopt);
  EXPECT_NE(data.check_reduced(block.data(), kCount, 0), std::nullopt);
  // One element in the place of another.
  std::memcpy(&block[31 * size_of(data.dtype)], &block[30 * size_of(data.dtype)],
              size_of(data.dtype));
  const auto wrong = data.check_moved(block.data(), kCount, 1, 0);
  ASSERT_NE(wrong, std::nullopt);
  EXPECT_NE(wrong->find("element 31 of 50"), std::string::npos) << *wrong;
}

INSTANTIATE_TEST_SUITE_P(Types, BenchDataOf,
                         testing::Values(DType::kI8, DType::kI16, DType::kI32, DType::kI64,
                                         DType::kU8, DType::kU16, DType::kU32, DType::kU64,
                                         DType::kF16, DType::kBF16, DType::kF32, DType::kF64),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(BenchData, MovesBool) {
  const BenchData data{.dtype = DType::kBool, .op = Op::kSum, .size = 2};
  std::vector<std::byte> block(20);
  data.fill(block.data(), 20, 1, 0);
  EXPECT_EQ(data.check_moved(block.data(), 20, 1, 0), std::nullopt);
  block[7] = std::byte{static_cast<unsigned char>(block[7] == std::byte{0} ? 1 : 0)};
  EXPECT_NE(data.check_moved(block.data(), 20, 1, 0), std::nullopt);
}

}  // namespace
}  // namespace pliant::cli
