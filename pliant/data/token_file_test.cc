#include "pliant/data/token_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <numeric>

namespace pliant {
namespace {

class Tokens : public ::testing::Test {
 protected:
  Tokens() {
    std::string name = (std::filesystem::temp_directory_path() / "pliant_tokens_XXXXXX").string();
    folder_ = mkdtemp(name.data()) == nullptr ? "" : name;
  }
  ~Tokens() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // A file of `count` tokens from `first` on.
  std::string put(const std::string& name, uint32_t first, size_t count,
                  DType dtype = DType::kU16) const {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    auto writer = TokenWriter::create(path(name), dtype);
    EXPECT_TRUE(writer.ok());
    // In two pieces, as a tokenizer does it.
    EXPECT_TRUE((*writer)->append(std::span(tokens).first(count / 2)).ok());
    EXPECT_TRUE((*writer)->append(std::span(tokens).subspan(count / 2)).ok());
    EXPECT_EQ((*writer)->tokens(), count);
    EXPECT_TRUE((*writer)->finish().ok());
    return path(name);
  }

  static std::vector<int64_t> read(const TokenFiles& files, uint64_t index) {
    std::vector<int64_t> tokens(files.block() + 1);
    const Status status = files.read({.index = index}, std::as_writable_bytes(std::span(tokens)));
    EXPECT_TRUE(status.ok()) << status.error().message;
    return tokens;
  }

  static std::string refusal(const std::vector<std::string>& paths,
                             const TokenFileOptions& options) {
    const auto opened = TokenFiles::open(paths, options);
    return opened.ok() ? "" : opened.error().message;
  }

  std::string folder_;
};

TEST_F(Tokens, AreWindowsThatShareOneToken) {
  const auto files = TokenFiles::open(std::vector{put("a", 100, 11)}, {.block = 4});
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ((*files)->tokens(), 11u);
  ASSERT_EQ((*files)->size(), 2u) << "the last two tokens fill no window";
  EXPECT_EQ((*files)->sample_bytes(), 5 * sizeof(int64_t));
  EXPECT_EQ(read(**files, 0), (std::vector<int64_t>{100, 101, 102, 103, 104}));
  EXPECT_EQ(read(**files, 1), (std::vector<int64_t>{104, 105, 106, 107, 108}));
  EXPECT_EQ((*files)->window(1).size(), 5 * sizeof(uint16_t));
}

TEST_F(Tokens, OfSeveralFilesAreOneDataset) {
  const std::vector<std::string> paths{put("a", 0, 9), put("b", 100, 5), put("c", 200, 14)};
  const auto files = TokenFiles::open(paths, {.block = 4});
  ASSERT_TRUE(files.ok()) << files.error().message;
  ASSERT_EQ((*files)->size(), 2u + 1u + 3u);
  const std::vector<int64_t> first{0, 4, 100, 200, 204, 208};
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(read(**files, i).front(), first[i]) << i;
  EXPECT_EQ(read(**files, 1).back(), 8) << "no window reaches into the next file";
}

TEST_F(Tokens, OfExactlyOneBlockAndOfWideTypes) {
  const auto files = TokenFiles::open(std::vector{put("a", 70'000, 5, DType::kU32)},
                                      {.dtype = DType::kU32, .block = 4, .vocabulary = 70'005});
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ((*files)->size(), 1u);
  EXPECT_EQ(read(**files, 0).back(), 70'004);
}

TEST_F(Tokens, BeyondTheVocabularyAreNamed) {
  const auto files = TokenFiles::open(std::vector{put("a", 0, 13)}, {.block = 4, .vocabulary = 10});
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(read(**files, 1).back(), 8);
  std::vector<std::byte> bytes((*files)->sample_bytes());
  const Status status = (*files)->read({.index = 2}, bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message,
            path("a") + " has token 10 at position 10, but the vocabulary has 10");
  EXPECT_FALSE((*files)->read({.index = 0}, std::span(bytes).first(8)).ok());
}

TEST_F(Tokens, FilesThatCannotBeAreRefused) {
  const std::string good = put("good", 0, 100);
  EXPECT_EQ(refusal({good}, {.block = 4}), "");
  EXPECT_NE(refusal({good, path("missing")}, {.block = 4}).find(path("missing")),
            std::string::npos);
  EXPECT_NE(refusal({folder_}, {.block = 4}).find("no regular file"), std::string::npos);
  EXPECT_EQ(refusal({put("short", 0, 4)}, {.block = 4}),
            path("short") +
                " has 4 tokens, fewer than one sample of 5 (a block of 4 and the token "
                "after it)");
  EXPECT_NE(refusal({put("empty", 0, 0)}, {.block = 4}).find("0 tokens"), std::string::npos);
  std::filesystem::resize_file(put("odd", 0, 100), 199);
  EXPECT_NE(refusal({path("odd")}, {.block = 4}).find("199 bytes"), std::string::npos);
  EXPECT_NE(refusal({}, {.block = 4}).find("no token files"), std::string::npos);
  EXPECT_NE(refusal({good}, {.block = 0}).find("1 to 2^32"), std::string::npos);
  EXPECT_NE(refusal({good}, {.dtype = DType::kF32, .block = 4}).find("not f32"), std::string::npos);
}

TEST_F(Tokens, WriterLeavesNothingHalf) {
  {
    auto writer = TokenWriter::create(path("half"), DType::kU16);
    ASSERT_TRUE(writer.ok());
    const uint32_t tokens[] = {1, 2, 70'000};
    const Status wide = (*writer)->append(tokens);
    ASSERT_FALSE(wide.ok());
    EXPECT_NE(wide.error().message.find("token 70000 does not fit into u16"), std::string::npos);
    EXPECT_EQ((*writer)->tokens(), 0u);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_FALSE(TokenWriter::create(path("no/such"), DType::kU16).ok());
  EXPECT_FALSE(TokenWriter::create(path("x"), DType::kI32).ok());
}

}  // namespace
}  // namespace pliant
