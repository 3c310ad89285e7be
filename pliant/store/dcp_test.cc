#include "pliant/store/dcp.h"

#include <gtest/gtest.h>

#include "pliant/store/checkpoint.h"
#include "pliant/store/test_folder.h"
#include "pliant/store/test_torch.h"

namespace pliant::store {
namespace {

using namespace pickled;

// torch 1.13 kept these classes in another place.
constexpr const char* kNow = "torch.distributed.checkpoint.metadata";
constexpr const char* kOnce = "torch.distributed._shard.checkpoint.metadata";

struct Chunk {
  std::vector<int32_t> offsets;
  std::vector<int32_t> sizes;
};

std::string tensor_entry(const char* module, const char* dtype, const std::vector<int32_t>& shape,
                         const std::vector<Chunk>& chunks) {
  std::vector<std::string> items;
  for (const Chunk& chunk : chunks)
    items.push_back(object(module, "ChunkStorageMetadata",
                           {{"offsets", size(chunk.offsets)}, {"sizes", size(chunk.sizes)}}));
  const std::string properties =
      global(module, "TensorProperties") + ")\x81" + tuple({global("torch", dtype), "\x89"}) + "b";
  return object(module, "TensorStorageMetadata",
                {{"properties", properties}, {"size", size(shape)}, {"chunks", list(items)}});
}

struct Place {
  std::string name;
  std::vector<int32_t> offsets;
  bool is_object = false;
  std::string file;
  int32_t offset = 0;
  int32_t length = 0;
};

std::string metadata(const char* module,
                     const std::vector<std::pair<std::string, std::string>>& states,
                     const std::vector<Place>& places) {
  std::string storage = "}(";
  for (const Place& place : places) {
    std::vector<std::pair<std::string, std::string>> index = {{"fqn", text(place.name)},
                                                              {"index", "N"}};
    if (!place.is_object) index.emplace_back("offset", size(place.offsets));
    storage += object(module, "MetadataIndex", index) +
               object("torch.distributed.checkpoint.filesystem", "_StorageInfo",
                      {{"relative_path", text(place.file)},
                       {"offset", number(place.offset)},
                       {"length", number(place.length)}});
  }
  return whole(object(module, "Metadata",
                      {{"state_dict_metadata", dict(states)},
                       {"planner_data", "N"},
                       {"storage_data", storage + "u"}}));
}

std::string blob(const std::vector<float>& values, const std::vector<int32_t>& shape) {
  std::vector<int32_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return make_torch_file(tensor("FloatStorage", "0", 0, shape, strides), {packed(values)});
}

// A tensor of 3 x 2 in two pieces in two files, a scalar, and a number that is no tensor.
void make_checkpoint(const TestFolder& folder, const char* module) {
  const std::string first = blob({0, 1, 2, 3}, {2, 2});
  const std::string second = blob({4, 5}, {1, 2});
  const std::string scalar = blob({9}, {});
  const std::string step = make_torch_file(number(12), {});
  folder.put("c/__0_0.distcp", step + first);
  folder.put("c/__1_0.distcp", second + scalar);
  const auto length = [](const std::string& bytes) { return static_cast<int32_t>(bytes.size()); };
  folder.put(
      "c/.metadata",
      metadata(
          module,
          {{"w", tensor_entry(module, "float32", {3, 2}, {{{0, 0}, {2, 2}}, {{2, 0}, {1, 2}}})},
           {"s", tensor_entry(module, "float32", {}, {{{}, {}}})},
           {"step", object(module, "BytesStorageMetadata", {})}},
          {{"step", {}, true, "__0_0.distcp", 0, length(step)},
           {"w", {0, 0}, false, "__0_0.distcp", length(step), length(first)},
           {"w", {2, 0}, false, "__1_0.distcp", 0, length(second)},
           {"s", {}, false, "__1_0.distcp", length(second), length(scalar)}}));
}

TEST(Dcp, ReadsTensorsOfManyPiecesAndValues) {
  for (const char* module : {kNow, kOnce}) {
    const TestFolder folder;
    make_checkpoint(folder, module);
    const auto opened = Checkpoint::open(folder / "c");
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    Checkpoint& checkpoint = **opened;
    EXPECT_EQ(checkpoint.format(), CheckpointFormat::kDcp);
    ASSERT_EQ(checkpoint.tensors().size(), 2U);
    const size_t w = *checkpoint.tensors().find("w");
    EXPECT_EQ(checkpoint.pieces(w).size(), 2U);
    const auto bytes = checkpoint.read_whole(w);
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    std::vector<float> values(6);
    std::memcpy(values.data(), bytes->data(), bytes->size());
    EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
    // Across both pieces.
    Box part = tensor::whole(checkpoint.tensors()[w].shape);
    part.begin = {1, 1};
    std::vector<float> column(2);
    ASSERT_TRUE(checkpoint.read(w, part, std::as_writable_bytes(std::span(column))).ok());
    EXPECT_EQ(column, (std::vector<float>{3, 5}));
    ASSERT_EQ(checkpoint.values().size(), 1U);
    EXPECT_EQ(checkpoint.values()[0].name, "step");
    EXPECT_EQ(checkpoint.values()[0].json, "12");
    EXPECT_TRUE(checkpoint.check_files().ok());
  }
}

std::string fault(const std::string& pickle) {
  const auto decoded = decode_dcp_metadata(bytes_of(pickle));
  return decoded.ok() ? "none" : decoded.error().message;
}

TEST(Dcp, RefusesMetadataThatCannotBe) {
  const auto expect = [](const std::string& pickle, const std::string& part) {
    EXPECT_NE(fault(pickle).find(part), std::string::npos) << fault(pickle);
  };
  const Place place{"w", {0}, false, "f", 0, 10};
  const auto with = [&](const char* dtype, const std::vector<int32_t>& shape, const Chunk& chunk,
                        const Place& where) {
    return metadata(kNow, {{"w", tensor_entry(kNow, dtype, shape, {chunk})}}, {where});
  };
  EXPECT_EQ(fault(with("float32", {2}, {{0}, {2}}, place)), "none");
  expect(with("complex64", {2}, {{0}, {2}}, place), "dtype");
  expect(with("float32", {-2}, {{0}, {2}}, place), "'w'");
  expect(with("float32", {2}, {{0}, {3}}, place), "outside");
  expect(with("float32", {2}, {{0, 0}, {2, 1}}, place), "dimensions");
  expect(with("float32", {2}, {{0}, {2}}, {"v", {0}, false, "f", 0, 10}), "where piece [0] of 'w'");
  expect(with("float32", {2}, {{0}, {2}}, {"w", {0}, false, "../f", 0, 10}), "wrong file");
  expect(with("float32", {2}, {{0}, {2}}, {"w", {0}, false, "/etc/passwd", 0, 10}), "wrong file");
  expect(with("float32", {2}, {{0}, {2}}, {"w", {0}, false, "a/../../f", 0, 10}), "wrong file");
  expect(with("float32", {2}, {{0}, {2}}, {"w", {0}, false, "f", -1, 10}), "wrong file");
  expect(whole(number(3)), "no metadata");
  expect(whole(call(global("os", "system"), {text("false")})), "no metadata");
  expect("", "pickle");
}

TEST(Dcp, NamesWhatIsMissingOrDamaged) {
  {
    const TestFolder folder;
    make_checkpoint(folder, kNow);
    std::filesystem::remove(folder / "c/__1_0.distcp");
    const auto opened = Checkpoint::open(folder / "c");
    ASSERT_TRUE(opened.ok());  // the metadata is whole
    const auto read = (*opened)->read_whole(*(*opened)->tensors().find("w"));
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().message.find("__1_0.distcp: tensor 'w', piece [2:3, 0:2]"),
              std::string::npos)
        << read.error().message;
  }
  {
    const TestFolder folder;
    make_checkpoint(folder, kNow);
    const std::string file = folder.get("c/__1_0.distcp");
    folder.put("c/__1_0.distcp", file.substr(0, file.size() - 1));
    const auto opened = Checkpoint::open(folder / "c");
    ASSERT_TRUE(opened.ok());
    const auto read = (*opened)->read_whole(*(*opened)->tensors().find("s"));
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().message.find("the file is cut"), std::string::npos);
  }
  {
    const TestFolder folder;
    make_checkpoint(folder, kNow);
    std::string file = folder.get("c/__1_0.distcp");
    file[file.find(packed<float>({4, 5}))] ^= 1;
    folder.put("c/__1_0.distcp", file);
    const auto opened = Checkpoint::open(folder / "c");
    ASSERT_TRUE(opened.ok());
    const Status checked = (*opened)->check_files();
    ASSERT_FALSE(checked.ok());
    EXPECT_NE(checked.error().message.find("CRC-32"), std::string::npos);
  }
}

}  // namespace
}  // namespace pliant::store
