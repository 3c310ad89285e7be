#include "pliant/loop/loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <string>

namespace pliant {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// A pipe whose read end can be watched.
class Pipe {
 public:
  Pipe() { PLIANT_CHECK(pipe(ends_) == 0); }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reader() const { return ends_[0]; }
  void put() const { PLIANT_CHECK(write(ends_[1], "x", 1) == 1); }
  void take() const {
    char byte = 0;
    PLIANT_CHECK(read(ends_[0], &byte, 1) == 1);
  }

 private:
  int ends_[2] = {-1, -1};
};

// The loop of one test, held by the test's thread.
class LoopTest : public testing::Test {
 protected:
  LoopTest() { loop_.lock(); }
  ~LoopTest() override { loop_.unlock(); }

  Loop loop_;
};

TEST_F(LoopTest, AnIdleTurnDoesNothing) { EXPECT_FALSE(loop_.turn()); }

TEST_F(LoopTest, DueTimersFireOnceInTheOrderOfTheirTimes) {
  std::string fired;
  const Instant past = now() - milliseconds(10);
  loop_.at(past + milliseconds(2), [&] { fired += 'b'; });
  loop_.at(past + milliseconds(1), [&] { fired += 'a'; });
  loop_.at(past + milliseconds(2), [&] { fired += 'c'; });
  loop_.at(now() + hours(1), [&] { fired += 'z'; });
  EXPECT_TRUE(loop_.turn());
  EXPECT_EQ(fired, "abc");
  EXPECT_FALSE(loop_.turn());
  EXPECT_EQ(fired, "abc");
}

TEST_F(LoopTest, ACancelledTimerDoesNotFire) {
  bool fired = false;
  const auto timer = loop_.at(now() - milliseconds(1), [&] { fired = true; });
  loop_.cancel(timer);
  EXPECT_FALSE(loop_.turn());
  EXPECT_FALSE(fired);
  loop_.cancel(timer);  // again: harmless
}

TEST_F(LoopTest, ATimerMayCancelAnotherThatIsDueAndSetANewOne) {
  std::string fired;
  std::optional<Loop::TimerId> second;
  const Instant past = now() - milliseconds(10);
  loop_.at(past, [&] {
    fired += 'a';
    loop_.cancel(*second);
    loop_.at(past, [&] { fired += 'c'; });
  });
  second = loop_.at(past + milliseconds(1), [&] { fired += 'b'; });
  while (loop_.turn()) {
  }
  EXPECT_EQ(fired, "ac");
}

TEST_F(LoopTest, WaitEndsWhenATimerIsDue) {
  bool fired = false;
  loop_.at(now() + milliseconds(1), [&] { fired = true; });
  while (!fired) {  // would last an hour if wait() did not know of the timer
    loop_.unlock();
    loop_.wait(hours(1));
    loop_.lock();
    loop_.turn();
  }
}

TEST_F(LoopTest, PostedWorkRunsInOrderAndWhatItPostsRunsNext) {
  std::string ran;
  loop_.post([&] {
    ran += 'a';
    loop_.post([&] { ran += 'c'; });
  });
  loop_.post([&] { ran += 'b'; });
  EXPECT_TRUE(loop_.turn());
  EXPECT_EQ(ran, "ab");
  EXPECT_TRUE(loop_.turn());
  EXPECT_EQ(ran, "abc");
}

TEST_F(LoopTest, PostFromAnotherThreadWakesWait) {
  constexpr int kPosts = 1000;
  int ran = 0;
  auto poster = std::async(std::launch::async, [&] {
    for (int i = 0; i < kPosts; ++i) loop_.post([&] { ++ran; });
  });
  while (ran < kPosts) {
    loop_.unlock();
    loop_.wait(hours(1));
    loop_.lock();
    loop_.turn();
  }
  poster.wait();
  EXPECT_EQ(ran, kPosts);
}

TEST_F(LoopTest, AReadyDescriptorIsReportedUntilItIsRead) {
  const Pipe pipe;
  int calls = 0;
  loop_.watch(pipe.reader(), EPOLLIN, [&](uint32_t events) {
    EXPECT_EQ(events, uint32_t{EPOLLIN});
    ++calls;
  });
  EXPECT_FALSE(loop_.turn());
  pipe.put();
  EXPECT_TRUE(loop_.turn());
  EXPECT_TRUE(loop_.turn());  // level-triggered
  EXPECT_EQ(calls, 2);
  pipe.take();
  EXPECT_FALSE(loop_.turn());
  loop_.unwatch(pipe.reader());
}

TEST_F(LoopTest, ChangeAndUnwatchSilenceADescriptor) {
  const Pipe pipe;
  pipe.put();
  int calls = 0;
  loop_.watch(pipe.reader(), EPOLLIN, [&](uint32_t) { ++calls; });
  loop_.change(pipe.reader(), 0);
  EXPECT_FALSE(loop_.turn());
  loop_.change(pipe.reader(), EPOLLIN);
  EXPECT_TRUE(loop_.turn());
  loop_.unwatch(pipe.reader());
  EXPECT_FALSE(loop_.turn());
  EXPECT_EQ(calls, 1);
  loop_.unwatch(pipe.reader());  // again: harmless
}

TEST_F(LoopTest, ACallbackMayUnwatchItselfAndOthers) {
  const Pipe left;
  const Pipe right;
  left.put();
  right.put();
  std::string called;
  // The text is in the callbacks' own state, which must outlive the call that drops them.
  const auto end_both = [&, text = std::string(64, 'x')](uint32_t) {
    loop_.unwatch(left.reader());
    loop_.unwatch(right.reader());
    called += text;
  };
  loop_.watch(left.reader(), EPOLLIN, end_both);
  loop_.watch(right.reader(), EPOLLIN, end_both);
  EXPECT_TRUE(loop_.turn());
  EXPECT_EQ(called.size(), 64U) << "the second one was unwatched in the same turn";
}

TEST_F(LoopTest, AnEventIsNotGivenToAnotherWatchOfTheSameNumber) {
  const Pipe left;
  const Pipe right;
  left.put();
  right.put();
  bool stale = false;
  const auto rewatch = [&](uint32_t) {
    for (const Pipe* pipe : {&left, &right}) {
      loop_.unwatch(pipe->reader());
      loop_.watch(pipe->reader(), EPOLLOUT, [&](uint32_t) { stale = true; });
    }
  };
  loop_.watch(left.reader(), EPOLLIN, rewatch);
  loop_.watch(right.reader(), EPOLLIN, rewatch);
  EXPECT_TRUE(loop_.turn());
  EXPECT_FALSE(stale) << "the event was the old watch's";
  loop_.unwatch(left.reader());
  loop_.unwatch(right.reader());
}

TEST_F(LoopTest, AReadyDescriptorEndsWait) {
  const Pipe pipe;
  bool called = false;
  loop_.watch(pipe.reader(), EPOLLIN, [&](uint32_t) { called = true; });
  auto writer = std::async(std::launch::async, [&] { pipe.put(); });
  while (!called) {
    loop_.unlock();
    loop_.wait(hours(1));
    loop_.lock();
    loop_.turn();
  }
  loop_.unwatch(pipe.reader());
}

// Whether a thread in wait() sleeps on until it is posted to, though `loop` may look busy.
bool sleeps_until_posted(Loop& loop) {
  std::atomic<bool> posted = false;
  std::promise<void> about_to_wait;
  auto waiter = std::async(std::launch::async, [&] {
    about_to_wait.set_value();
    loop.wait(hours(1));
    return posted.load();
  });
  about_to_wait.get_future().wait();
  // Nothing here decides the outcome of a right loop; it gives a wrong one the time to wake.
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  posted = true;
  loop.post([] {});
  return waiter.get();
}

TEST_F(LoopTest, ACancelledTimerDoesNotEndWait) {
  loop_.cancel(loop_.at(now() - milliseconds(1), [] {}));
  EXPECT_TRUE(sleeps_until_posted(loop_));
}

TEST_F(LoopTest, InlineKeepsDescriptorsFromWakingWait) {
  const Pipe pipe;
  pipe.put();
  int calls = 0;
  loop_.watch(pipe.reader(), EPOLLIN, [&](uint32_t) { ++calls; });
  {
    const Loop::Inline outer(loop_);
    const Loop::Inline inner(loop_);
    EXPECT_TRUE(loop_.turn());  // the one who drives inline sees the descriptor
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(sleeps_until_posted(loop_));
    EXPECT_TRUE(loop_.turn());
    EXPECT_EQ(calls, 2);
  }
  loop_.wait(hours(1));  // returns soon, and descriptors count again
  EXPECT_TRUE(loop_.turn());
  EXPECT_EQ(calls, 3);
  loop_.unwatch(pipe.reader());
}

TEST_F(LoopTest, TheLastInlineScopeArmsDescriptorsAgain) {
  const Pipe pipe;
  pipe.put();
  loop_.watch(pipe.reader(), EPOLLIN, [](uint32_t) {});
  {
    const Loop::Inline outer(loop_);
    { const Loop::Inline inner(loop_); }
    loop_.turn();
    EXPECT_TRUE(sleeps_until_posted(loop_)) << "one scope is left";
    loop_.turn();
  }
  loop_.wait(hours(1));
  loop_.unwatch(pipe.reader());
}

TEST_F(LoopTest, ArmMakesDescriptorsCountAtOnce) {
  const Pipe pipe;
  pipe.put();
  loop_.watch(pipe.reader(), EPOLLIN, [](uint32_t) {});
  { const Loop::Inline scope(loop_); }
  loop_.turn();
  loop_.arm();
  loop_.wait(hours(1));
  loop_.unwatch(pipe.reader());
}

// Whoever drives inline runs what was posted, often before the waiting thread has come to its
// senses. That one must wake all the same, or nobody looks at descriptors after the scope.
TEST(Loop, ATurnElsewhereTakesNoWakeUpFromWait) {
  const Pipe pipe;
  Loop loop;
  loop.lock();
  loop.watch(pipe.reader(), EPOLLIN, [](uint32_t) {});
  loop.unlock();
  for (int round = 0; round < 300; ++round) {
    std::promise<void> about_to_wait;
    auto waiter = std::async(std::launch::async, [&] {
      about_to_wait.set_value();
      loop.wait(hours(1));
    });
    about_to_wait.get_future().wait();
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    {
      const Loop::Inline scope(loop);
      loop.lock();
      loop.turn();
      loop.unlock();
    }
    if (waiter.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      loop.post([] {});
      FAIL() << "wait() slept on in round " << round;
    }
    loop.lock();
    loop.turn();
    loop.unlock();
    loop.arm();
  }
  loop.lock();
  loop.unwatch(pipe.reader());
  loop.unlock();
}

TEST(Loop, TryLockTellsWhetherItIsFree) {
  Loop loop;
  loop.lock();
  EXPECT_FALSE(std::async(std::launch::async, [&] { return loop.try_lock(); }).get());
  loop.unlock();
  ASSERT_TRUE(loop.try_lock());
  loop.assert_held();
  loop.unlock();
}

TEST(LoopDeathTest, OnlyTheHolderMayTurn) {
  Loop loop;
  EXPECT_DEATH(loop.turn(), "only the thread that holds the loop");
}

}  // namespace
}  // namespace pliant
