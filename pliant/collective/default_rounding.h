// The floating-point mode in which equal inputs give equal bits on every member. A value on the
// stack of whoever computes; it concerns its own thread alone.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pliant {

// The thread may belong to a program that flushes denormals to zero (fast-math libraries switch
// that on when they are loaded). The promise of equal bits holds for it too, so its mode is set
// aside while a kernel runs.
class DefaultRounding final {
 public:
#if defined(__x86_64__)
  DefaultRounding() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kStickyFlags) != kDefault) [[unlikely]]
      _mm_setcsr(kDefault);
  }
  ~DefaultRounding() {
    if ((saved_ & ~kStickyFlags) != kDefault) [[unlikely]]
      _mm_setcsr(saved_);
  }
#else
  DefaultRounding() {}
  ~DefaultRounding() {}
#endif
  DefaultRounding(const DefaultRounding&) = delete;
  DefaultRounding& operator=(const DefaultRounding&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kStickyFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, to nearest, no flushing
  unsigned saved_;
#endif
};

}  // namespace pliant
