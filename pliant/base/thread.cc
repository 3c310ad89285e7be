#include "pliant/base/thread.h"

#include <dirent.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

namespace pliant {
namespace {

constexpr uint64_t kTurnNs = 100'000;  // the shortest that the kernel grants
constexpr uint64_t kResetOnFork = 1;

// As in <linux/sched/types.h>, which cannot be included beside <sched.h> everywhere.
struct SchedulingAttributes {
  uint32_t size_bytes;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns;  // of an ordinary thread: the length of its turns
  uint64_t deadline_ns;
  uint64_t period_ns;
};

// By /proc/<pid>/stat, whose fields are counted from behind the program's name: that may be
// anything. A thread that was killed and has not run since is not exiting yet.
bool is_ending(pid_t process) {
  constexpr unsigned kExiting = 4;                   // PF_EXITING of the kernel, in the ninth field
  constexpr unsigned kKilled = 1U << (SIGKILL - 1);  // of the signals that wait, the 31st
  const std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen(fmt::format("/proc/{}/stat", process).c_str(), "re"), &std::fclose);
  char text[1024];
  if (!file) return false;
  const std::string_view read(text, std::fread(text, 1, sizeof text, file.get()));
  const size_t name_end = read.rfind(')');
  unsigned flags = 0;
  unsigned waiting = 0;
  if (name_end == std::string_view::npos ||
      std::sscanf(std::string(read.substr(name_end + 1)).c_str(),
                  " %*c %*s %*s %*s %*s %*s %u"                           // 3 to 9
                  " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"  // to 22
                  " %*s %*s %*s %*s %*s %*s %*s %*s %u",                  // to 31
                  &flags, &waiting) != 2)
    return false;
  return (flags & kExiting) != 0 || (waiting & kKilled) != 0;
}

void* reap_when_idle(void* child) {
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);
  waitpid(static_cast<pid_t>(reinterpret_cast<intptr_t>(child)), nullptr, 0);
  return nullptr;
}

}  // namespace

void run_promptly() {
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  // Whoever chose another policy for this process knows better.
  if (attributes.policy != SCHED_OTHER) return;
  attributes.size_bytes = sizeof attributes;
  attributes.flags |= kResetOnFork;
  attributes.runtime_ns = kTurnNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void end_in_idle_time(pid_t process) {
  if (!is_ending(process)) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(
      opendir(fmt::format("/proc/{}/task", process).c_str()), &closedir);
  if (!threads) return;
  // The last one to end does the work, whichever that is.
  const sched_param none{};
  while (const dirent* entry = readdir(threads.get()))
    if (const int thread = std::atoi(entry->d_name); thread > 0)
      sched_setscheduler(thread, SCHED_IDLE, &none);
}

void reap_in_idle_time(pid_t child) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t alone;
  pthread_attr_init(&alone);
  pthread_attr_setdetachstate(&alone, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  void* const argument = reinterpret_cast<void*>(static_cast<intptr_t>(child));
  const int problem = pthread_create(&thread, &alone, reap_when_idle, argument);
  pthread_attr_destroy(&alone);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (problem != 0) waitpid(child, nullptr, 0);
}

}  // namespace pliant
