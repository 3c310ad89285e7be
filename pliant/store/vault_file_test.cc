#include "pliant/store/vault_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "pliant/store/checkpoint.h"
#include "pliant/store/test_folder.h"
#include "pliant/store/test_vault.h"

namespace pliant::store {
namespace {

const std::vector<uint64_t> kShape = {4, 6};
const Box kAll = box_of({{0, 4}, {0, 6}});

Version::Shared example(int32_t first = 0) {
  const TestPiece empty{{"none", DType::kF32, {0, 4}}, box_of({{0, 0}, {0, 4}}), {}};
  std::vector<VaultPart> parts;
  parts.push_back(
      part_of({counted("w", kShape, box_of({{0, 4}, {0, 2}}), first),
               counted("step", {}, Box{}, 42), counted("whole", {5}, box_of({{0, 5}})), empty}));
  parts.push_back(part_of({counted("w", kShape, box_of({{0, 4}, {2, 6}}), first),
                           counted("whole", {5}, box_of({{0, 5}}))}));
  return Version::make(9, 3, std::move(parts)).value();
}

std::vector<std::byte> read(const Version& version, const std::string& name, const Box& box) {
  const size_t number = version.find(name).value();
  std::vector<std::byte> bytes(volume(box) * size_of(version.tensors()[number].dtype));
  EXPECT_TRUE(version.read(number, box, bytes).ok());
  return bytes;
}

class VaultFileTest : public testing::Test {
 protected:
  TestFolder folder_;
  const std::string path_ = folder_ / "host.safetensors";
};

TEST_F(VaultFileTest, ComesBackBitForBit) {
  ASSERT_TRUE(write_version(*example(), path_).ok());
  auto loaded = read_version(path_);
  ASSERT_TRUE(loaded.ok()) << to_string(loaded.error());
  EXPECT_EQ(loaded->step, 9U);
  EXPECT_EQ(loaded->epoch, 3U);
  std::vector<VaultPart> parts;
  parts.push_back(std::move(loaded->part));
  const auto version = Version::make(9, 3, std::move(parts)).value();
  EXPECT_EQ(version->tensors(), example()->tensors());
  EXPECT_TRUE(version->verify().ok());
  EXPECT_EQ(read(*version, "w", kAll), counted("w", kShape, kAll).elements);
  EXPECT_EQ(read(*version, "step", Box{}), counted("step", {}, Box{}, 42).elements);
}

TEST_F(VaultFileTest, WholeTensorsAreForEverybody) {
  ASSERT_TRUE(write_version(*example(), path_).ok());
  auto checkpoint = Checkpoint::open(path_);
  ASSERT_TRUE(checkpoint.ok()) << to_string(checkpoint.error());
  const auto number = (*checkpoint)->tensors().find("whole");
  ASSERT_TRUE(number.has_value());
  EXPECT_EQ((*checkpoint)->read_whole(*number).value(),
            counted("whole", {5}, box_of({{0, 5}})).elements);
  EXPECT_TRUE((*checkpoint)->tensors().find("w@0:4,2:6").has_value());
}

TEST_F(VaultFileTest, ANewVersionReplacesTheOldOne) {
  ASSERT_TRUE(write_version(*example(), path_).ok());
  ASSERT_TRUE(write_version(*example(100), path_).ok());
  std::vector<VaultPart> parts;
  parts.push_back(read_version(path_)->part);
  EXPECT_EQ(read(*Version::make(9, 3, std::move(parts)).value(), "w", kAll),
            counted("w", kShape, kAll, 100).elements);
  EXPECT_EQ(
      std::distance(std::filesystem::directory_iterator(std::filesystem::path(path_).parent_path()),
                    {}),
      1);
}

TEST_F(VaultFileTest, DamageIsFound) {
  ASSERT_TRUE(write_version(*example(), path_).ok());
  const auto size = std::filesystem::file_size(path_);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size) - 1);
    file.put('\x55');
  }
  const auto wrong = read_version(path_);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("the checksum is wrong"), std::string::npos)
      << wrong.error().message;
  std::filesystem::resize_file(path_, size - 1);
  EXPECT_FALSE(read_version(path_).ok());
  std::filesystem::resize_file(path_, 4);
  EXPECT_FALSE(read_version(path_).ok());
  EXPECT_FALSE(read_version(path_ + "x").ok());
}

}  // namespace
}  // namespace pliant::store
