#include "pliant/tensor/copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "pliant/tensor/presets.h"
#include "pliant/tensor/test_layouts.h"

namespace pliant::tensor {
namespace {

const Tensors kTensors = {{"w", DType::kF32, {6, 4}}, {"b", DType::kF32, {10}}};

// "w [0:2, 0:4]", or nothing.
std::string scarce(const Layout& layout, size_t ranks, const std::vector<bool>& tensors = {}) {
  const auto found = find_scarce(layout, ranks, tensors);
  return found ? layout.collection()[found->tensor].name + " " + to_string(found->box) : "";
}

TEST(Copies, AreCountedByShard) {
  const Layout layout = layout_of("dp=2,tp=3", sharded(0, R"(, "split": "balanced")"), kTensors);
  EXPECT_EQ(scarce(layout, 1), "");
  EXPECT_EQ(scarce(layout, 2), "");
  EXPECT_EQ(scarce(layout, 3), "w [0:2, 0:4]");
  EXPECT_EQ(scarce(layout, 3, {false, true}), "b [0:4]");
  EXPECT_EQ(scarce(layout, 3, {false, false}), "");
  EXPECT_EQ(scarce(layout_of("tp=3", sharded(0, R"(, "split": "balanced")"), kTensors), 2),
            "w [0:2, 0:4]");
}

TEST(Copies, UnevenShardsAndScalars) {
  const Tensors tensors = {
      {"step", DType::kI64, {}}, {"none", DType::kF32, {0, 3}}, {"w", DType::kF32, {5, 2}}};
  const std::string rest = R"(, {"otherwise": true, "replicated": true})";
  const auto rule = [&](const std::string& split) {
    return R"({"match": "w", "shard": [{"dim": 0, "axes": ["tp"], "split": )" + split + "}]}" +
           rest;
  };
  // Empty parts are nobody's.
  EXPECT_EQ(scarce(layout_of("dp=2,tp=3", rule("[0, 5, 0]"), tensors), 2), "");
  EXPECT_EQ(scarce(layout_of("tp=3", rule("[0, 5, 0]"), tensors), 2), "w [0:5, 0:2]");
  EXPECT_EQ(scarce(layout_of("dp=1", R"({"match": "*", "replicated": true})", tensors), 2),
            "step []");
}

// Groups with different contents cut their ranges at different places: an element's copies are in
// shards that overlap.
TEST(Copies, FlatRangesThatAreCutDifferently) {
  const Tensors tensors = {
      {"norm", DType::kF32, {7}}, {"l.0", DType::kF32, {3}}, {"l.1", DType::kF32, {10}}};
  const std::string rules =
      R"({"match": "norm", "flat": {"group": "g", "axes": ["dp"]}},
         {"match": "l.{layer}", "stage": "layer", "flat": {"group": "g", "axes": ["dp"]}})";
  const std::string pipeline = R"("pipeline": {"axis": "pp", "layers": 2}, )";
  const Layout layout = layout_of("pp=2,dp=2", rules, tensors, pipeline);
  ASSERT_FALSE(layout.placement(0).is_partition);
  EXPECT_EQ(scarce(layout, 2), "l.0 [0:3]");  // the norm is on both stages
  EXPECT_EQ(scarce(layout, 2, {true, false, false}), "");
  EXPECT_EQ(scarce(layout, 3).substr(0, 5), "norm ");
}

TEST(Copies, StatedPiecesThatOverlap) {
  const Tensors tensors = {{"w", DType::kF32, {6, 4}}};
  const auto layout = [&](const std::string& more) {
    return layout_of("xx=4",
                     R"({"match": "w", "pieces": [
        {"ranks": [0], "begin": [0, 0], "end": [4, 4]},
        {"ranks": [1], "begin": [4, 0], "end": [6, 4]},
        {"ranks": [2], "begin": [0, 0], "end": [6, 2]})" +
                         more + "]}",
                     tensors);
  };
  EXPECT_EQ(scarce(layout(""), 2), "w [0:4, 2:4]");
  const std::string most = R"(, {"ranks": [3], "begin": [0, 2], "end": [5, 4]})";
  EXPECT_EQ(scarce(layout(most), 2), "w [5:6, 2:4]");
  const std::string all = R"(, {"ranks": [3], "begin": [0, 2], "end": [6, 4]})";
  EXPECT_EQ(scarce(layout(all), 2), "");
  EXPECT_EQ(scarce(layout(all), 3), "w [0:4, 2:4]");
}

TEST(Copies, PaddingIsNoElement) {
  const Tensors tensors = {{"v", DType::kF32, {5}}};
  // Rank 2 of tp holds padding alone.
  EXPECT_EQ(scarce(layout_of("dp=2,tp=3", sharded(0, R"(, "padded": 9)"), tensors), 2), "");
}

// Against counting element by element.
TEST(Copies, OfRandomLayouts) {
  size_t with_two = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(seed);
    const Layout layout = *Layout::make(world.random_spec(), world.collection());
    for (const size_t ranks : {1u, 2u, 3u}) {
      std::optional<size_t> expected;
      for (size_t tensor = 0; tensor < layout.collection().size() && !expected; ++tensor) {
        const Box all = whole(layout.collection()[tensor].shape);
        std::vector<Box> elements;
        for (uint64_t i = 0; i < volume(all); ++i)
          append_flat_range(layout.collection()[tensor].shape, i, i + 1, elements);
        for (const Box& element : elements) {
          size_t holders = 0;
          for (const Shard& shard : layout.placement(tensor).shards)
            if (contains(shard.box, element)) holders += shard.holders.size();
          if (holders < ranks) expected = tensor;
        }
      }
      const auto found = find_scarce(layout, ranks);
      ASSERT_EQ(found.has_value(), expected.has_value());
      if (!found) {
        with_two += ranks == 2 ? 1 : 0;
        continue;
      }
      ASSERT_EQ(found->tensor, *expected);
      size_t most = 0;
      for (const Shard& shard : layout.placement(found->tensor).shards) {
        ASSERT_TRUE(contains(shard.box, found->box) || !overlap(shard.box, found->box));
        if (contains(shard.box, found->box)) most += shard.holders.size();
      }
      ASSERT_LT(most, ranks);
    }
  }
  EXPECT_GT(with_two, 20u);
}

// Thousands of ranks, all tensors cut differently: it ends at once.
TEST(Copies, OfALargeModel) {
  const Model model = *find_model("gpt3-6.7b");
  const auto collection = std::make_shared<const Collection>(*make_state(model, DType::kBF16));
  const auto layout = [&](const char* text) {
    return *Layout::make(*make_spec(model, *parse_parallelism(text), 8), collection);
  };
  EXPECT_FALSE(find_scarce(layout("dp=256,tp=16"), 2));
  EXPECT_TRUE(find_scarce(layout("dp=256,tp=16,zero=1"), 2));
}

}  // namespace
}  // namespace pliant::tensor
