#include "pliant/store/safetensors.h"

#include <gtest/gtest.h>

#include "pliant/store/test_folder.h"
#include "pliant/store/test_torch.h"

namespace pliant::store {
namespace {

std::string file_with(const std::string& header, size_t data_bytes) {
  return little<uint64_t>(header.size()) + header + std::string(data_bytes, '\1');
}

Result<SafetensorsHeader> decode(const std::string& file) {
  return decode_safetensors(bytes_of(file), file.size());
}

std::string fault(const std::string& header, size_t data_bytes) {
  const auto decoded = decode(file_with(header, data_bytes));
  return decoded.ok() ? "none" : decoded.error().message;
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const auto header = decode(file_with(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("e":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}   )",
      16));
  ASSERT_TRUE(header.ok()) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 3U);
  EXPECT_EQ(header->tensors[0].info, (TensorInfo{"s", DType::kF32, {}}));
  EXPECT_EQ(header->tensors[1].info, (TensorInfo{"b", DType::kBF16, {2, 3}}));
  EXPECT_EQ(header->tensors[2].info, (TensorInfo{"e", DType::kI64, {0, 7}}));
  EXPECT_EQ(header->tensors[1].offset, header->data_offset + 4);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(Safetensors, EveryTypeHasAName) {
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(safetensors_dtype(safetensors_name(dtype)), dtype);
  }
  EXPECT_FALSE(safetensors_dtype("C64"));
}

TEST(Safetensors, RefusesEachBrokenRule) {
  const auto has = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8), "ends at");
  has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "hole of 4 bytes");
  has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
            6),
      "'b', at offset");
  has(fault(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4), "'a' lies at");
  has(fault(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), "needs 8 bytes");
  has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), "'a' lies at");
  has(fault(R"({"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", 8), "'C64'");
  has(fault(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,4294967296],)"
            R"("data_offsets":[0,0]}})",
            0),
      "2^60");
  has(fault(R"({"a":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]}})", 0),
      "2^60");
  has(fault(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})", 0), "negative");
  has(fault(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,0]}})", 0), "fraction");
  has(fault(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1),
      "dimensions");
  has(fault(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":"y"}})", 1), "'x'");
  has(fault(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "lacks");
  has(fault(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
            R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
            0),
      "'a' is there twice");
  has(fault(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
      "'dtype' twice");
  has(fault(R"({"__metadata__":{"a":1}})", 0), "__metadata__");
  has(fault(R"({"a":7})", 0), "'a'");
  has(fault(R"({"a":{)", 0), "no JSON");
  has(fault(R"([1])", 0), "'{'");
  has(fault("", 0), "'{'");
}

TEST(Safetensors, RefusesLengthsThatCannotBe) {
  EXPECT_FALSE(decode("").ok());
  EXPECT_FALSE(decode("1234567").ok());
  EXPECT_FALSE(decode(little<uint64_t>(100) + "{}").ok());
  const auto huge = decode(little<uint64_t>(uint64_t{1} << 60) + "{}");
  ASSERT_FALSE(huge.ok());
  EXPECT_NE(huge.error().message.find("offset 0"), std::string::npos);
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TestFolder folder;
  const std::vector<TensorInfo> tensors = {{"flags", DType::kBool, {3}},
                                           {"w", DType::kF64, {2, 2}},
                                           {"q", DType::kF8E4M3, {5}},
                                           {"empty", DType::kF32, {0, 3}},
                                           {"s", DType::kBF16, {}}};
  auto planned = plan_safetensors(tensors, {{"format", "pt"}, {"note", "\"quoted\"\n"}});
  ASSERT_TRUE(planned.ok()) << planned.error().message;
  auto writer = SafetensorsWriter::create(folder / "x.safetensors", *planned, Existing::kRefuse);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (size_t i = 0; i < planned->tensors.size(); ++i) {
    const SafetensorsEntry& entry = planned->tensors[i];
    EXPECT_EQ(entry.offset % size_of(entry.info.dtype), 0U) << entry.info.name;
    const std::string bytes(entry.info.bytes(), static_cast<char>('a' + i));
    // In two parts, the second one first.
    const size_t cut = bytes.size() / 2;
    ASSERT_TRUE((*writer)->write(i, cut, bytes_of(bytes).subspan(cut)).ok());
    ASSERT_TRUE((*writer)->write(i, 0, bytes_of(bytes).first(cut)).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "x.safetensors"));
  ASSERT_TRUE((*writer)->finish().ok());
  const std::string file = folder.get("x.safetensors");
  const auto read = decode(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, *planned);
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(Safetensors, AnUnfinishedFileNeverAppears) {
  const TestFolder folder;
  folder.put("x", "old");
  auto planned = plan_safetensors({{"w", DType::kF32, {4}}}, {});
  ASSERT_TRUE(planned.ok());
  EXPECT_FALSE(SafetensorsWriter::create(folder / "x", *planned, Existing::kRefuse).ok());
  {
    auto writer = SafetensorsWriter::create(folder / "x", *planned, Existing::kReplace);
    ASSERT_TRUE(writer.ok());
    const Status status = (*writer)->finish();
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("16 bytes of tensor 'w'"), std::string::npos);
  }
  EXPECT_EQ(folder.get("x"), "old");
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(Safetensors, NoNameCanBeTwoThings) {
  EXPECT_FALSE(plan_safetensors({{"__metadata__", DType::kU8, {1}}}, {}).ok());
  EXPECT_FALSE(plan_safetensors({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}, {}).ok());
  EXPECT_FALSE(plan_safetensors({{"\xff", DType::kU8, {1}}}, {}).ok());
  EXPECT_TRUE(plan_safetensors({{"\xc3\xa4", DType::kU8, {1}}}, {}).ok());
}

}  // namespace
}  // namespace pliant::store
