#include "pliant/runtime/journal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

namespace pliant {
namespace {

JournalRecord record_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    std::string pattern = testing::TempDir() + "journal-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/job";
  }
  ~JournalTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Journal> open() {
    auto journal = Journal::open(path_);
    EXPECT_TRUE(journal.ok()) << journal.error().message;
    return journal.ok() ? std::move(*journal) : nullptr;
  }
  void write(const std::vector<std::byte>& bytes) const {
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  std::vector<std::byte> read() const {
    std::ifstream file(path_, std::ios::binary);
    return record_of({std::istreambuf_iterator<char>(file), {}});
  }
  std::string refusal() const {
    const auto journal = Journal::open(path_);
    return journal.ok() ? "" : journal.error().message;
  }

  std::string folder_;
  std::string path_;
  const std::vector<JournalRecord> records_ = {record_of("one"), record_of(""),
                                               record_of("three and more")};
};

TEST_F(JournalTest, GivesBackWhatWasAppended) {
  {
    const auto journal = open();
    EXPECT_TRUE(journal->found().records.empty());
    EXPECT_TRUE(journal->found().warning.empty());
    for (const JournalRecord& record : records_) ASSERT_TRUE(journal->append(record).ok());
    EXPECT_EQ(journal->size_bytes(), read().size());
  }
  EXPECT_EQ(read(), encode_journal(records_));
  const auto journal = open();
  EXPECT_EQ(journal->found().records, records_);
  EXPECT_TRUE(journal->found().warning.empty());
  EXPECT_FALSE(journal->found().damaged);
  ASSERT_TRUE(journal->append(record_of("four")).ok());
  EXPECT_EQ(decode_journal(read())->records.size(), 4u);
}

TEST_F(JournalTest, FilesAreTheOwnersAlone) {
  const auto journal = open();
  ASSERT_TRUE(journal->compact(record_of("x")).ok());
  for (const std::string& name : {path_, path_ + ".lock"}) {
    struct stat about {};
    ASSERT_EQ(stat(name.c_str(), &about), 0) << name;
    EXPECT_EQ(about.st_mode & 0777, 0600u) << name;
  }
}

TEST_F(JournalTest, EveryTruncationKeepsTheWholeRecords) {
  const std::vector<std::byte> whole = encode_journal(records_);
  for (size_t size = 0; size <= whole.size(); ++size) {
    write({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
    std::vector<JournalRecord> expected = records_;
    while (!expected.empty() && encode_journal(expected).size() > size) expected.pop_back();
    {
      const auto journal = open();
      ASSERT_NE(journal, nullptr);
      EXPECT_EQ(journal->found().records, expected) << size;
      EXPECT_FALSE(journal->found().damaged) << size;
      const bool clean = size == 0 || size == encode_journal(expected).size();
      EXPECT_EQ(journal->found().warning.empty(), clean) << size;
      // It goes on where the intact part ends.
      ASSERT_TRUE(journal->append(record_of("next")).ok());
    }
    expected.push_back(record_of("next"));
    EXPECT_EQ(read(), encode_journal(expected)) << size;
  }
}

TEST_F(JournalTest, EveryFlippedByteIsNoticed) {
  const std::vector<std::byte> whole = encode_journal(records_);
  const size_t head = encode_journal({}).size();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::vector<std::byte> bytes = whole;
      bytes[at] ^= static_cast<std::byte>(flip);
      const auto contents = decode_journal(bytes);
      if (at < head) {
        EXPECT_FALSE(contents.ok()) << at;
        continue;
      }
      std::vector<JournalRecord> expected = records_;
      while (encode_journal(expected).size() > at) expected.pop_back();
      ASSERT_TRUE(contents.ok()) << at;
      EXPECT_EQ(contents->records, expected) << at;
      const std::string offset = "offset " + std::to_string(encode_journal(expected).size());
      EXPECT_NE(contents->warning.find(offset), std::string::npos) << contents->warning;
      // With records behind it, it cannot be an unfinished write.
      const bool last = expected.size() + 1 == records_.size();
      EXPECT_TRUE(contents->damaged || last) << at;
    }
  }
}

TEST_F(JournalTest, TheIntactPrefixOfADamagedFileIsUsed) {
  std::vector<std::byte> bytes = encode_journal(records_);
  bytes[encode_journal({records_[0]}).size()] ^= std::byte{1};
  write(bytes);
  {
    const auto journal = open();
    EXPECT_EQ(journal->found().records, std::vector<JournalRecord>{records_[0]});
    EXPECT_TRUE(journal->found().damaged);
    EXPECT_NE(journal->found().warning.find("is damaged; the 1 records before it are used"),
              std::string::npos)
        << journal->found().warning;
  }
  const auto journal = open();
  EXPECT_TRUE(journal->found().warning.empty());
}

TEST_F(JournalTest, ZerosBehindTheRecordsAreAnUnfinishedWrite) {
  std::vector<std::byte> bytes = encode_journal(records_);
  bytes.resize(bytes.size() + 100);
  const auto contents = decode_journal(bytes);
  EXPECT_EQ(contents->records, records_);
  EXPECT_FALSE(contents->damaged);
  EXPECT_FALSE(contents->warning.empty());
}

TEST_F(JournalTest, RefusesForeignFilesAndLeavesThemAlone) {
  const std::vector<std::byte> foreign = record_of("#!/bin/sh\necho precious\n");
  write(foreign);
  EXPECT_NE(refusal().find("is not a journal"), std::string::npos) << refusal();
  EXPECT_EQ(read(), foreign);
  // Version 2 with a right check, as a later program would write it.
  Writer later;
  for (const char c : std::string_view("pliantj\n")) later.put(c);
  later.put(uint32_t{2});
  later.put(static_cast<uint32_t>(hash64("pliantj\n", 2)));
  write(later.bytes());
  EXPECT_NE(refusal().find("version 2"), std::string::npos) << refusal();
  EXPECT_EQ(read(), later.bytes());
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_FALSE(refusal().empty());
  path_ = folder_ + "/nowhere/job";
  EXPECT_FALSE(refusal().empty());
}

TEST_F(JournalTest, ASecondOneIsRefusedWithThePidOfTheFirst) {
  auto journal = open();
  EXPECT_NE(refusal().find("pid " + std::to_string(getpid())), std::string::npos) << refusal();
  ASSERT_TRUE(journal->compact(record_of("x")).ok());
  EXPECT_NE(refusal().find("pid " + std::to_string(getpid())), std::string::npos) << refusal();
  journal.reset();
  EXPECT_EQ(refusal(), "");
}

TEST_F(JournalTest, CompactLeavesOneRecordAndGoesOn) {
  {
    const auto journal = open();
    for (const JournalRecord& record : records_) ASSERT_TRUE(journal->append(record).ok());
    ASSERT_TRUE(journal->compact(record_of("all of them")).ok());
    ASSERT_TRUE(journal->append(record_of("later")).ok());
    EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  }
  const auto journal = open();
  const std::vector<JournalRecord> expected = {record_of("all of them"), record_of("later")};
  EXPECT_EQ(journal->found().records, expected);
  EXPECT_TRUE(journal->found().warning.empty());
}

TEST_F(JournalTest, ACrashDuringCompactLeavesTheOldOne) {
  { ASSERT_TRUE(open()->append(records_[0]).ok()); }
  std::ofstream(path_ + ".new") << "half of a snapsh";
  {
    const auto journal = open();
    EXPECT_EQ(journal->found().records, std::vector<JournalRecord>{records_[0]});
    ASSERT_TRUE(journal->compact(record_of("s")).ok());
  }
  EXPECT_EQ(open()->found().records, std::vector<JournalRecord>{record_of("s")});
}

TEST_F(JournalTest, RemoveLeavesNothing) {
  const auto journal = open();
  ASSERT_TRUE(journal->append(records_[0]).ok());
  ASSERT_TRUE(journal->remove().ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_FALSE(journal->append(records_[0]).ok());
  // The name is free for another job at once.
  EXPECT_TRUE(open()->found().records.empty());
}

TEST_F(JournalTest, TooLongARecordIsRefusedAndHarmless) {
  const auto journal = open();
  const std::vector<std::byte> huge(kJournalRecordBytesMax + 1);
  EXPECT_FALSE(journal->append(huge).ok());
  EXPECT_FALSE(journal->compact(huge).ok());
  EXPECT_TRUE(journal->append(records_[0]).ok());
  EXPECT_EQ(read(), encode_journal({records_[0]}));
}

}  // namespace
}  // namespace pliant
