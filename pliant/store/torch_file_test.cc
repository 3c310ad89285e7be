#include "pliant/store/torch_file.h"

#include <gtest/gtest.h>

#include <map>

#include "pliant/store/test_torch.h"

namespace pliant::store {
namespace {

using namespace pickled;

const std::string kFloats = packed<float>({0, 1, 2, 3, 4, 5});

std::string fault(const std::string& file) {
  const auto decoded = decode_torch_file(bytes_of(file));
  return decoded.ok() ? "none" : decoded.error().message;
}

void expect_fault(const std::string& file, const std::string& part) {
  EXPECT_NE(fault(file).find(part), std::string::npos) << fault(file);
}

TEST(TorchFile, FlattensNestedDicts) {
  const std::string file =
      make_torch_file(dict({{"model", dict({{"w", tensor("FloatStorage", "0", 0, {2, 3}, {3, 1})},
                                            {"b", tensor("BFloat16Storage", "1", 0, {2}, {1})}})},
                            {"groups", list({dict({{"lr", "G\x3f\xe0" + std::string(6, '\0')},
                                                   {"params", list({number(0), number(1)})}})})},
                            {"state", "}(" + number(0) + dict({{"step", number(7)}}) + "u"},
                            {"name", text("adamw")},
                            {"nothing", "N"}}),
                      {kFloats, packed<uint16_t>({1, 2})});
  const auto contents = decode_torch_file(bytes_of(file));
  ASSERT_TRUE(contents.ok()) << contents.error().message;
  ASSERT_EQ(contents->tensors.size(), 2U);
  EXPECT_EQ(contents->tensors[0].info, (TensorInfo{"model.w", DType::kF32, {2, 3}}));
  EXPECT_EQ(contents->tensors[1].info, (TensorInfo{"model.b", DType::kBF16, {2}}));
  EXPECT_EQ(file.substr(contents->tensors[0].offset, contents->tensors[0].size_bytes), kFloats);
  std::map<std::string, std::string> values;
  for (const StoredValue& value : contents->values) values[value.name] = value.json;
  const std::map<std::string, std::string> expected = {{"groups.0.lr", "0.5"},
                                                       {"groups.0.params", "[0,1]"},
                                                       {"state.0.step", "7"},
                                                       {"name", "\"adamw\""},
                                                       {"nothing", "null"}};
  EXPECT_EQ(values, expected);
}

TEST(TorchFile, KnowsViewsParametersAndSharedStorages) {
  const std::string file =
      make_torch_file(dict({{"t", tensor("FloatStorage", "0", 0, {3, 2}, {1, 3})},
                            {"row", tensor("FloatStorage", "0", 3, {3}, {1})},
                            {"p", call(global("torch._utils", "_rebuild_parameter"),
                                       {tensor("FloatStorage", "0", 1, {2}, {2}), "\x88", ")"})},
                            {"scalar", tensor("FloatStorage", "0", 5, {}, {})},
                            {"empty", tensor("FloatStorage", "0", 0, {0, 4}, {4, 1})}}),
                      {kFloats});
  const auto contents = decode_torch_file(bytes_of(file));
  ASSERT_TRUE(contents.ok()) << contents.error().message;
  ASSERT_EQ(contents->tensors.size(), 5U);
  std::map<std::string, TorchTensor> by_name;
  for (const TorchTensor& tensor : contents->tensors) by_name[tensor.info.name] = tensor;
  EXPECT_EQ(by_name["t"].strides[0], 1U);
  EXPECT_EQ(by_name["t"].strides[1], 3U);
  EXPECT_EQ(by_name["t"].size_bytes, 24U);
  EXPECT_EQ(by_name["row"].offset, by_name["t"].offset + 12);
  EXPECT_EQ(by_name["p"].size_bytes, 12U);
  EXPECT_EQ(by_name["scalar"].size_bytes, 4U);
  EXPECT_EQ(by_name["empty"].size_bytes, 0U);
}

TEST(TorchFile, KnowsUntypedStorages) {
  const std::string storage = tuple({text("storage"), global("torch.storage", "UntypedStorage"),
                                     text("0"), text("cpu"), number(4)}) +
                              "Q";
  const std::string root = call(global("torch._utils", "_rebuild_tensor_v3"),
                                {storage, number(0), numbers({4}), numbers({1}), "\x89", ")",
                                 global("torch", "float8_e4m3fn")});
  const std::string file = make_torch_file(root, {"abcd"});
  const auto contents = decode_torch_file(bytes_of(file));
  ASSERT_TRUE(contents.ok()) << contents.error().message;
  ASSERT_EQ(contents->tensors.size(), 1U);
  EXPECT_EQ(contents->tensors[0].info, (TensorInfo{"", DType::kF8E4M3, {4}}));
}

TEST(TorchFile, ExecutesNothingAndSaysWhatItWouldHave) {
  const std::string file =
      make_torch_file(dict({{"evil", call(global("os", "system"), {text("false")})},
                            {"w", tensor("FloatStorage", "0", 0, {6}, {1})}}),
                      {kFloats});
  const auto contents = decode_torch_file(bytes_of(file));
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(contents->tensors.size(), 1U);
  ASSERT_EQ(contents->values.size(), 1U);
  EXPECT_NE(contents->values[0].json.find("os.system"), std::string::npos);
}

TEST(TorchFile, RefusesTensorsOutsideTheirStorage) {
  const auto with = [](int32_t offset, const std::vector<int32_t>& shape,
                       const std::vector<int32_t>& strides) {
    return make_torch_file(dict({{"w", tensor("FloatStorage", "0", offset, shape, strides)}}),
                           {kFloats});
  };
  EXPECT_EQ(fault(with(0, {6}, {1})), "none");
  expect_fault(with(1, {6}, {1}), "'w'");
  expect_fault(with(0, {7}, {1}), "'w'");
  expect_fault(with(0, {2, 3}, {4, 1}), "behind its storage");
  expect_fault(with(0, {2}, {2147483647}), "behind its storage");
  expect_fault(with(6, {1}, {1}), "behind its storage");
  expect_fault(with(-1, {1}, {1}), "cannot be");
  expect_fault(with(0, {-1}, {1}), "cannot be");
  expect_fault(with(0, {2}, {-1}), "cannot be");
  expect_fault(with(0, {2, 3}, {1}), "cannot be");
  expect_fault(with(0, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1}), "cannot be");
  // Strides of zero repeat elements: some is a view, too much is a trap.
  EXPECT_EQ(fault(with(0, {1000, 6}, {0, 1})), "none");
  expect_fault(with(0, {2000000000, 6}, {0, 1}), "repeats");
  expect_fault(with(0, {2000000000, 2000000000, 6}, {0, 0, 1}), "2^60");
}

TEST(TorchFile, RefusesWhatItDoesNotKnow) {
  expect_fault(make_torch_file(dict({{"w", tensor("FloatStorage", "7", 0, {1}, {1})}}), {kFloats}),
               "data/7 of tensor 'w' is missing");
  expect_fault(
      make_torch_file(dict({{"w", tensor("ComplexFloatStorage", "0", 0, {1}, {1})}}), {kFloats}),
      "'ComplexFloatStorage'");
  expect_fault(
      make_torch_file(dict({{"a.b", tensor("FloatStorage", "0", 0, {1}, {1})},
                            {"a", dict({{"b", tensor("FloatStorage", "0", 0, {1}, {1})}})}}),
                      {kFloats}),
      "called 'a.b'");
  expect_fault(make_zip({{"x/data.txt", ""}}), "no data.pkl");
  expect_fault(make_zip({{"x/data.pkl", "N."}, {"x/constants.pkl", "N."}}), "TorchScript");
  expect_fault(make_zip({{"x/data.pkl", "N."}, {"x/byteorder", "big"}}), "big-endian");
  expect_fault(make_zip({{"x/data.pkl", "N"}}), "data.pkl: ");
  expect_fault("\x80\x02\x8a\x0a\x6c", "before 1.6");
  expect_fault("nothing of the kind", "no zip archive");
}

TEST(TorchFile, ChecksEveryEntry) {
  std::string file =
      make_torch_file(dict({{"w", tensor("FloatStorage", "0", 0, {6}, {1})}}), {kFloats});
  EXPECT_TRUE(check_torch_file(bytes_of(file)).ok());
  file[file.find(kFloats) + 5] ^= 1;
  const Status status = check_torch_file(bytes_of(file));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("archive/data/0"), std::string::npos);
}

}  // namespace
}  // namespace pliant::store
