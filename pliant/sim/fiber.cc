#include "pliant/sim/fiber.h"

#include <cstdint>
#include <utility>

#include "pliant/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define PLIANT_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PLIANT_SIM_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define PLIANT_SIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PLIANT_SIM_TSAN 1
#endif
#endif

#if defined(PLIANT_SIM_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(PLIANT_SIM_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace pliant::sim {

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
  PLIANT_CHECK(getcontext(&inside_) == 0, "a context can be made");
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
#if defined(PLIANT_SIM_TSAN)
  tsan_inside_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  PLIANT_CHECK(!begun_ || finished_, "a fiber ends before it is destroyed");
#if defined(PLIANT_SIM_TSAN)
  __tsan_destroy_fiber(tsan_inside_);
#endif
}

void Fiber::enter(unsigned high, unsigned low) {
  const uintptr_t address = (uintptr_t{high} << 32) | low;
  reinterpret_cast<Fiber*>(address)->run();
}

void Fiber::run() {
#if defined(PLIANT_SIM_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &outside_bottom_, &outside_size_);
#endif
  body_();
  finished_ = true;
#if defined(PLIANT_SIM_ASAN)
  __sanitizer_start_switch_fiber(nullptr, outside_bottom_, outside_size_);
#endif
#if defined(PLIANT_SIM_TSAN)
  __tsan_switch_to_fiber(tsan_outside_, 0);
#endif
  setcontext(&outside_);
}

void Fiber::resume() {
  PLIANT_CHECK(!finished_, "a finished fiber does not run again");
  begun_ = true;
#if defined(PLIANT_SIM_ASAN)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_.get(), kStackBytes);
#endif
#if defined(PLIANT_SIM_TSAN)
  tsan_outside_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_inside_, 0);
#endif
  swapcontext(&outside_, &inside_);
#if defined(PLIANT_SIM_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::give_way() {
#if defined(PLIANT_SIM_ASAN)
  __sanitizer_start_switch_fiber(&fake_stack_, outside_bottom_, outside_size_);
#endif
#if defined(PLIANT_SIM_TSAN)
  __tsan_switch_to_fiber(tsan_outside_, 0);
#endif
  swapcontext(&inside_, &outside_);
#if defined(PLIANT_SIM_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack_, &outside_bottom_, &outside_size_);
#endif
}

}  // namespace pliant::sim
