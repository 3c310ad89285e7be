#include "pliant/tensor/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/test_memory.h"

namespace pliant::tensor {
namespace {

// Layouts are easiest to read in their text form.
Result<Layout> layout_of(const std::string& mesh, const std::string& tensors,
                         const std::string& rules, const std::string& more = "") {
  auto document =
      parse_layout(R"({"format": "pliant.layout/1", "mesh": {"axes": [)" + mesh + R"(]}, )" + more +
                   R"("tensors": [)" + tensors + R"(], "rules": [)" + rules + "]}");
  if (!document) return document.error();
  return Layout::make(std::move(document->spec),
                      std::make_shared<Collection>(std::move(*document->collection)));
}

const std::string kTp4 = R"({"name": "tp", "size": 4})";
const std::string kDp2Tp2 = R"({"name": "dp", "size": 2}, {"name": "tp", "size": 2})";
const std::string kPp2Tp2 = R"({"name": "pp", "size": 2}, {"name": "tp", "size": 2})";
const std::string kW = R"({"name": "w", "dtype": "f32", "shape": [8, 6]})";

std::string fault(const std::string& mesh, const std::string& tensors, const std::string& rules,
                  const std::string& more = "") {
  const auto layout = layout_of(mesh, tensors, rules, more);
  return layout ? "" : layout.error().message;
}

std::string boxes_of(const Layout& layout, Rank rank) {
  std::string text;
  for (const Piece& piece : layout.holding(rank).pieces) text += to_string(piece.box);
  return text;
}

void expect_whole(const Layout& layout) {
  Memory memory(layout);
  memory.fill();
  memory.expect_whole();
}

TEST(Layout, ShardsAlongAnyDimensionOverAnyAxes) {
  const auto layout = layout_of(
      kDp2Tp2, kW,
      R"({"match": "w", "shard": [{"dim": 1, "axes": ["dp"]}, {"dim": 0, "axes": ["tp"]}]})");
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  EXPECT_EQ(boxes_of(*layout, 0), "[0:4, 0:3]");
  EXPECT_EQ(boxes_of(*layout, 1), "[4:8, 0:3]");
  EXPECT_EQ(boxes_of(*layout, 2), "[0:4, 3:6]");
  const auto both =
      layout_of(kDp2Tp2, kW, R"({"match": "w", "shard": [{"dim": 0, "axes": ["tp", "dp"]}]})");
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(boxes_of(*both, 1), "[4:6, 0:6]");  // tp 1, dp 0
  EXPECT_EQ(boxes_of(*both, 2), "[2:4, 0:6]");
  expect_whole(*layout);
  expect_whole(*both);
}

TEST(Layout, SaysWhereInMemoryAPieceIs) {
  const auto layout = layout_of(kTp4, R"({"name": "qkv", "dtype": "bf16", "shape": [16, 2]})",
                                R"({"match": "qkv", "shard": [{"dim": 0, "axes": ["tp"], "blocks": [
          {"name": "query", "size": 8, "units": 8}, {"name": "key", "size": 4, "units": 2},
          {"name": "value", "size": 4, "units": 2}]}]})");
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  EXPECT_EQ(boxes_of(*layout, 1), "[2:4, 0:2][8:10, 0:2][12:14, 0:2]");
  EXPECT_EQ(boxes_of(*layout, 2), "[4:6, 0:2][10:12, 0:2][14:16, 0:2]");
  const Holding holding = layout->holding(2);
  ASSERT_EQ(holding.buffers.size(), 1u);
  EXPECT_EQ(holding.buffers[0].shape, (std::vector<uint64_t>{6, 2}));
  EXPECT_EQ(holding.bytes(), 24u);
  EXPECT_EQ(holding.pieces[2].offset, 8u);
  EXPECT_EQ(holding.pieces[2].strides[0], 2u);
  // Heads of keys that two ranks share are one box with two holders.
  for (const Shard& shard : layout->placement(0).shards)
    EXPECT_EQ(shard.holders.size(), shard.box.begin[0] < 8 ? 1u : 2u);
  expect_whole(*layout);
}

TEST(Layout, PaddingIsDeclaredAndHoldsAValue) {
  const auto layout = layout_of(kTp4, R"({"name": "vocabulary", "dtype": "f16", "shape": [10, 2]})",
                                R"({"match": "vocabulary",
          "shard": [{"dim": 0, "axes": ["tp"], "padded": 16, "fill": -1}]})");
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  const Holding third = layout->holding(2);
  EXPECT_EQ(to_string(third.pieces.at(0).box), "[8:10, 0:2]");
  EXPECT_EQ(third.buffers[0].elements, 8u);
  EXPECT_TRUE(third.buffers[0].is_padded);
  EXPECT_EQ(third.buffers[0].fill, -1);
  EXPECT_TRUE(layout->holding(3).pieces.empty());
  EXPECT_EQ(layout->holding(3).buffers[0].elements, 8u);
  EXPECT_FALSE(layout->holding(0).buffers[0].is_padded);
  expect_whole(*layout);
}

TEST(Layout, LayersAreOnTheirStages) {
  std::string tensors;
  for (int layer = 0; layer < 4; ++layer)
    tensors += fmt::format(R"({{"name": "l.{}", "dtype": "f32", "shape": [2]}}, )", layer);
  tensors += R"({"name": "embedding", "dtype": "f32", "shape": [2]})";
  const std::string rules =
      R"({"match": "l.{layer}", "stage": "layer"},
         {"match": "embedding", "stage": "first_and_last"})";
  const auto stage_has = [&](const std::string& pipeline, Rank rank) {
    const auto layout = layout_of(kPp2Tp2, tensors, rules, pipeline);
    EXPECT_TRUE(layout.ok()) << layout.error().message;
    std::string names;
    for (const Piece& piece : layout->holding(rank).pieces)
      names += layout->collection()[piece.tensor].name + " ";
    expect_whole(*layout);
    return names;
  };
  const std::string even = R"("pipeline": {"axis": "pp", "layers": 4}, )";
  EXPECT_EQ(stage_has(even, 0), "l.0 l.1 embedding ");
  EXPECT_EQ(stage_has(even, 3), "l.2 l.3 embedding ");
  const std::string uneven = R"("pipeline": {"axis": "pp", "layers": 4, "counts": [1, 3]}, )";
  EXPECT_EQ(stage_has(uneven, 1), "l.0 embedding ");
  const std::string interleaved = R"("pipeline": {"axis": "pp", "layers": 4, "interleave": 2}, )";
  EXPECT_EQ(stage_has(interleaved, 0), "l.0 l.2 embedding ");
  EXPECT_EQ(stage_has(interleaved, 2), "l.1 l.3 embedding ");
}

// Three tensors behind each other, 4 + 3 + 6 elements, cut into two ranges of 7.
TEST(Layout, FlatRangesReachAcrossTensors) {
  const std::string tensors = R"({"name": "a", "dtype": "f32", "shape": [2, 2]},
      {"name": "b", "dtype": "f32", "shape": [3]}, {"name": "c", "dtype": "f32", "shape": [3, 2]})";
  const auto layout =
      layout_of(kDp2Tp2, tensors, R"({"match": "*", "flat": {"group": "state", "axes": ["dp"]}})");
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  const Holding second = layout->holding(2);
  ASSERT_EQ(second.buffers.size(), 1u);
  EXPECT_TRUE(second.buffers[0].is_flat);
  EXPECT_TRUE(second.buffers[0].is_padded);  // 13 of 14
  EXPECT_EQ(second.buffers[0].elements, 7u);
  EXPECT_EQ(boxes_of(*layout, 2), "[0:3, 0:2]");
  EXPECT_EQ(boxes_of(*layout, 0), "[0:2, 0:2][0:3]");
  const auto aligned = layout_of(
      kDp2Tp2, tensors,
      R"({"match": "*", "flat": {"group": "g", "axes": ["dp", "tp"], "align": 4, "multiple": 2}})");
  ASSERT_TRUE(aligned.ok());
  EXPECT_EQ(aligned->holding(0).buffers[0].elements, 4u);
  EXPECT_EQ(boxes_of(*aligned, 1), "[0:3]");
  EXPECT_EQ(boxes_of(*aligned, 3), "[2:3, 0:2]");
  expect_whole(*layout);
  expect_whole(*aligned);
}

TEST(Layout, ExpertsAreSpreadByTheirNumber) {
  std::string tensors;
  for (int expert = 0; expert < 5; ++expert)
    tensors += fmt::format(R"({}{{"name": "e.{}.w", "dtype": "f8_e4m3", "shape": [2]}})",
                           expert == 0 ? "" : ",", expert);
  const auto layout = layout_of(
      kTp4, tensors,
      R"({"match": "e.{expert}.w", "experts": {"axes": ["tp"], "count": 5, "split": "balanced"}})");
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  EXPECT_EQ(layout->holding(0).pieces.size(), 2u);
  EXPECT_EQ(layout->holding(3).pieces.size(), 1u);
  EXPECT_EQ(layout->holding(3).pieces[0].tensor, 4u);
}

// ---- Bad input ----------------------------------------------------------------------------------

TEST(LayoutFaults, ATensorWithoutARule) {
  EXPECT_EQ(fault(kTp4, kW, R"({"match": "v", "replicated": true})"),
            "tensor 'w': no rule matches it; add one, or a last rule with 'otherwise': true");
}

TEST(LayoutFaults, ATensorWithTwoRules) {
  const std::string message =
      fault(kTp4, kW, R"({"match": "w", "replicated": true}, {"match": "*", "replicated": true})");
  EXPECT_NE(message.find("tensor 'w': is matched by rules[0] ('w') and by rules[1] ('*')"),
            std::string::npos);
  EXPECT_EQ(fault(kTp4, kW, R"({"match": "w", "replicated": true},
                               {"otherwise": true, "replicated": true})"),
            "");
  EXPECT_NE(fault(kTp4, kW, R"({"otherwise": true, "replicated": true},
                               {"match": "w", "replicated": true})")
                .find("last"),
            std::string::npos);
}

TEST(LayoutFaults, PiecesThatDoNotCoverOrCoverTwice) {
  const auto stated = [](const std::string& pieces) {
    return fault(kTp4, kW, R"({"match": "w", "pieces": [)" + pieces + "]}");
  };
  const std::string top = R"({"ranks": [0], "begin": [0, 0], "end": [4, 6]})";
  EXPECT_EQ(stated(top), "tensor 'w': rules[0].pieces: no rank has [4:8, 0:6]");
  EXPECT_EQ(stated(top + R"(, {"ranks": [0, 1], "begin": [3, 0], "end": [8, 6]})"),
            "tensor 'w': rules[0].pieces: rank 0 has [3:4, 0:6] twice, in [0:4, 0:6] and in "
            "[3:8, 0:6]");
  EXPECT_EQ(stated(top + R"(, {"ranks": [1, 2], "begin": [3, 0], "end": [8, 6]})"), "");
  EXPECT_NE(stated(R"({"ranks": [4], "begin": [0, 0], "end": [8, 6]})").find("no rank 4 in a mesh"),
            std::string::npos);
  EXPECT_NE(stated(R"({"ranks": [0], "begin": [0, 0], "end": [9, 6]})").find("beyond the tensor"),
            std::string::npos);
  EXPECT_NE(stated(R"({"ranks": [0], "begin": [0], "end": [8]})").find("1 dimensions"),
            std::string::npos);
  EXPECT_NE(stated(R"({"ranks": [0], "begin": [4, 0], "end": [2, 6]})").find("empty"),
            std::string::npos);
}

TEST(LayoutFaults, SizesThatDoNotFit) {
  const auto shard = [](const std::string& text) {
    return fault(kTp4, kW, R"({"match": "w", "shard": [)" + text + "]}");
  };
  EXPECT_NE(shard(R"({"dim": 1, "axes": ["tp"]})")
                .find("tensor 'w': rules[0].shard[0], dimension 1 of [8, 6]: 6 elements cannot be "
                      "divided evenly by 4"),
            std::string::npos);
  EXPECT_NE(shard(R"({"dim": 2, "axes": ["tp"]})").find("there is no dimension 2"),
            std::string::npos);
  EXPECT_NE(shard(R"({"dim": 0, "axes": ["tp"], "split": [2, 2, 2, 1]})").find("7 of 8"),
            std::string::npos);
  EXPECT_NE(shard(R"({"dim": 0, "axes": ["tpp"]})").find("no axis 'tpp'; it has tp"),
            std::string::npos);
  EXPECT_NE(shard(R"({"dim": 0, "axes": []})").find("names no axis"), std::string::npos);
  EXPECT_NE(
      shard(R"({"dim": 0, "axes": ["tp"]}, {"dim": 1, "axes": ["tp"]})").find("both use axis 'tp'"),
      std::string::npos);
  EXPECT_NE(shard(R"({"dim": 0, "axes": ["tp"]}, {"dim": 0, "axes": ["dp"]})")
                .find("both divide dimension 0"),
            std::string::npos);
  EXPECT_NE(shard(R"({"dim": 0, "axes": ["tp"], "padded": 1000000000000000000})").find("2^60"),
            std::string::npos);
}

// A short text cannot ask for very much memory.
TEST(LayoutFaults, TooManyBoxes) {
  const std::string large = R"({"name": "w", "dtype": "i8", "shape": [65536, 65536]})";
  const auto blocks = [&](int repeat) {
    const std::string shard = fmt::format(
        R"("axes": ["{{}}"], "split": "ceil", "blocks": [{{{{"size": {}}}}}], "repeat": {}}}}})",
        65536 / repeat, repeat);
    return fault(kDp2Tp2, large,
                 R"({"match": "w", "shard": [{"dim": 0, )" +
                     fmt::format(fmt::runtime(shard), "dp") + R"(, {"dim": 1, )" +
                     fmt::format(fmt::runtime(shard), "tp") + "]}");
  };
  EXPECT_NE(blocks(65536).find("cut into more than 4194304 boxes"), std::string::npos);
  EXPECT_EQ(blocks(16), "");
}

TEST(LayoutFaults, RulesThatSayNothingOrTooMuch) {
  EXPECT_NE(fault(kTp4, kW, R"({"match": "w"})").find("rules[0]: says nothing"), std::string::npos);
  EXPECT_NE(fault(kTp4, kW, R"({"replicated": true})").find("'match'"), std::string::npos);
  EXPECT_NE(fault(kTp4, kW, R"({"match": "w", "replicated": true,
                               "shard": [{"dim": 0, "axes": ["tp"]}]})")
                .find("stand alone"),
            std::string::npos);
  EXPECT_NE(fault(kTp4, kW, R"({"match": "w", "stage": "first"})").find("no 'pipeline'"),
            std::string::npos);
  EXPECT_NE(fault(kTp4, kW, R"({"match": "w", "experts": {"axes": ["tp"], "count": 4}})")
                .find("{expert}"),
            std::string::npos);
}

TEST(LayoutFaults, StagesAndLayersThatAreNotThere) {
  const std::string layer = R"({"name": "l.9", "dtype": "f32", "shape": []})";
  const std::string rule = R"({"match": "l.{layer}", "stage": "layer"})";
  const auto pipeline = [&](const std::string& text, const std::string& rules) {
    return fault(kPp2Tp2, layer, rules, R"("pipeline": {)" + text + "}, ");
  };
  EXPECT_NE(pipeline(R"("axis": "pp", "layers": 4)", rule)
                .find("layer is 9, but the pipeline has "
                      "layers 0 to 3"),
            std::string::npos);
  EXPECT_NE(pipeline(R"("axis": "pp", "layers": 5)", rule).find("'counts'"), std::string::npos);
  EXPECT_NE(pipeline(R"("axis": "pp", "layers": 5, "counts": [2, 2])", rule).find("4 of 5"),
            std::string::npos);
  EXPECT_NE(pipeline(R"("axis": "zz", "layers": 4)", rule).find("no axis 'zz'"), std::string::npos);
  EXPECT_NE(pipeline(R"("axis": "pp", "layers": 10)", R"({"match": "l.9", "stage": "layer"})")
                .find("{layer}"),
            std::string::npos);
  EXPECT_NE(pipeline(R"("axis": "pp", "layers": 10)", R"({"match": "l.9", "stage": 2})")
                .find("no stage 2 among 2"),
            std::string::npos);
}

TEST(LayoutFaults, FlatGroupsAreOfOneTypeAndOneMind) {
  const std::string two = R"({"name": "a", "dtype": "f32", "shape": [2]},
                            {"name": "b", "dtype": "bf16", "shape": [2]})";
  EXPECT_NE(fault(kTp4, two, R"({"match": "*", "flat": {"group": "g", "axes": ["tp"]}})")
                .find("tensor 'b': it is bf16, but flat group 'g' began with f32"),
            std::string::npos);
  const std::string same = R"({"name": "a", "dtype": "f32", "shape": [2]},
                             {"name": "b", "dtype": "f32", "shape": [2]})";
  EXPECT_NE(fault(kTp4, same, R"({"match": "a", "flat": {"group": "g", "axes": ["tp"]}},
              {"match": "b", "flat": {"group": "g", "axes": ["tp"], "align": 2}})")
                .find("described differently"),
            std::string::npos);
}

}  // namespace
}  // namespace pliant::tensor
