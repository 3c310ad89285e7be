// The two halves of a fence between processes, for the question "did you change something before I
// fell asleep, or did you see that I sleep?". One side writes its change, calls light_fence(), and
// reads the other's flag; the other writes its flag, calls heavy_fence(), and looks for changes. At
// least one of them sees the other's write. The light side is on the path of every operation and
// costs nothing; the heavy side interrupts all cores, and is for those who are about to sleep.
#pragma once

namespace pliant {

// True if the kernel lets heavy_fence() of other processes reach this one; otherwise light_fence()
// is a full fence.
bool join_heavy_fences();

void heavy_fence();
void full_fence();

inline void light_fence(bool joined) {
  if (joined) {
    asm volatile("" ::: "memory");
  } else {
    full_fence();
  }
}

}  // namespace pliant
