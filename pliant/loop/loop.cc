#include "pliant/loop/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>

namespace pliant {
namespace {
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kQuietMs = 1;

uint64_t pack(int fd, uint32_t generation) {
  return (uint64_t{generation} << 32) | static_cast<uint32_t>(fd);
}
}  // namespace

Loop::Loop() : next_due_ns_(kNever) {
  inner_ = epoll_create1(EPOLL_CLOEXEC);
  outer_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  PLIANT_CHECK(inner_ >= 0 && outer_ >= 0 && wake_ >= 0, "out of file descriptors");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_;
  PLIANT_CHECK(epoll_ctl(outer_, EPOLL_CTL_ADD, wake_, &event) == 0);
  event.data.fd = inner_;
  PLIANT_CHECK(epoll_ctl(outer_, EPOLL_CTL_ADD, inner_, &event) == 0);
}

Loop::~Loop() {
  close(inner_);
  close(outer_);
  close(wake_);
}

void Loop::lock() {
  mutex_.lock();
  holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

void Loop::unlock() {
  holder_.store({}, std::memory_order_relaxed);
  mutex_.unlock();
}

bool Loop::try_lock() {
  if (!mutex_.try_lock()) return false;
  holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

void Loop::assert_held() const {
  PLIANT_CHECK(holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(),
               "only the thread that holds the loop may call this");
}

void Loop::watch(int fd, uint32_t events, FdCallback callback) {
  assert_held();
  const uint32_t generation = next_generation_++;
  PLIANT_CHECK(watches_.emplace(fd, Watch{generation, std::move(callback)}).second,
               "a descriptor is watched once");
  epoll_event event{};
  event.events = events;
  event.data.u64 = pack(fd, generation);
  PLIANT_CHECK(epoll_ctl(inner_, EPOLL_CTL_ADD, fd, &event) == 0, "epoll refuses a descriptor");
}

void Loop::change(int fd, uint32_t events) {
  assert_held();
  const auto at = watches_.find(fd);
  PLIANT_CHECK(at != watches_.end(), "change() of a descriptor that is not watched");
  epoll_event event{};
  event.events = events;
  event.data.u64 = pack(fd, at->second.generation);
  PLIANT_CHECK(epoll_ctl(inner_, EPOLL_CTL_MOD, fd, &event) == 0);
}

void Loop::unwatch(int fd) {
  assert_held();
  if (watches_.erase(fd) == 0) return;
  PLIANT_CHECK(epoll_ctl(inner_, EPOLL_CTL_DEL, fd, nullptr) == 0);
}

Loop::TimerId Loop::at(Instant when, Callback callback) {
  assert_held();
  const uint64_t id = next_timer_++;
  timers_.emplace(std::pair(when, id), std::move(callback));
  timer_times_.emplace(id, when);
  note_next_due();
  return TimerId{id};
}

void Loop::cancel(TimerId timer) {
  assert_held();
  const auto at = timer_times_.find(static_cast<uint64_t>(timer));
  if (at == timer_times_.end()) return;
  timers_.erase({at->second, at->first});
  timer_times_.erase(at);
  note_next_due();
}

void Loop::post(Callback callback) {
  // The wake-up is written and drained under the same lock, or a turn could drain that of a later
  // post.
  const std::lock_guard guard(posted_mutex_);
  posted_.push_back(std::move(callback));
  has_posted_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  // A full counter means that the wake-up is pending already.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

bool Loop::turn() {
  assert_held();
  const bool posted = run_posted();
  const bool timers = run_timers();
  const bool descriptors = run_descriptors();
  return posted || timers || descriptors;
}

bool Loop::run_posted() {
  if (!has_posted_.load(std::memory_order_acquire)) return false;
  std::vector<Callback> batch;
  {
    const std::lock_guard guard(posted_mutex_);
    batch.swap(posted_);
    has_posted_.store(false, std::memory_order_relaxed);
    // A thread in wait() takes its wake-up itself: epoll looks again when the thread runs, finds
    // an event that another thread's turn has drained gone, and would sleep on.
    if (!waiting_) drain_wake();
  }
  for (Callback& callback : batch) callback();
  return !batch.empty();
}

bool Loop::run_timers() {
  if (timers_.empty()) return false;
  const Instant time = now();
  bool ran = false;
  while (!timers_.empty() && timers_.begin()->first.first <= time) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
    ran = true;
  }
  note_next_due();
  return ran;
}

void Loop::note_next_due() {
  next_due_ns_.store(
      timers_.empty() ? kNever : timers_.begin()->first.first.time_since_epoch().count(),
      std::memory_order_relaxed);
}

bool Loop::run_descriptors() {
  if (watches_.empty()) return false;
  std::array<epoll_event, 64> events{};
  const int count = epoll_wait(inner_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    const int fd = static_cast<int>(static_cast<uint32_t>(event.data.u64));
    const auto at = watches_.find(fd);
    // An earlier callback of this turn may have unwatched it, or watched a new one of its number.
    if (at == watches_.end() || at->second.generation != event.data.u64 >> 32) continue;
    const FdCallback callback = at->second.callback;
    callback(event.events);
  }
  return count > 0;
}

void Loop::drain_wake() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = read(wake_, &count, sizeof count);
}

void Loop::wait(Duration longest) {
  {
    const std::lock_guard guard(posted_mutex_);
    if (has_posted_.load(std::memory_order_relaxed)) return;
    waiting_ = true;
  }
  sleep(longest);
  const std::lock_guard guard(posted_mutex_);
  waiting_ = false;
  if (!has_posted_.load(std::memory_order_relaxed)) drain_wake();
}

void Loop::sleep(Duration longest) {
  const int64_t due = next_due_ns_.load(std::memory_order_relaxed);
  int64_t wait_ns = longest.count();
  if (due != kNever) wait_ns = std::min(wait_ns, due - now().time_since_epoch().count());
  // Rounded up, or the last fraction of a millisecond before a timer would be spun away.
  int64_t left_ms = wait_ns <= 0 ? 0 : (wait_ns + 999'999) / 1'000'000;
  left_ms = std::min<int64_t>(left_ms, 3'600'000);
  while (true) {
    const uint64_t scopes = inline_scopes_.load(std::memory_order_relaxed);
    const bool quiet = !armed_.load(std::memory_order_relaxed);
    const int64_t step_ms = quiet ? std::min<int64_t>(left_ms, kQuietMs) : left_ms;
    epoll_event event{};
    const bool ready = epoll_wait(outer_, &event, 1, static_cast<int>(step_ms)) != 0;
    left_ms -= step_ms;
    if (quiet) {
      const std::lock_guard guard(arm_mutex_);
      const bool unused = scopes == inline_scopes_.load(std::memory_order_relaxed);
      if (unused && inline_drivers_.load() == 0) {
        set_armed(true);
        return;
      }
    }
    if (ready || left_ms <= 0) return;
  }
}

void Loop::arm() {
  if (armed_.load(std::memory_order_relaxed)) return;
  const std::lock_guard guard(arm_mutex_);
  if (inline_drivers_.load() == 0) set_armed(true);
}

void Loop::set_armed(bool armed) {
  epoll_event event{};
  event.events = armed ? uint32_t{EPOLLIN} : 0;
  event.data.fd = inner_;
  PLIANT_CHECK(epoll_ctl(outer_, EPOLL_CTL_MOD, inner_, &event) == 0);
  armed_.store(armed, std::memory_order_relaxed);
}

Loop::Inline::Inline(Loop& loop) : loop_(loop) {
  loop_.inline_drivers_.fetch_add(1);
  loop_.inline_scopes_.fetch_add(1, std::memory_order_relaxed);
  if (!loop_.armed_.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard guard(loop_.arm_mutex_);
    if (!loop_.armed_.load(std::memory_order_relaxed)) return;
    loop_.set_armed(false);
  }
  loop_.post([] {});  // the thread in wait() must arm it again one day
}

Loop::Inline::~Inline() { loop_.inline_drivers_.fetch_sub(1); }

}  // namespace pliant
