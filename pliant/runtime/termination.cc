#include "pliant/runtime/termination.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <utility>

namespace pliant {
namespace {

constexpr int kPlaces = 64;  // sessions of one process; further ones are not told

// What the handler reads; atomics without locks, so that it may. A descriptor is kept as itself
// plus one: static memory begins as zeros, also for a handler that runs early.
std::array<std::atomic<int>, kPlaces> wakes;
std::atomic<int> handlers_running = 0;
std::atomic<pid_t> owner = 0;
std::atomic<int64_t> first_ns = 0;  // when the first signal came; 0: none has
static_assert(std::atomic<int>::is_always_lock_free);

std::mutex places_mutex;  // guards places_taken and the installation
int places_taken = 0;

void on_sigterm(int) {
  const int error_before = errno;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now_ns = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  int64_t first = 0;
  const bool is_first = first_ns.compare_exchange_strong(first, now_ns);
  // A forked child inherits the handler, and its end is no news for us.
  if (getpid() != owner.load() ||
      (!is_first && now_ns - first > TerminationNotice::kSameNotice.count())) {
    // The process ends when this returns. Not by SA_RESETHAND, of which ThreadSanitizer, who keeps
    // a record of handlers, learns nothing.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &standard, nullptr);
    raise(SIGTERM);
  } else if (is_first) {
    handlers_running.fetch_add(1);
    for (const std::atomic<int>& wake : wakes) {
      const int fd = wake.load() - 1;
      const uint64_t one = 1;
      if (fd >= 0 && write(fd, &one, sizeof one) < 0) continue;
    }
    handlers_running.fetch_sub(1);
  }
  errno = error_before;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == on_sigterm;
}

// False if the program has its own way with SIGTERM.
bool install() {
  struct sigaction action {};
  if (sigaction(SIGTERM, nullptr, &action) != 0) return false;
  if (is_ours(action)) return true;
  if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) return false;
  action = {};
  first_ns.store(0);
  action.sa_handler = on_sigterm;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGTERM, &action, nullptr) == 0;
}

void uninstall() {
  struct sigaction action {};
  if (sigaction(SIGTERM, nullptr, &action) == 0 && is_ours(action)) std::signal(SIGTERM, SIG_DFL);
}

// The place of a descriptor that the handler writes to from now on; -1: none.
int take_place(int fd) {
  const std::lock_guard guard(places_mutex);
  if (owner.load() != getpid()) {
    // In a forked child nothing of the parent's counts.
    for (std::atomic<int>& wake : wakes) wake.store(0);
    places_taken = 0;
    first_ns.store(0);
    owner.store(getpid());
  }
  for (int place = 0; place < kPlaces; ++place) {
    std::atomic<int>& wake = wakes[static_cast<size_t>(place)];
    if (wake.load() != 0) continue;
    wake.store(fd + 1);
    if (install()) {
      ++places_taken;
      return place;
    }
    wake.store(0);
    break;
  }
  return -1;
}

void leave_place(int place) {
  const std::lock_guard guard(places_mutex);
  if (owner.load() != getpid()) return;
  wakes[static_cast<size_t>(place)].store(0);
  if (--places_taken == 0) uninstall();
  // A handler on another thread may have read the descriptor just before; it is about to be closed.
  while (handlers_running.load() > 0) sched_yield();
}

}  // namespace

TerminationNotice::TerminationNotice(Loop& loop, std::function<void()> on_notice)
    : loop_(loop), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  loop_.assert_held();
  if (!wake_.valid()) return;
  place_ = take_place(wake_.get());
  if (place_ < 0) return;
  loop_.watch(wake_.get(), EPOLLIN,
              [this, on_notice = std::move(on_notice), told = false](uint32_t) mutable {
                uint64_t count = 0;
                if (read(wake_.get(), &count, sizeof count) != sizeof count) return;
                if (!std::exchange(told, true)) on_notice();
              });
}

TerminationNotice::~TerminationNotice() {
  loop_.assert_held();
  if (place_ < 0) return;
  loop_.unwatch(wake_.get());
  leave_place(place_);
}

}  // namespace pliant
