#include "pliant/store/reshard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "pliant/store/safetensors.h"
#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/presets.h"
#include "pliant/tensor/test_layouts.h"

namespace pliant::store {
namespace {

using tensor::Collection;
using tensor::Layout;

// Every element is in one file, that of a rank which holds it; no file has a tensor twice.
void expect_sound(const Layout& layout, uint64_t shard_bytes_max) {
  const auto files = plan_rank_files(layout, shard_bytes_max);
  ASSERT_TRUE(files.ok()) << files.error().message;
  std::vector<StoredTensor> tensors;
  for (const TensorInfo& info : layout.collection().tensors()) tensors.push_back({info, {}});
  std::set<std::string> names;
  for (const PlannedFile& file : *files) {
    EXPECT_TRUE(names.insert(file.name).second) << file.name;
    const Rank rank = std::stoi(file.name.substr(6)) - 1;
    ASSERT_LT(static_cast<uint32_t>(rank), layout.mesh().size());
    const tensor::Holding holding = layout.holding(rank);
    std::set<size_t> in_file;
    uint64_t bytes = 0;
    EXPECT_FALSE(file.pieces.empty());
    for (const PlannedPiece& piece : file.pieces) {
      const TensorInfo& info = layout.collection()[piece.tensor];
      EXPECT_TRUE(in_file.insert(piece.tensor).second) << file.name << " has it twice";
      StoredPiece stored;
      stored.box = piece.box;
      tensors[piece.tensor].pieces.push_back(stored);
      bytes += tensor::volume(piece.box) * size_of(info.dtype);
      if (info.elements() == 0) continue;
      EXPECT_NE(holding.find(piece.tensor, piece.box), nullptr)
          << "rank " << rank << " does not hold " << to_string(piece.box) << " of " << info.name;
    }
    EXPECT_TRUE(bytes <= shard_bytes_max || file.pieces.size() == 1) << file.name;
  }
  for (const StoredTensor& tensor : tensors) {
    EXPECT_FALSE(tensor.pieces.empty()) << tensor.info.name;
    const Status covered = check_cover(tensor);
    EXPECT_TRUE(covered.ok()) << covered.error().message;
  }
}

TEST(Reshard, RandomLayoutsAreWrittenOnceAndByHolders) {
  int made = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    tensor::RandomWorld world(seed);
    const auto layout = Layout::make(world.random_spec(), world.collection());
    if (!layout.ok()) continue;  // a flat group of different types, or the like
    ++made;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    expect_sound(*layout, seed % 2 == 0 ? UINT64_MAX : 1 + seed % 60);
    if (HasFailure()) break;
  }
  EXPECT_GT(made, 200);
}

TEST(Reshard, PresetsAreWrittenOnceAndByHolders) {
  for (const char* name : {"gpt-tiny", "llama-tiny", "moe-tiny"}) {
    const tensor::Model model = *tensor::find_model(name);
    const auto state = std::make_shared<const Collection>(*tensor::make_state(model, DType::kBF16));
    for (const char* sizes : {"dp=1", "dp=2,tp=2,pp=2", "tp=4,zero=1", "dp=3,pp=3,zero=3",
                              "dp=4,tp=2,zero=2", "pp=2,interleave=2"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, sizes));
      const auto spec = tensor::make_spec(model, *tensor::parse_parallelism(sizes), 0);
      ASSERT_TRUE(spec.ok()) << spec.error().message;
      const auto layout = Layout::make(*spec, state);
      ASSERT_TRUE(layout.ok()) << layout.error().message;
      expect_sound(*layout, 5000);
    }
  }
}

const std::string kTwoByTwo = "dp=2,tp=2";
const std::string kRows = R"({"match": "*", "shard": [{"dim": 0, "axes": ["tp"]}]})";

TEST(Reshard, ReplicasAreInTheFilesOfTheFirstHolder) {
  const Layout layout = tensor::layout_of(kTwoByTwo, kRows, {{"w", DType::kF32, {4, 2}}});
  const auto files = plan_rank_files(layout, UINT64_MAX);
  ASSERT_EQ(files->size(), 2U);  // ranks 2 and 3 hold nothing that 0 and 1 do not
  EXPECT_EQ((*files)[0].name, "shard-00001-model-00001-of-00001.safetensors");
  EXPECT_EQ((*files)[1].name, "shard-00002-model-00001-of-00001.safetensors");
  EXPECT_EQ(to_string((*files)[1].pieces[0].box), "[2:4, 0:2]");
}

TEST(Reshard, SeveralPiecesOfATensorAreInSeveralFiles) {
  const Layout layout =
      tensor::layout_of("tp=2",
                        R"({"match": "*", "shard": [{"dim": 0, "axes": ["tp"],
                                      "blocks": [{"size": 4}, {"size": 2}, {"size": 2}]}]})",
                        {{"qkv", DType::kF32, {8, 2}}, {"qkv2", DType::kF32, {8, 2}}});
  const auto files = plan_rank_files(layout, UINT64_MAX);
  ASSERT_EQ(files->size(), 6U);
  for (const PlannedFile& file : *files) EXPECT_EQ(file.pieces.size(), 2U);
  EXPECT_EQ((*files)[4].name, "shard-00002-model-00002-of-00003.safetensors");
  EXPECT_EQ(to_string((*files)[4].pieces[0].box), "[5:6, 0:2]");
}

TEST(Reshard, LargeRanksHaveSeveralFiles) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back({fmt::format("w{}", i), DType::kF32, {4, 2}});
  const Layout layout = tensor::layout_of(kTwoByTwo, kRows, tensors);
  EXPECT_EQ(plan_rank_files(layout, 16 * 6)->size(), 2U);
  EXPECT_EQ(plan_rank_files(layout, 16 * 3)->size(), 4U);
  EXPECT_EQ(plan_rank_files(layout, 16 * 2 + 15)->size(), 6U);
  EXPECT_EQ(plan_rank_files(layout, 1)->size(), 12U);
  EXPECT_EQ(plan_rank_files(layout, 0)->size(), 12U);
}

TEST(Reshard, EmptyTensorsAndScalarsAreKept) {
  const Layout layout = tensor::layout_of(
      kTwoByTwo, R"({"match": "*", "replicated": true})",
      {{"a", DType::kF32, {0, 3}}, {"b", DType::kF32, {5, 0}}, {"step", DType::kI64, {}}});
  const auto files = plan_rank_files(layout, UINT64_MAX);
  ASSERT_EQ(files->size(), 1U);
  ASSERT_EQ((*files)[0].pieces.size(), 3U);
  EXPECT_EQ(to_string((*files)[0].pieces[0].box), "[0:0, 0:3]");
  EXPECT_EQ(to_string((*files)[0].pieces[1].box), "[0:5, 0:0]");
}

TEST(Reshard, DifferentTensorsAreNamed) {
  const auto of = [](std::vector<TensorInfo> tensors) { return *Collection::make(tensors); };
  const TensorInfo a = {"a", DType::kF32, {4}};
  const TensorInfo b = {"b", DType::kF32, {4}};
  EXPECT_TRUE(check_same_tensors(of({a, b}), of({b, a})).ok());
  EXPECT_EQ(check_same_tensors(of({a}), of({a, b})).error().message,
            "the checkpoint has tensor 'b', f32 [4], and the layout has none of that name");
  EXPECT_EQ(check_same_tensors(of({a, b}), of({b})).error().message,
            "the layout has tensor 'a', f32 [4], and the checkpoint has none of that name");
  EXPECT_EQ(check_same_tensors(of({{"a", DType::kF32, {8}}}), of({a})).error().message,
            "tensor 'a' is f32 [4] in the checkpoint and f32 [8] in the layout");
  EXPECT_FALSE(check_same_tensors(of({{"a", DType::kBF16, {4}}}), of({a})).ok());
}

}  // namespace
}  // namespace pliant::store
