#include "pliant/store/zip.h"

#include <gtest/gtest.h>

#include "pliant/store/test_torch.h"

namespace pliant::store {
namespace {

const std::vector<ZipFile> kFiles = {{"a/one", "first"}, {"a/none", ""}, {"a/two", "second one"}};

std::string message_of(std::string_view archive) {
  const auto zip = ZipArchive::open(bytes_of(archive));
  return zip.ok() ? "" : zip.error().message;
}

TEST(Crc32, IsTheOneOfZip) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32({}), 0U);
  // In parts of any size: the fast way takes eight bytes a turn.
  const std::string text(1000, 'x');
  for (size_t cut = 0; cut < 40; ++cut)
    EXPECT_EQ(crc32(bytes_of(text).subspan(cut), crc32(bytes_of(text).first(cut))),
              crc32(bytes_of(text)));
}

TEST(Zip, FindsEveryEntry) {
  for (const bool wide : {false, true}) {
    const std::string archive = make_zip(kFiles, wide);
    const auto zip = ZipArchive::open(bytes_of(archive));
    ASSERT_TRUE(zip.ok()) << zip.error().message;
    ASSERT_EQ(zip->entries().size(), kFiles.size());
    for (const ZipFile& file : kFiles) {
      const ZipEntry* entry = zip->find(file.name);
      ASSERT_NE(entry, nullptr) << file.name;
      const Bytes found = zip->contents(*entry);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(found.data()), found.size()),
                file.contents);
      EXPECT_TRUE(zip->check(*entry).ok());
    }
    EXPECT_EQ(zip->find("a/three"), nullptr);
  }
}

TEST(Zip, MayHaveAComment) {
  std::string archive = make_zip(kFiles);
  archive.resize(archive.size() - 2);
  archive += little<uint16_t>(5) + "hello";
  EXPECT_EQ(message_of(archive), "");
}

TEST(Zip, NoticesAChangedByte) {
  std::string archive = make_zip(kFiles);
  archive[archive.find("second")] = 'S';
  const auto zip = ZipArchive::open(bytes_of(archive));
  ASSERT_TRUE(zip.ok());
  const Status status = zip->check(*zip->find("a/two"));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("'a/two'"), std::string::npos);
  EXPECT_TRUE(zip->check(*zip->find("a/one")).ok());
}

TEST(Zip, NoPrefixOfAnArchiveIsOne) {
  for (const bool wide : {false, true}) {
    const std::string archive = make_zip(kFiles, wide);
    for (size_t size = 0; size < archive.size(); ++size)
      EXPECT_NE(message_of(std::string_view(archive).substr(0, size)), "") << size;
  }
}

TEST(Zip, RefusesEntriesThatShareBytes) {
  // Both entries of the directory point at the same contents.
  std::string archive = make_zip({{"a", "contents"}, {"b", "contents"}});
  const size_t second = archive.rfind(little<uint32_t>(0x02014b50));
  archive.replace(second + 42, 4, little<uint32_t>(0));
  EXPECT_NE(message_of(archive).find("share bytes"), std::string::npos) << message_of(archive);
}

TEST(Zip, RefusesWhatItCannotRead) {
  EXPECT_NE(message_of(make_zip({{"a", "x"}, {"a", "y"}})).find("twice"), std::string::npos);
  const std::string good = make_zip({{"a", "x"}});
  const size_t entry = good.rfind(little<uint32_t>(0x02014b50));
  std::string compressed = good;
  compressed[entry + 10] = 8;
  EXPECT_NE(message_of(compressed).find("compressed"), std::string::npos);
  std::string encrypted = good;
  encrypted[entry + 8] = 1;
  EXPECT_NE(message_of(encrypted).find("encrypted"), std::string::npos);
  std::string huge = good;
  huge.replace(entry + 20, 8, little<uint32_t>(1U << 30) + little<uint32_t>(1U << 30));
  EXPECT_NE(message_of(huge).find("'a'"), std::string::npos);
  std::string two_sizes = good;
  two_sizes.replace(entry + 20, 4, little<uint32_t>(7));
  EXPECT_NE(message_of(two_sizes).find("two sizes"), std::string::npos);
}

}  // namespace
}  // namespace pliant::store
