// Counts what a fuzz target allocates, so that it can demand that little comes of little. Included
// by one file of a program: it replaces the operators of the whole program. One thread.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "pliant/base/check.h"

namespace pliant::fuzz {

inline size_t allocated_bytes = 0;  // since the program began; never less again

// Fails at its end if more was allocated in between than the input's size justifies.
class AllocationBound final {
 public:
  explicit AllocationBound(size_t input_bytes)
      : bound_(allocated_bytes + kFree + kEach * input_bytes) {}
  ~AllocationBound() { PLIANT_CHECK(allocated_bytes <= bound_, "little comes of little"); }
  AllocationBound(const AllocationBound&) = delete;
  AllocationBound& operator=(const AllocationBound&) = delete;

 private:
  // All that is ever allocated counts, not what is held at once, so growing vectors count twice.
  static constexpr size_t kFree = size_t{1} << 20;
  static constexpr size_t kEach = 1024;

  size_t bound_;
};

inline void* counted(size_t size) {
  allocated_bytes += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  std::abort();
}

}  // namespace pliant::fuzz

// Inlined, the compiler would take free() for the wrong end of what operator new gave.
[[gnu::noinline]] void* operator new(size_t size) { return pliant::fuzz::counted(size); }
[[gnu::noinline]] void* operator new[](size_t size) { return pliant::fuzz::counted(size); }
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return pliant::fuzz::counted(size);
}
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return pliant::fuzz::counted(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
