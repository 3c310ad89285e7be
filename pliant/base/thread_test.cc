#include "pliant/base/thread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace pliant {
namespace {

// A child that waits until a pipe is closed, and then ends.
struct Waiting {
  Waiting() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
      close(ends[1]);
      char byte = 0;
      _exit(static_cast<int>(read(ends[0], &byte, 1)));
    }
    close(ends[0]);
    lifeline = ends[1];
  }
  // It is dead then, and not reaped: its number stays its own.
  void end() const {
    close(lifeline);
    siginfo_t info{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  }

  pid_t pid = 0;
  int lifeline = -1;
};

TEST(EndInIdleTime, LeavesTheLivingAlone) {
  const Waiting child;
  const int before = sched_getscheduler(child.pid);
  end_in_idle_time(child.pid);
  EXPECT_EQ(sched_getscheduler(child.pid), before);
  child.end();
  end_in_idle_time(child.pid);
  EXPECT_EQ(sched_getscheduler(child.pid), SCHED_IDLE);
  waitpid(child.pid, nullptr, 0);
  end_in_idle_time(child.pid);  // nobody
}

TEST(ReapInIdleTime, LeavesNothing) {
  const Waiting child;
  child.end();
  reap_in_idle_time(child.pid);
  for (int i = 0; i < 60'000 && kill(child.pid, 0) == 0; ++i) usleep(1000);
  EXPECT_EQ(waitpid(child.pid, nullptr, 0), -1) << "it is still there";
}

}  // namespace
}  // namespace pliant
