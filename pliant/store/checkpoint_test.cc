#include "pliant/store/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "pliant/store/checkpoint_writer.h"
#include "pliant/store/safetensors_folder.h"
#include "pliant/store/test_folder.h"
#include "pliant/store/test_source.h"
#include "pliant/store/test_torch.h"
#include "pliant/store/verify.h"

namespace pliant::store {
namespace {

const std::vector<TensorInfo> kTensors = {
    {"embed.weight", DType::kBF16, {700, 64}}, {"layers.0.w", DType::kF32, {300, 100}},
    {"layers.0.b", DType::kF32, {100}},        {"flags", DType::kBool, {5}},
    {"scale", DType::kF8E4M3, {3, 3}},         {"step", DType::kI64, {}},
    {"nothing", DType::kF16, {0, 9}},
};

std::map<std::string, std::vector<std::byte>> all_of(Checkpoint& checkpoint) {
  std::map<std::string, std::vector<std::byte>> all;
  for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    auto bytes = checkpoint.read_whole(i);
    EXPECT_TRUE(bytes.ok()) << bytes.error().message;
    if (bytes.ok()) all[checkpoint.tensors()[i].name] = std::move(*bytes);
  }
  return all;
}

std::map<std::string, std::vector<std::byte>> all_of(const WriteSource& source) {
  std::map<std::string, std::vector<std::byte>> all;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    auto& bytes = all[source.tensors[i].name];
    bytes.resize(source.tensors[i].bytes());
    EXPECT_TRUE(source.read(i, tensor::whole(source.tensors[i].shape), bytes).ok());
  }
  return all;
}

TEST(Checkpoint, EveryFormatThatIsWrittenIsRead) {
  WriteSource source = source_of(kTensors);
  source.values = {{"lr", "0.5"}, {"betas", "[0.9,0.95]"}, {"__metadata__.note", "\"hello\""}};
  for (const auto format : {CheckpointFormat::kSafetensors, CheckpointFormat::kShardedSafetensors,
                            CheckpointFormat::kDcpSafetensors}) {
    const TestFolder folder;
    const auto report = write_checkpoint(
        source, folder / "out",
        {.format = format, .shard_bytes_max = 75'000, .memory_bytes = uint64_t{1} << 20});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->files, format == CheckpointFormat::kSafetensors ? 1U : 3U);
    const auto opened = Checkpoint::open(folder / "out");
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->format(), format);
    EXPECT_EQ(all_of(**opened), all_of(source));
    std::map<std::string, std::string> values;
    for (const StoredValue& value : (*opened)->values()) values[value.name] = value.json;
    EXPECT_EQ(values["lr"], "0.5");
    EXPECT_EQ(values["betas"], "[0.9,0.95]");
    EXPECT_EQ(values["__metadata__.note"], "\"hello\"");
    for (const TensorInfo& info : kTensors) {
      const auto found = (*opened)->tensors().find(info.name);
      ASSERT_TRUE(found);
      EXPECT_EQ((*opened)->tensors()[*found], info);
    }
    EXPECT_EQ(folder.names().size(), 1U) << "nothing temporary is left";
  }
}

TEST(Checkpoint, DcpPiecesAreCutAsTorchExpects) {
  const TestFolder folder;
  const auto report =
      write_checkpoint(source_of(kTensors), folder / "out",
                       {.format = CheckpointFormat::kDcpSafetensors, .shard_bytes_max = 75'000});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(std::filesystem::exists(folder / "out/shard-00001-model-00001-of-00001.safetensors"));
  const auto opened = Checkpoint::open(folder / "out");
  ASSERT_TRUE(opened.ok());
  const size_t embed = *(*opened)->tensors().find("embed.weight");
  ASSERT_EQ((*opened)->pieces(embed).size(), 3U);
  EXPECT_EQ((*opened)->pieces(embed)[1].box.begin[0], 234U);
  EXPECT_EQ((*opened)->pieces(embed)[2].box.end[0], 700U);
  // What stock torch does not know is told.
  ASSERT_EQ(report->warnings.size(), 2U);
  EXPECT_NE(report->warnings[0].find("'flags'"), std::string::npos);
}

TEST(Checkpoint, OnePieceIsNoCheckpoint) {
  const TestFolder folder;
  ASSERT_TRUE(
      write_checkpoint(source_of(kTensors), folder / "out",
                       {.format = CheckpointFormat::kDcpSafetensors, .shard_bytes_max = 75'000})
          .ok());
  const std::string piece = "out/shard-00002-model-00001-of-00001.safetensors";
  const auto alone = Checkpoint::open(folder / piece);
  ASSERT_FALSE(alone.ok());
  EXPECT_NE(alone.error().message.find("name its folder"), std::string::npos);
  std::filesystem::remove(folder / piece);
  const auto missing = Checkpoint::open(folder / "out");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("incomplete"), std::string::npos)
      << missing.error().message;
}

TEST(Checkpoint, ADestinationThatExistsStays) {
  for (const auto format :
       {CheckpointFormat::kSafetensors, CheckpointFormat::kShardedSafetensors}) {
    const TestFolder folder;
    const bool file = format == CheckpointFormat::kSafetensors;
    const std::string name = file ? "out" : "out/old.txt";
    folder.put(name, "old");
    const auto refused = write_checkpoint(source_of(kTensors), folder / "out", {.format = format});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("--force"), std::string::npos);
    EXPECT_EQ(folder.get(name), "old");
    // A source that fails in the middle leaves it too, although replacing was allowed.
    WriteSource broken = source_of(kTensors);
    broken.read = [](size_t number, const Box&, std::span<std::byte>) {
      return number == 1 ? Status(invalid("no more")) : Status();
    };
    EXPECT_FALSE(
        write_checkpoint(broken, folder / "out", {.format = format, .existing = Existing::kReplace})
            .ok());
    EXPECT_EQ(folder.get(name), "old");
    EXPECT_EQ(folder.names().size(), 1U);
    const auto replaced = write_checkpoint(source_of(kTensors), folder / "out",
                                           {.format = format, .existing = Existing::kReplace});
    ASSERT_TRUE(replaced.ok()) << replaced.error().message;
    EXPECT_TRUE(Checkpoint::open(folder / "out").ok());
    EXPECT_EQ(folder.names().size(), 1U);
    EXPECT_TRUE(file || !std::filesystem::exists(folder / "out/old.txt"));
  }
}

TEST(Checkpoint, MemoryIsBounded) {
  const std::vector<TensorInfo> tensors = {{"w", DType::kF32, {1000, 1000}}};
  WriteSource source = source_of(tensors);
  size_t longest = 0;
  source.read = [&](size_t, const Box&, std::span<std::byte> to) {
    longest = std::max(longest, to.size());
    return Status();
  };
  const TestFolder folder;
  ASSERT_TRUE(write_checkpoint(source, folder / "out", {.memory_bytes = uint64_t{1} << 20}).ok());
  EXPECT_LE(longest, size_t{1} << 19);
  EXPECT_FALSE(write_checkpoint(source, folder / "out2", {.memory_bytes = 1000}).ok());
}

TEST(Checkpoint, ATransposedTensorIsReadInOrder) {
  using namespace pickled;
  const TestFolder folder;
  folder.put("x.pt",
             make_torch_file(dict({{"t", tensor("FloatStorage", "0", 0, {3, 2}, {1, 3})},
                                   {"ones", tensor("FloatStorage", "0", 1, {2, 2}, {0, 0})}}),
                             {packed<float>({0, 1, 2, 3, 4, 5})}));
  const auto opened = Checkpoint::open(folder / "x.pt");
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto values = [&](const char* name) {
    const auto bytes = (*opened)->read_whole(*(*opened)->tensors().find(name));
    std::vector<float> list(bytes->size() / sizeof(float));
    std::memcpy(list.data(), bytes->data(), bytes->size());
    return list;
  };
  EXPECT_EQ(values("t"), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values("ones"), (std::vector<float>{1, 1, 1, 1}));
}

TEST(Checkpoint, AFileThatIsOneTensorHasAName) {
  const TestFolder folder;
  folder.put("x.pt", make_torch_file(pickled::tensor("LongStorage", "0", 0, {1}, {1}),
                                     {packed<int64_t>({7})}));
  const auto opened = Checkpoint::open(folder / "x.pt");
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ((*opened)->tensors()[0].name, "tensor");
}

TEST(Checkpoint, ReadsDeepSpeedUniversal) {
  using namespace pickled;
  const TestFolder folder;
  const auto state = [&](float value) {
    return make_torch_file(
        dict({{"param", tensor("FloatStorage", "0", 0, {2}, {1})}, {"cat_dim", number(0)}}),
        {packed<float>({value, value})});
  };
  folder.put("u/zero/layer.weight/fp32.pt", state(1));
  folder.put("u/zero/layer.weight/exp_avg.pt", state(2));
  folder.put("u/zero/layer.weight/exp_avg_sq.pt", state(3));
  folder.put("u/zero/layer.weight/step.pt", make_torch_file(number(5), {}));
  folder.put("u/zero/optimizer_state.pt", make_torch_file(dict({{"clip_grad", number(1)}}), {}));
  folder.put(
      "u/mp_rank_00_model_states.pt",
      make_torch_file(dict({{"module", dict({{"w", tensor("FloatStorage", "0", 0, {2}, {1})}})},
                            {"global_steps", number(10)}}),
                      {packed<float>({8, 8})}));
  const auto opened = Checkpoint::open(folder / "u");
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ((*opened)->format(), CheckpointFormat::kDeepSpeedUniversal);
  ASSERT_EQ((*opened)->tensors().size(), 3U);
  const auto bytes = (*opened)->read_whole(*(*opened)->tensors().find("layer.weight.exp_avg"));
  ASSERT_TRUE(bytes.ok());
  float first = 0;
  std::memcpy(&first, bytes->data(), sizeof first);
  EXPECT_EQ(first, 2);
  std::map<std::string, std::string> values;
  for (const StoredValue& value : (*opened)->values()) values[value.name] = value.json;
  EXPECT_EQ(values["layer.weight.step"], "5");
  EXPECT_EQ(values["layer.weight.fp32.cat_dim"], "0");
  EXPECT_EQ(values["optimizer_state.clip_grad"], "1");
  EXPECT_EQ(values["mp_rank_00_model_states.global_steps"], "10");
}

TEST(Checkpoint, SaysWhatAFolderLacks) {
  const TestFolder folder;
  const auto fault = [&](const std::string& name) {
    const auto opened = Checkpoint::open(folder / name);
    return opened.ok() ? "none" : opened.error().message;
  };
  EXPECT_NE(fault("absent").find("does not exist"), std::string::npos);
  folder.put("empty/readme", "");
  EXPECT_NE(fault("empty").find("no checkpoint"), std::string::npos);
  folder.put("ds/latest", "global_step10");
  EXPECT_NE(fault("ds").find("ds_to_universal"), std::string::npos);
  folder.put("i/model.safetensors.index.json", R"({"weight_map":{"w":"../x.safetensors"}})");
  EXPECT_NE(fault("i").find("'../x.safetensors'"), std::string::npos);
  folder.put("i/model.safetensors.index.json", R"({"weight_map":{"w":"x.safetensors"}})");
  EXPECT_NE(fault("i").find("x.safetensors"), std::string::npos);
  folder.put("i/x.safetensors", little<uint64_t>(2) + "{}");
  EXPECT_NE(fault("i").find("tensor 'w' is not in x.safetensors"), std::string::npos);
}

TEST(Checkpoint, RefusesShardingThatCannotBe) {
  for (const std::string bad :
       {"[]", R"({"a":{}})", R"({"a":{"saved_offsets":[-1]}})", R"({"a":{"saved_offsets":["x"]}})"})
    EXPECT_FALSE(decode_dcp_sharding(bad).ok()) << bad;
  const auto good = decode_dcp_sharding(R"({"a":{"saved_offsets":[3,0]},)"
                                        R"("b#1":{"saved_offsets":[],"logical_fqn":"b"}})");
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->at("a").offsets, (std::vector<uint64_t>{3, 0}));
  EXPECT_EQ(good->at("b#1").tensor, "b");
  // Deep enough to exhaust a stack, if it were believed.
  EXPECT_FALSE(decode_values(std::string(1'000'000, '[')).ok());
}

TEST(Verify, EqualTensorsHaveEqualChecksumsInEveryFormat) {
  const TestFolder folder;
  std::vector<std::map<std::string, uint64_t>> found;
  for (const auto format : {CheckpointFormat::kSafetensors, CheckpointFormat::kDcpSafetensors}) {
    const std::string path = folder / to_string(format);
    ASSERT_TRUE(
        write_checkpoint(source_of(kTensors), path, {.format = format, .shard_bytes_max = 50'000})
            .ok());
    const auto opened = Checkpoint::open(path);
    ASSERT_TRUE(opened.ok());
    const auto verdicts = verify(**opened, {});
    ASSERT_TRUE(verdicts.ok());
    std::map<std::string, uint64_t> sums;
    for (size_t i = 0; i < verdicts->size(); ++i)
      sums[(*opened)->tensors()[i].name] = (*verdicts)[i].checksum;
    found.push_back(sums);
  }
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0].size(), kTensors.size());
}

TEST(Verify, CountsWhatIsNoNumber) {
  const auto count = [](DType dtype, const std::string& bytes) {
    return count_not_numbers(dtype, bytes_of(bytes));
  };
  EXPECT_EQ(count(DType::kF32, packed<float>({1, NAN, INFINITY, -INFINITY, -NAN, 0})),
            (NotNumbers{2, 2}));
  EXPECT_EQ(count(DType::kF64, packed<double>({1, NAN, INFINITY})), (NotNumbers{1, 1}));
  EXPECT_EQ(count(DType::kF16, packed<uint16_t>({0x7c00, 0xfc01, 0x3c00})), (NotNumbers{1, 1}));
  EXPECT_EQ(count(DType::kBF16, packed<uint16_t>({0x7f80, 0xff81, 0x3f80})), (NotNumbers{1, 1}));
  EXPECT_EQ(count(DType::kF8E5M2, packed<uint8_t>({0x7c, 0xfd, 0x3c})), (NotNumbers{1, 1}));
  EXPECT_EQ(count(DType::kF8E4M3, packed<uint8_t>({0x7f, 0xff, 0x7e})), (NotNumbers{2, 0}));
  EXPECT_EQ(count(DType::kI32, packed<float>({NAN})), (NotNumbers{}));
}

}  // namespace
}  // namespace pliant::store
