// What is known to go wrong in Tenplex, the system that layouts and plans are modelled on, one test
// for each defect that concerns them. Ours must not have any of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "pliant/base/text.h"
#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/philox.h"
#include "pliant/tensor/plan.h"
#include "pliant/tensor/presets.h"
#include "pliant/tensor/test_layouts.h"
#include "pliant/tensor/test_memory.h"

namespace pliant::tensor {
namespace {

// Shards were merged in the order in which a map gave them, so a merge could permute them.
TEST(KnownDefects, MergeOrder) {
  const Tensors tensors = {{"w", DType::kF32, {16, 3}}};
  const Layout shards = layout_of("tp=8", sharded(0), tensors);
  const Layout merged = layout_of("tp=1", sharded(0), tensors);
  for (int round = 0; round < 20; ++round) expect_round_trip(shards, merged);
  // The same on the other dimension, where shards interleave in memory.
  const Tensors wide = {{"w", DType::kF32, {3, 16}}};
  expect_round_trip(layout_of("tp=8", sharded(1), wide), layout_of("tp=1", sharded(1), wide));
}

// A tensor that came out too small was filled with zeros, and nobody was told.
TEST(KnownDefects, SilentPadding) {
  const Layout small = layout_of("tp=2", sharded(0), {{"w", DType::kF32, {10, 2}}});
  const Layout large = layout_of("tp=2", sharded(0), {{"w", DType::kF32, {16, 2}}});
  const auto plan = make_plan(small, large);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("'w' is f32 [10, 2] in the old layout and f32 [16, 2]"),
            std::string::npos);
  // Padding that is declared is not of the tensor: it is neither moved nor taken for data.
  const Tensors vocabulary = {{"w", DType::kF32, {10, 2}}};
  const Layout padded = layout_of("tp=4", sharded(0, R"(, "padded": 16, "fill": 7)"), vocabulary);
  const Layout other = layout_of("tp=3", sharded(0, R"(, "padded": 12)"), vocabulary);
  expect_round_trip(padded, other);
  EXPECT_EQ(make_plan(padded, other)->totals.bytes_total, 80u);
  EXPECT_EQ(padded.holding(3).buffers[0].fill, 7);
}

// A mismatch of the number of dimensions was returned as success.
TEST(KnownDefects, RankMismatch) {
  const Layout matrix = layout_of("tp=2", sharded(0), {{"w", DType::kF32, {4, 2}}});
  const Layout vector = layout_of("tp=2", sharded(0), {{"w", DType::kF32, {8}}});
  EXPECT_FALSE(make_plan(matrix, vector).ok());
}

// bool("False") was true; bool, bf16 and f8 tensors could not be stored at all.
TEST(KnownDefects, BoolAndShortTypes) {
  Tensors tensors;
  for (int dtype = 0; dtype < kDTypes; ++dtype)
    tensors.push_back({to_string(static_cast<DType>(dtype)), static_cast<DType>(dtype), {12, 5}});
  expect_round_trip(layout_of("tp=4", sharded(0), tensors), layout_of("tp=3", sharded(0), tensors));
}

// Tensors without dimensions broke the loading of a state.
TEST(KnownDefects, TensorsWithoutDimensions) {
  const Tensors tensors = {{"step", DType::kI64}, {"lr", DType::kF64}, {"flag", DType::kBool}};
  const std::string everywhere = R"({"match": "*", "replicated": true})";
  expect_round_trip(layout_of("tp=4", everywhere, tensors), layout_of("tp=1", everywhere, tensors));
  const std::string flat = R"({"match": "step", "flat": {"group": "a", "axes": ["tp"]}},
                             {"otherwise": true, "replicated": true})";
  expect_round_trip(layout_of("tp=4", flat, tensors), layout_of("tp=2", everywhere, tensors));
}

// Dividing five by four, rounded up, overshot, and the program panicked.
TEST(KnownDefects, UnevenDivision) {
  const Tensors tensors = {{"w", DType::kI16, {5, 3}}};
  const Layout ceil = layout_of("tp=4", sharded(0, R"(, "split": "ceil")"), tensors);
  EXPECT_EQ(ceil.holding(2).pieces.size(), 1u);
  EXPECT_TRUE(ceil.holding(3).pieces.empty());
  const Layout balanced = layout_of("tp=4", sharded(0, R"(, "split": "balanced")"), tensors);
  expect_round_trip(ceil, balanced);
  expect_round_trip(ceil, layout_of("tp=2", sharded(0, R"(, "split": [0, 5])"), tensors));
}

// The axis was guessed: the first dimension whose size differs, and only the first two.
TEST(KnownDefects, GuessedAxes) {
  const Tensors square = {{"w", DType::kF32, {4, 4, 4}}};
  const Layout third = layout_of("tp=4", sharded(2), square);
  EXPECT_EQ(to_string(third.holding(1).pieces[0].box), "[0:4, 0:4, 1:2]");
  expect_round_trip(third, layout_of("tp=4", sharded(0), square));
  expect_round_trip(third, layout_of("tp=2", sharded(1), square));
}

// The first data-parallel replica gave everything, and what was in place was copied too.
TEST(KnownDefects, OneReplicaGivesAll) {
  Tensors tensors;
  for (int i = 0; i < 16; ++i) tensors.push_back({fmt::format("w{}", i), DType::kF32, {64}});
  const std::string everywhere = R"({"match": "*", "replicated": true})";
  const Layout four = layout_of("dp=4", everywhere, tensors);
  const Layout eight = layout_of("dp=8", everywhere, tensors);
  const auto plan = make_plan(four, eight);
  ASSERT_TRUE(plan.ok());
  std::set<Rank> givers;
  for (const Move& move : plan->moves)
    if (!plan->is_in_place(move)) givers.insert(move.from);
  EXPECT_EQ(givers, (std::set<Rank>{0, 1, 2, 3}));
  EXPECT_EQ(plan->totals.bytes_in_place, plan->totals.bytes_moved);
}

// Only contiguous slices along one axis: fused gates and grouped queries came out wrong.
TEST(KnownDefects, FusedAndGroupedTensors) {
  const Tensors tensors = {{"gate_up", DType::kBF16, {16, 2}}};
  const std::string fused = R"(, "blocks": [{"size": 8}, {"size": 8}])";
  const Layout two = layout_of("tp=2", sharded(0, fused), tensors);
  const Holding second = two.holding(1);
  EXPECT_EQ(to_string(second.pieces[0].box), "[4:8, 0:2]");    // the second half of the gate
  EXPECT_EQ(to_string(second.pieces[1].box), "[12:16, 0:2]");  // and of what goes up
  expect_round_trip(two, layout_of("tp=4", sharded(0, fused), tensors));
  const Tensors qkv = {{"qkv", DType::kBF16, {12, 2}}};
  const std::string grouped = R"(, "blocks": [{"size": 8, "units": 4}, {"size": 2, "units": 2},
                                             {"size": 2, "units": 2}])";
  expect_round_trip(layout_of("tp=4", sharded(0, grouped), qkv),
                    layout_of("tp=2", sharded(0, grouped), qkv));
}

// No ZeRO, no experts, no uneven or interleaved stages.
TEST(KnownDefects, MissingParallelism) {
  for (const char* name : {"gpt-tiny", "moe-tiny"}) {
    const Model model = *find_model(name);
    const auto state = std::make_shared<const Collection>(*make_state(model, DType::kBF16));
    const auto of = [&](const char* sizes) {
      return *Layout::make(*make_spec(model, *parse_parallelism(sizes), 0), state);
    };
    expect_round_trip(of("dp=2,pp=3,zero=1"),
                      of("pp=2,interleave=2,tp=2"));  // 4 layers on 3 stages
    if (model.experts != 0) expect_round_trip(of("dp=4,ep=4"), of("dp=4,ep=2,zero=1"));
  }
}

// Four members a host, a vocabulary of 30,524 and 12, 24 or 32 layers were fixed in the code.
TEST(KnownDefects, FixedNumbers) {
  Tensors tensors = {{"vocabulary", DType::kF32, {101, 3}}};
  for (int layer = 0; layer < 7; ++layer)
    tensors.push_back({fmt::format("layers.{}.w", layer), DType::kF32, {6}});
  const std::string rules =
      R"({"match": "vocabulary", "stage": "first",
          "shard": [{"dim": 0, "axes": ["tp"], "padded": 102}]},
         {"match": "layers.{layer}.w", "stage": "layer"})";
  const Layout three =
      layout_of("pp=3,tp=3", rules, tensors,
                R"("pipeline": {"axis": "pp", "layers": 7, "counts": [1, 4, 2]}, )");
  const Layout two =
      layout_of("pp=7,tp=2", rules, tensors, R"("pipeline": {"axis": "pp", "layers": 7}, )");
  expect_round_trip(three, two);
}

// After a change of tensor parallelism all ranks had the random numbers of the first one.
TEST(KnownDefects, EqualRandomNumbersOnAllRanks) {
  std::set<std::array<uint32_t, 4>> seen;
  for (uint32_t rank = 0; rank < 16; ++rank)
    seen.insert(philox(derive_random(1, "model parallel", rank, 1000)));
  EXPECT_EQ(seen.size(), 16u);
}

// With a replica left, a loss needed a copy in the store; without one, the error named nothing.
TEST(KnownDefects, ReplicasAsSources) {
  const Tensors tensors = {{"w", DType::kF32, {8, 2}}};
  const Layout before = layout_of("dp=2,tp=2", sharded(0), tensors);
  const auto plan = make_plan(before, before, {.lost = {0, 3}});
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->is_complete());
  const auto gone = make_plan(before, before, {.lost = {0, 2}});
  ASSERT_EQ(gone->gone.size(), 1u);
  EXPECT_EQ(to_string(gone->gone[0].box), "[0:4, 0:2]");
}

}  // namespace
}  // namespace pliant::tensor
