// A full memory fence: what this thread wrote before it is seen before what it reads after it.
#pragma once

#include <atomic>

namespace pliant {

inline void full_fence() {
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer knows no fences; an exchange on a common word is as strong.
  static std::atomic<int> word = 0;
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace pliant
