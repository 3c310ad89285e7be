#include "pliant/runtime/job_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace pliant {
namespace {

class JobFilesTest : public testing::Test {
 protected:
  JobFilesTest() {
    std::string pattern = testing::TempDir() + "jobs-XXXXXX";
    root_ = mkdtemp(pattern.data());
    folder_ = root_ + "/deep/jobs";
  }
  ~JobFilesTest() override {
    for (const pid_t child : children_) end(child);
    std::filesystem::remove_all(root_);
  }
  // A process that waits to be killed.
  pid_t start() {
    const pid_t child = fork();
    if (child == 0) {
      while (true) pause();
    }
    children_.push_back(child);
    return child;
  }
  static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  std::unique_ptr<JobFile> write(const std::string& job, pid_t pid) {
    auto file = JobFile::write(folder_, entry(job, pid));
    EXPECT_TRUE(file.ok()) << file.error().message;
    return file.ok() ? std::move(*file) : nullptr;
  }
  static JobEntry entry(const std::string& job, pid_t pid) {
    return {.job = job, .endpoint = "127.0.0.1:1", .token = "secret", .pid = pid};
  }
  std::string refusal(const std::string& name) const {
    const auto found = JobFile::find(folder_, name);
    return found.ok() ? "" : found.error().message;
  }
  static mode_t mode(const std::string& path) {
    struct stat about {};
    EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
    return about.st_mode & 0777;
  }

  std::string root_;
  std::string folder_;
  std::vector<pid_t> children_;
};

TEST_F(JobFilesTest, TheFolderIsTheUsersOwn) {
  EXPECT_EQ(*job_folder("/run/user/7", "/home/a"), "/run/user/7/pliant");
  EXPECT_EQ(*job_folder("", "/home/a"), "/home/a/.cache/pliant/jobs");
  EXPECT_EQ(*job_folder("relative", "/home/a"), "/home/a/.cache/pliant/jobs");
  EXPECT_FALSE(job_folder("", "").ok());
}

TEST_F(JobFilesTest, IsPrivateAndGoesWithItsJob) {
  EXPECT_TRUE(JobFile::list(folder_).empty());
  auto file = write("train", getpid());
  EXPECT_EQ(mode(folder_), 0700u);
  EXPECT_EQ(mode(file->path()), 0600u);
  EXPECT_EQ(*JobFile::find(folder_, ""), entry("train", getpid()));
  EXPECT_EQ(*JobFile::find(folder_, "train"), entry("train", getpid()));
  EXPECT_EQ(*JobFile::find(folder_, std::to_string(getpid())), entry("train", getpid()));
  file.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(JobFilesTest, NamesTheStoresOfTheHostsHere) {
  JobEntry with_stores = entry("train", getpid());
  with_stores.stores = {{"a", 0, "pliant-store-1", "127.0.0.1:2", "job", "other secret"},
                        {"b", 7, "pliant-store-2", "", "", ""}};
  const auto file = JobFile::write(folder_, with_stores);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*JobFile::find(folder_, "train"), with_stores);
}

TEST_F(JobFilesTest, SeveralAreListedUnlessOneFits) {
  const auto one = write("train", getpid());
  const auto two = write("train", start());
  const auto three = write("eval", start());
  EXPECT_EQ(JobFile::find(folder_, "eval")->pid, children_[1]);
  EXPECT_EQ(JobFile::find(folder_, std::to_string(children_[0]))->pid, children_[0]);
  for (const std::string& name : {std::string(), std::string("train")}) {
    for (const pid_t pid : {getpid(), children_[0]})
      EXPECT_NE(refusal(name).find(std::to_string(pid)), std::string::npos) << refusal(name);
    EXPECT_EQ(refusal(name).find("eval") == std::string::npos, name == "train") << refusal(name);
  }
}

TEST_F(JobFilesTest, NoneAndUnknownAreSaid) {
  EXPECT_EQ(refusal(""), "no job of yours is running on this machine");
  const auto file = write("train", getpid());
  EXPECT_EQ(refusal("nosuch"),
            "no job 'nosuch' is running; there is train (pid " + std::to_string(getpid()) + ")");
}

TEST_F(JobFilesTest, StaleOnesAreRemoved) {
  const pid_t child = start();
  const auto file = write("train", child);
  EXPECT_EQ(JobFile::list(folder_).size(), 1u);
  end(child);
  EXPECT_TRUE(JobFile::list(folder_).empty());
  EXPECT_FALSE(std::filesystem::exists(file->path()));
}

TEST_F(JobFilesTest, AnotherProcessWithTheSamePidIsNotTheLauncher) {
  const auto file = write("train", getpid());
  std::ifstream in(file->path());
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t at = text.find("\"start\":") + 8;
  text.insert(at, "1");
  std::ofstream(file->path()) << text;
  EXPECT_TRUE(JobFile::list(folder_).empty());
}

TEST_F(JobFilesTest, WhatIsNotOursIsPassedOver) {
  const auto file = write("train", getpid());
  std::ofstream(folder_ + "/1.json") << "{\"version\": 1}";
  std::ofstream(folder_ + "/2.json") << "nonsense";
  std::filesystem::create_directory(folder_ + "/3.json");
  std::filesystem::create_symlink(file->path(), folder_ + "/4.json");
  std::filesystem::copy_file(file->path(), folder_ + "/5.json");
  chmod((folder_ + "/5.json").c_str(), 0644);
  EXPECT_EQ(JobFile::list(folder_).size(), 1u);
}

TEST_F(JobFilesTest, AFolderThatOthersCanReadIsRefused) {
  std::filesystem::create_directories(folder_);
  chmod(folder_.c_str(), 0755);
  const auto open = JobFile::write(folder_, entry("train", getpid()));
  ASSERT_FALSE(open.ok());
  EXPECT_NE(open.error().message.find("0700"), std::string::npos);
  const std::string link = root_ + "/link";
  chmod(folder_.c_str(), 0700);
  std::filesystem::create_directory_symlink(folder_, link);
  EXPECT_FALSE(JobFile::write(link, entry("train", getpid())).ok());
  EXPECT_FALSE(JobFile::write(folder_, entry("train", 0)).ok());
}

TEST_F(JobFilesTest, FolderEndsWithItsOwner) {
  auto folder = JobFolder::make({root_});
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  const std::string path = (*folder)->path();
  EXPECT_TRUE(path.starts_with(root_ + "/pliant-job-"));
  std::ofstream(path + "/journal") << "x";
  folder->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(JobFilesTest, FolderIsMadeInTheNextPlaceIfNeedBe) {
  const auto folder = JobFolder::make({"", root_ + "/nowhere", root_});
  ASSERT_TRUE(folder.ok());
  EXPECT_TRUE((*folder)->path().starts_with(root_ + "/pliant-job-"));
  EXPECT_FALSE(JobFolder::make({root_ + "/nowhere"}).ok());
}

TEST_F(JobFilesTest, FoldersOfKilledJobsAreRemovedByTheNext) {
  namespace fs = std::filesystem;
  const std::string dead = root_ + "/pliant-job-aaaaaa";
  fs::create_directories(dead + "/deep");
  std::ofstream(dead + "/journal") << "x";
  const std::string elsewhere = root_ + "/elsewhere";
  fs::create_directories(elsewhere);
  fs::create_directory_symlink(elsewhere, root_ + "/pliant-job-bbbbbb");
  fs::create_directories(root_ + "/pliant-job-notes");
  std::ofstream(root_ + "/pliant-job-cccccc") << "x";
  const auto living = JobFolder::make({root_});
  ASSERT_TRUE(living.ok());
  EXPECT_FALSE(fs::exists(dead));

  const auto next = JobFolder::make({root_});
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE(fs::exists((*living)->path()));
  EXPECT_TRUE(fs::exists((*next)->path()));
  EXPECT_TRUE(fs::exists(elsewhere));
  EXPECT_TRUE(fs::exists(root_ + "/pliant-job-bbbbbb"));
  EXPECT_TRUE(fs::exists(root_ + "/pliant-job-notes"));
  EXPECT_TRUE(fs::exists(root_ + "/pliant-job-cccccc"));
}

// The coordinator inherits the lock: the folder is taken from nobody who still needs it.
TEST_F(JobFilesTest, FolderIsKeptWhileSomebodyHasItsLock) {
  const auto folder = JobFolder::make({root_});
  ASSERT_TRUE(folder.ok());
  const Fd inherited(dup((*folder)->lock().get()));
  const std::string path = (*folder)->path();
  // As if its owner had been killed: nothing of it is left but the lock that another inherited.
  ASSERT_EQ(dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), (*folder)->lock().get()),
            (*folder)->lock().get());
  ASSERT_TRUE(JobFolder::make({root_}).ok());
  EXPECT_TRUE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace pliant
