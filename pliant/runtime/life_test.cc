#include "pliant/runtime/life.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace pliant {
namespace {

using namespace std::chrono_literals;
using News = LifeWatch::News;

// A child process that holds the lock, or does not, and does what it is told by single bytes.
class LifeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    lock_.emplace(std::move(*LifeLock::make()));
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    orders_read_ = Fd(ends[0]);
    orders_ = Fd(ends[1]);
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    done_ = Fd(ends[0]);
    done_write_ = Fd(ends[1]);
  }
  void TearDown() override {
    if (child_ > 0) kill_child();
    const std::lock_guard guard(loop_);
    watch_.reset();
  }
  void start_child() {
    child_ = fork();
    if (child_ == 0) obey();
  }
  [[noreturn]] void obey() {
    auto hold = LifeHold::adopt(Fd(dup(lock_->fd())));
    char order = 0;
    while (hold && read(orders_read_.get(), &order, 1) == 1) {
      if (order == 'h' && !(*hold)->hold()) _exit(1);
      if (order == 'r') (*hold)->release();
      if (order == 'x') _exit(0);
      if (write(done_write_.get(), &order, 1) != 1) _exit(1);
    }
    _exit(1);
  }
  void order(char what) {
    ASSERT_EQ(write(orders_.get(), &what, 1), 1);
    char answer = 0;
    ASSERT_EQ(read(done_.get(), &answer, 1), 1);
    ASSERT_EQ(answer, what);
  }
  void kill_child() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  void watch() {
    const std::lock_guard guard(loop_);
    watch_.emplace(loop_, lock_->mapping(), [this](News news) { news_.push_back(news); });
  }
  void turn_until_news(size_t count) {
    const Instant deadline = now() + 60s;
    std::unique_lock guard(loop_);
    while (news_.size() < count && now() < deadline) {
      guard.unlock();
      loop_.wait(deadline - now());
      guard.lock();
      loop_.turn();
    }
  }

  std::optional<LifeLock> lock_;
  Fd orders_read_, orders_, done_, done_write_;
  pid_t child_ = 0;
  Loop loop_;
  std::optional<LifeWatch> watch_;
  std::vector<News> news_;
};

TEST_F(LifeTest, DeathOfTheHolderIsTold) {
  start_child();
  watch();
  order('h');
  kill_child();
  turn_until_news(1);
  EXPECT_EQ(news_, std::vector<News>{News::kDied});
}

TEST_F(LifeTest, DeathIsToldToAWatchThatComesLater) {
  start_child();
  order('h');
  kill_child();
  watch();
  turn_until_news(1);
  EXPECT_EQ(news_, std::vector<News>{News::kDied});
}

TEST_F(LifeTest, OrderlyReleaseIsNoDeathAndMayBeFollowedByAnotherHold) {
  start_child();
  watch();
  order('h');
  order('r');
  turn_until_news(1);
  order('h');
  kill_child();
  turn_until_news(2);
  EXPECT_EQ(news_, (std::vector<News>{News::kReleased, News::kDied}));
}

TEST_F(LifeTest, WhoNeverHeldItIsNotReported) {
  start_child();
  watch();
  order('n');
  kill_child();
  {
    const std::lock_guard guard(loop_);
    watch_.reset();  // returns although nobody ever locked
    loop_.turn();
  }
  EXPECT_TRUE(news_.empty());
}

TEST_F(LifeTest, WatchEndsThoughTheHolderLives) {
  start_child();
  watch();
  order('h');
  {
    const std::lock_guard guard(loop_);
    watch_.reset();
  }
  kill_child();
  const std::lock_guard guard(loop_);
  loop_.turn();
  EXPECT_TRUE(news_.empty());
}

TEST_F(LifeTest, SecondHolderIsRefusedWhileTheFirstLives) {
  start_child();
  order('h');
  auto second = LifeHold::adopt(Fd(dup(lock_->fd())));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->hold().code(), Code::kTimeout);
  kill_child();
  EXPECT_TRUE((*second)->hold().ok());
  (*second)->release();
}

TEST(LifeHold, WrongDescriptorIsRefused) {
  EXPECT_FALSE(LifeHold::adopt(Fd(open("/dev/null", O_RDWR))).ok());
  Fd short_one(memfd_create("x", MFD_CLOEXEC));
  EXPECT_FALSE(LifeHold::adopt(std::move(short_one)).ok());
  Fd zeros(memfd_create("x", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(zeros.get(), 4096), 0);
  EXPECT_FALSE(LifeHold::adopt(std::move(zeros)).ok());
}

}  // namespace
}  // namespace pliant
