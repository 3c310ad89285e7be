#include "pliant/base/thread.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

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

}  // namespace pliant
