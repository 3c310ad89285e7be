#include "pliant/runtime/process_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>

namespace pliant {
namespace {

constexpr int kOrphanRoundsMax = 16;
constexpr int kReapWaitMs = 1000;

void close_from(int first) {
  if (first > 0xfffff) return;
  syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U);
}

// Lives in a copy of the owner's process and must not touch anything of it but the socket.
[[noreturn]] void guard(int lifeline) {
  setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);  // only SIGKILL reaches it
  prctl(PR_SET_NAME, "pliant-guard");
  // It must hold nothing open that somebody waits to see closed, the terminal's pipes above all.
  const int kept = dup2(lifeline, 0);
  close_from(kept + 1);
  char byte = 0;
  while (read(kept, &byte, 1) < 0 && errno == EINTR) {
  }
  kill(0, SIGKILL);
  _exit(0);
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::make() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return system_error("cannot make a socket pair");
  Fd mine(ends[0]);
  const Fd theirs(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return system_error("cannot fork");
  if (pid == 0) guard(theirs.get());
  // Here as well as there, so that the group exists for sure when either goes on.
  setpgid(pid, pid);
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(pid, std::move(mine)));
}

ProcessGroup::~ProcessGroup() {
  // The guard is not reaped yet, so its number still names this group and no other.
  kill(-guard_, SIGKILL);
  kill_and_reap(guard_);
}

void ProcessGroup::signal(int signal) { kill(-guard_, signal); }

void kill_and_reap(pid_t child) {
  const Fd ended(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  kill(child, SIGKILL);
  pollfd entry{ended.get(), POLLIN, 0};
  while (poll(&entry, 1, kReapWaitMs) < 0 && errno == EINTR) {
  }
  waitpid(child, nullptr, WNOHANG);
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void end_orphans() {
  // Killing one may hand its own children to us, so this is done again until none is left; the
  // bound is for processes that not even SIGKILL ends.
  const std::string self = std::to_string(getpid());
  for (int round = 0; round < kOrphanRoundsMax; ++round) {
    std::ifstream children("/proc/self/task/" + self + "/children");
    pid_t child = 0;
    bool any = false;
    while (children >> child) {
      any = true;
      kill_and_reap(child);
    }
    if (!any) return;
  }
}

}  // namespace pliant
