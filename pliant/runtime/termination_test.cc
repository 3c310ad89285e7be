#include "pliant/runtime/termination.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <mutex>
#include <optional>
#include <thread>

namespace pliant {
namespace {

void ignore_it(int) {}

void (*handler())(int) {
  struct sigaction action {};
  sigaction(SIGTERM, nullptr, &action);
  return action.sa_handler;
}

// A session's side: a loop with a notice on it.
struct Side {
  Side() {
    loop.lock();
    notice.emplace(loop, [this] { ++told; });
  }
  ~Side() {
    notice.reset();
    loop.unlock();
  }
  int turn() {
    loop.turn();
    return told;
  }
  Loop loop;
  int told = 0;
  std::optional<TerminationNotice> notice;
};

// How a child ends in which `work` runs: its exit code, or minus the signal.
template <typename Work>
int end_of(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Termination, TheFirstSignalIsANotice) {
  Side side;
  EXPECT_TRUE(side.notice->heeded());
  EXPECT_EQ(side.turn(), 0);
  raise(SIGTERM);
  EXPECT_EQ(side.turn(), 1);
  EXPECT_EQ(side.turn(), 1);
}

TEST(Termination, ALaterSignalEndsTheProcess) {
  EXPECT_EQ(end_of([] {
              Side side;
              raise(SIGTERM);
              if (side.turn() != 1) _exit(1);
              std::this_thread::sleep_for(TerminationNotice::kSameNotice * 1.1);
              raise(SIGTERM);
            }),
            -SIGTERM);
}

// A scheduler signals launcher and workers, and the launcher its workers.
TEST(Termination, SignalsThatComeTogetherAreOneNotice) {
  EXPECT_EQ(end_of([] {
              Side side;
              for (int i = 0; i < 3; ++i) raise(SIGTERM);
              _exit(side.turn() == 1 && side.turn() == 1 ? 7 : 8);
            }),
            7);
}

TEST(Termination, TheNextSessionIsToldAgain) {
  for (int i = 0; i < 2; ++i) {
    Side side;
    raise(SIGTERM);
    EXPECT_EQ(side.turn(), 1);
  }
}

TEST(Termination, EverySessionIsTold) {
  Side first;
  {
    Side second;
    raise(SIGTERM);
    EXPECT_EQ(first.turn(), 1);
    EXPECT_EQ(second.turn(), 1);
  }
}

TEST(Termination, TheLastOneRestoresTheDefault) {
  std::optional<Side> first(std::in_place);
  std::optional<Side> second(std::in_place);
  first.reset();
  EXPECT_NE(handler(), SIG_DFL);
  raise(SIGTERM);
  EXPECT_EQ(second->turn(), 1);
  second.reset();
  EXPECT_EQ(handler(), SIG_DFL);
}

TEST(Termination, TheProgramsOwnHandlerIsLeftAlone) {
  for (void (*own)(int) : {&ignore_it, SIG_IGN}) {
    std::signal(SIGTERM, own);
    {
      Side side;
      EXPECT_FALSE(side.notice->heeded());
      raise(SIGTERM);
      EXPECT_EQ(side.turn(), 0);
    }
    EXPECT_EQ(handler(), own);
  }
  std::signal(SIGTERM, SIG_DFL);
}

TEST(Termination, AHandlerThatCameLaterIsLeftAlone) {
  {
    Side side;
    std::signal(SIGTERM, ignore_it);
  }
  EXPECT_EQ(handler(), ignore_it);
  std::signal(SIGTERM, SIG_DFL);
}

TEST(Termination, AForkedChildEndsAndTellsNobody) {
  Side side;
  EXPECT_EQ(end_of([] { raise(SIGTERM); }), -SIGTERM);
  EXPECT_EQ(side.turn(), 0);
  EXPECT_EQ(end_of([] {
              Side own;
              raise(SIGTERM);
              _exit(own.turn() == 1 ? 7 : 8);
            }),
            7);
  EXPECT_EQ(side.turn(), 0);
}

}  // namespace
}  // namespace pliant
