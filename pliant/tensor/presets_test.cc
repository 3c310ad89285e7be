#include "pliant/tensor/presets.h"

#include <gtest/gtest.h>

#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan.h"
#include "pliant/tensor/test_memory.h"

namespace pliant::tensor {
namespace {

Layout layout_of(const Model& model, const char* sizes,
                 const std::shared_ptr<const Collection>& state) {
  auto layout = Layout::make(*make_spec(model, *parse_parallelism(sizes), 4), state);
  PLIANT_CHECK(layout.ok(), layout.ok() ? "" : layout.error().message.c_str());
  return *layout;
}

uint64_t parameters(const char* name) {
  uint64_t sum = 0;
  const Collection state = *make_state(*find_model(name), DType::kBF16);
  for (const TensorInfo& tensor : state.tensors())
    if (tensor.dtype == DType::kBF16) sum += tensor.elements();
  return sum;
}

// As the models' own papers and cards count them.
TEST(Presets, ModelsHaveTheirSizes) {
  const std::pair<const char*, double> sizes[] = {
      {"gpt3-125m", 0.125e9},   {"gpt3-xl", 1.31e9},        {"gpt3-6.7b", 6.66e9},
      {"gpt3-13b", 12.9e9},     {"gpt3-175b", 174.6e9},     {"llama2-7b", 6.74e9},
      {"llama2-70b", 68.98e9},  {"llama3-8b", 8.03e9},      {"llama3-70b", 70.55e9},
      {"llama3-405b", 405.8e9}, {"qwen2.5-7b", 7.62e9},     {"qwen2.5-72b", 72.7e9},
      {"qwen3-8b", 8.19e9},     {"qwen3-30b-a3b", 30.53e9}, {"qwen3-235b-a22b", 235.1e9},
      {"mixtral-8x7b", 46.7e9},
  };
  for (const auto& [name, expected] : sizes)
    EXPECT_NEAR(static_cast<double>(parameters(name)) / expected, 1, 0.01) << name;
}

TEST(Presets, TheStateHasTheOptimizersMoments) {
  const Model model = *find_model("gpt3-xl");
  const Collection full = *make_state(model, DType::kF32);
  const Collection half = *make_state(model, DType::kBF16);
  EXPECT_NEAR(static_cast<double>(full.bytes()), 15.8e9, 0.2e9);  // 12 bytes each
  EXPECT_NEAR(static_cast<double>(half.bytes()), 18.4e9, 0.2e9);  // 14 bytes each
  const std::string name = "decoder.layers.23.mlp.linear_fc1.weight";
  EXPECT_TRUE(full.find("optimizer.exp_avg_sq." + name));
  EXPECT_FALSE(full.find("optimizer.master." + name));
  EXPECT_TRUE(half.find("optimizer.master." + name));
  for (const char* scalar : {"step", "learning_rate", "random.seed"})
    EXPECT_TRUE(full[*full.find(scalar)].shape.empty()) << scalar;
  EXPECT_FALSE(make_state(model, DType::kI8).ok());
}

TEST(Presets, EveryModelCanBeLaidOut) {
  for (const std::string& name : model_names()) {
    const Model model = *find_model(name);
    const auto state = std::make_shared<const Collection>(*make_state(model, DType::kBF16));
    for (const char* sizes : {"dp=2", "tp=4,pp=2", "dp=2,tp=2,zero=1", "dp=3,zero=3,cp=2"}) {
      const auto layout = Layout::make(*make_spec(model, *parse_parallelism(sizes), 8), state);
      EXPECT_TRUE(layout.ok()) << name << " " << sizes << ": " << layout.error().message;
    }
  }
}

// From each of these to each other, bit for bit, and back.
void expect_all_ways(const char* name, std::initializer_list<const char*> sizes) {
  const Model model = *find_model(name);
  const auto state = std::make_shared<const Collection>(*make_state(model, DType::kBF16));
  std::vector<Layout> layouts;
  for (const char* text : sizes) layouts.push_back(layout_of(model, text, state));
  for (size_t i = 0; i + 1 < layouts.size(); ++i) {
    SCOPED_TRACE(*(sizes.begin() + i));
    expect_round_trip(layouts[i], layouts[i + 1]);
  }
}

TEST(Presets, GptAllWays) {
  expect_all_ways("gpt-tiny", {"tp=8", "dp=2,tp=4", "dp=2,tp=2,pp=2", "dp=3,tp=2,pp=2,zero=1",
                               "dp=2,tp=1,pp=3", "dp=5,zero=3", "pp=2,interleave=2,tp=4"});
}

TEST(Presets, GroupedQueriesAllWays) {
  expect_all_ways("llama-tiny", {"tp=1", "tp=8", "tp=2,dp=2,zero=1", "tp=4,pp=2", "dp=3,zero=3"});
}

TEST(Presets, ExpertsAllWays) {
  expect_all_ways("moe-tiny", {"dp=4,ep=4", "dp=2,ep=2,tp=2", "dp=4,ep=2,tp=2,zero=1", "tp=4,pp=2",
                               "dp=8,ep=8,zero=3", "dp=2,cp=2,ep=2,zero=1"});
}

TEST(Presets, ZeroDividesTheOptimizersStateOnly) {
  const Model model = *find_model("gpt-tiny");
  const auto state = std::make_shared<const Collection>(*make_state(model, DType::kBF16));
  const uint64_t plain = layout_of(model, "dp=8", state).holding(0).bytes();
  const uint64_t first = layout_of(model, "dp=8,zero=1", state).holding(0).bytes();
  const uint64_t third = layout_of(model, "dp=8,zero=3", state).holding(0).bytes();
  const auto ratio = [&](uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(plain);
  };
  EXPECT_NEAR(ratio(first), (2.0 + 12.0 / 8) / 14, 0.02);
  EXPECT_NEAR(ratio(third), 1.0 / 8, 0.03);  // a little padding in each layer
}

TEST(Parallelism, Parses) {
  const auto parsed = parse_parallelism("tp=4,dp=8,zero=1,interleave=2");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, (Parallelism{.dp = 8, .tp = 4, .zero = 1, .interleave = 2}));
  EXPECT_EQ(*parse_parallelism(to_string(*parsed)), *parsed);
  for (const char* text : {"", "tp", "tp=", "tp=0", "tp=-1", "tp=2x", "tp=99999999", "tp=2,tp=2",
                           "xp=2", "tp=2,,dp=2"})
    EXPECT_FALSE(parse_parallelism(text).ok()) << text;
}

TEST(Parallelism, RefusesWhatDoesNotFitTheModel) {
  const auto fault = [](const char* model, const char* sizes) {
    const auto spec = make_spec(*find_model(model), *parse_parallelism(sizes), 8);
    return spec ? "" : spec.error().message;
  };
  EXPECT_NE(fault("gpt3-xl", "dp=2,ep=2").find("no experts"), std::string::npos);
  EXPECT_NE(fault("mixtral-8x7b", "dp=2,ep=4").find("ep=4 must divide dp=2"), std::string::npos);
  EXPECT_NE(fault("gpt3-xl", "pp=64").find("24 layers"), std::string::npos);
  EXPECT_NE(fault("gpt3-xl", "dp=60000,tp=8").find("ranks"), std::string::npos);
  EXPECT_NE(fault("gpt3-xl", "dp=2,zero=4").find("zero"), std::string::npos);
}

}  // namespace
}  // namespace pliant::tensor
