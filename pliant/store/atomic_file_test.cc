#include "pliant/store/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "pliant/store/test_folder.h"

namespace pliant::store {
namespace {

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(AtomicFile, AppearsWhenItIsComplete) {
  const TestFolder folder;
  {
    auto file = AtomicFile::create(folder / "a", 3, Existing::kRefuse);
    ASSERT_TRUE(file.ok()) << file.error().message;
    ASSERT_TRUE((*file)->write(bytes_of("abc"), 0).ok());
    EXPECT_FALSE(access((folder / "a").c_str(), F_OK) == 0);
    ASSERT_TRUE((*file)->commit().ok());
  }
  EXPECT_EQ(folder.get("a"), "abc");
  // In the place of another only if that was allowed; given up, it leaves the one before.
  EXPECT_FALSE(AtomicFile::create(folder / "a", 1, Existing::kRefuse).ok());
  { EXPECT_TRUE(AtomicFile::create(folder / "a", 1, Existing::kReplace).ok()); }
  EXPECT_EQ(folder.get("a"), "abc");
  auto file = AtomicFile::create(folder / "a", 1, Existing::kReplace);
  ASSERT_TRUE((*file)->write(bytes_of("z"), 0).ok());
  ASSERT_TRUE((*file)->commit().ok());
  EXPECT_EQ(folder.get("a"), "z");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(AtomicFile, OneThatCameMeanwhileIsNotReplaced) {
  const TestFolder folder;
  auto file = AtomicFile::create(folder / "a", 1, Existing::kRefuse);
  ASSERT_TRUE(file.ok());
  folder.put("a", "theirs");
  EXPECT_FALSE((*file)->commit().ok());
  file->reset();
  EXPECT_EQ(folder.get("a"), "theirs");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(AtomicFile, AKilledWriterLeavesNothing) {
  const TestFolder folder;
  folder.put("a", "before");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto file = AtomicFile::create(folder / "a", 3, Existing::kReplace);
    if (file && (*file)->write(bytes_of("ab"), 0).ok()) raise(SIGKILL);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
  EXPECT_EQ(folder.get("a"), "before");
}

}  // namespace
}  // namespace pliant::store
