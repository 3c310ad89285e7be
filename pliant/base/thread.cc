#include "pliant/base/thread.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>
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

// The flags of /proc/<pid>/stat: the ninth field, and the program's name before it may be anything.
bool is_ending(pid_t process) {
  constexpr unsigned kExiting = 4;  // PF_EXITING of the kernel
  const std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen(fmt::format("/proc/{}/stat", process).c_str(), "re"), &std::fclose);
  char text[512];
  if (!file) return false;
  const std::string_view read(text, std::fread(text, 1, sizeof text, file.get()));
  const size_t name_end = read.rfind(')');
  unsigned flags = 0;
  if (name_end == std::string_view::npos ||
      std::sscanf(std::string(read.substr(name_end + 1)).c_str(), " %*c %*d %*d %*d %*d %*d %u",
                  &flags) != 1)
    return false;
  return (flags & kExiting) != 0;
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

}  // namespace pliant
