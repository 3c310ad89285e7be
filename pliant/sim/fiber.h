// A fiber: code in blocking style that gives way to the simulator wherever it would wait, on the
// simulator's one thread. Owned by a simulated member.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace pliant::sim {

class Fiber final {
 public:
  static constexpr size_t kStackBytes = size_t{256} << 10;

  explicit Fiber(std::function<void()> body);
  // Only of one that was never resumed, or that has finished: what stands on its stack has owners.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From outside: runs it until it gives way or ends.
  void resume();
  // From inside: back to whoever resumed it.
  void give_way();
  bool finished() const { return finished_; }

 private:
  static void enter(unsigned high, unsigned low);
  void run();

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  bool begun_ = false;
  bool finished_ = false;
  // For the sanitizers, which follow stacks.
  void* fake_stack_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_size_ = 0;
  void* tsan_inside_ = nullptr;
  void* tsan_outside_ = nullptr;
};

}  // namespace pliant::sim
