#include "pliant/base/fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace pliant {

bool join_heavy_fences() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void heavy_fence() {
  // Where it does not exist, nobody could join, and the others' light fences are full ones.
  syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
  full_fence();
}

void full_fence() {
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer knows no fences; an exchange on a common word is as strong.
  static std::atomic<int> word = 0;
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace pliant
