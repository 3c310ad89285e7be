#include "pliant/runtime/life.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <ctime>
#include <utility>

#include "pliant/base/check.h"
#include "pliant/base/thread.h"

namespace pliant {
namespace {

constexpr uint32_t kMagic = 0x4546494c;
constexpr uint32_t kHeld = 1;  // bits of LifePage::state
constexpr uint32_t kOver = 2;
constexpr uint32_t kReleases = 4;  // and above: how often it was released
// How often a watch that blocks on the lock looks whether it is still wanted.
constexpr Duration kLookEvery = std::chrono::milliseconds(250);
constexpr Duration kHoldWait = std::chrono::seconds(2);

}  // namespace

struct LifePage {
  uint32_t magic;
  // kHeld is set by the worker after it has locked, and cleared before it unlocks; kOver is set by
  // the agent that watches no more. Releases are counted, or a short hold could pass unseen. A
  // futex: the agent sleeps on it while the lock is not held.
  std::atomic<uint32_t> state;
  std::atomic<pid_t> holder;  // of the lock, while kHeld
  pthread_mutex_t mutex;
};

namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free);
constexpr size_t kPageBytes = 4096;
static_assert(sizeof(LifePage) <= kPageBytes);

void wait_for_change(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int lock_within(pthread_mutex_t& mutex, Duration longest) {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer knows what it means that an owner died for trylock, but not for a timed lock.
  const Instant give_up = now() + longest;
  int problem = EBUSY;
  while ((problem = pthread_mutex_trylock(&mutex)) == EBUSY && now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return problem;
#endif
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const int64_t nanoseconds = until.tv_nsec + longest.count();
  until.tv_sec += static_cast<time_t>(nanoseconds / 1'000'000'000);
  until.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  return pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &until);
}

Status make_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int problem = pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (problem == 0) return {};
  errno = problem;
  return system_error("cannot make a life lock");
}

}  // namespace

Result<std::shared_ptr<LifeMapping>> LifeMapping::of(const Fd& memory) {
  // Touching a page beyond the end of a shorter file would be a crash.
  struct stat status {};
  if (fstat(memory.get(), &status) != 0) return system_error("cannot look at the life lock");
  if (status.st_size != static_cast<off_t>(kPageBytes))
    return invalid("the descriptor of the life lock is something else");
  void* const at = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return system_error("cannot map the life lock");
  return std::shared_ptr<LifeMapping>(new LifeMapping(static_cast<LifePage*>(at)));
}

LifeMapping::~LifeMapping() {
  if (!kept_) munmap(page_, kPageBytes);
}

Result<LifeLock> LifeLock::make() {
  Fd memory(memfd_create("pliant-life", MFD_CLOEXEC));
  if (!memory.valid()) return system_error("cannot make a life lock");
  if (ftruncate(memory.get(), kPageBytes) != 0) return system_error("cannot make a life lock");
  auto mapping = LifeMapping::of(memory);
  if (!mapping) return mapping.error();
  LifePage& page = (*mapping)->page();
  PLIANT_TRY(make_mutex(page.mutex));
  page.magic = kMagic;
  return LifeLock(std::move(memory), std::move(*mapping));
}

Result<std::unique_ptr<LifeHold>> LifeHold::adopt(Fd memory) {
  auto mapping = LifeMapping::of(memory);
  if (!mapping) return mapping.error();
  if ((*mapping)->page().magic != kMagic)
    return invalid("the descriptor of the life lock is something else");
  return std::unique_ptr<LifeHold>(new LifeHold(std::move(*mapping)));
}

LifeHold::~LifeHold() {
  if (held_) mapping_->keep_for_good();
}

Status LifeHold::hold() {
  PLIANT_CHECK(!held_, "the life lock is held once");
  LifePage& page = mapping_->page();
  const int problem = lock_within(page.mutex, kHoldWait);
  if (problem == EOWNERDEAD) pthread_mutex_consistent(&page.mutex);
  if (problem != 0 && problem != EOWNERDEAD)
    return Error{Code::kTimeout, "another process holds the life lock of this worker", {}, {}};
  held_ = true;
  page.holder.store(getpid());
  page.state.fetch_or(kHeld);
  wake_all(page.state);
  return {};
}

void LifeHold::release() {
  if (!held_) return;
  held_ = false;
  LifePage& page = mapping_->page();
  page.state.fetch_add(kReleases - kHeld);
  pthread_mutex_unlock(&page.mutex);
  wake_all(page.state);
}

LifeWatch::LifeWatch(Loop& loop, std::shared_ptr<LifeMapping> mapping,
                     std::function<void(News)> on_news)
    : loop_(loop), mapping_(std::move(mapping)), on_news_(std::move(on_news)) {
  loop_.assert_held();
  thread_ = std::thread([this] { watch(); });
}

LifeWatch::~LifeWatch() {
  loop_.assert_held();
  *alive_ = false;
  mapping_->page().state.fetch_or(kOver);
  wake_all(mapping_->page().state);
  thread_.join();
}

void LifeWatch::watch() {
  pthread_setname_np(pthread_self(), "pliant-life");
  run_promptly();
  LifePage& page = mapping_->page();
  uint32_t releases = 0;
  while (true) {
    const uint32_t state = page.state.load();
    if ((state & kOver) != 0) return;
    if (std::exchange(releases, state / kReleases) != state / kReleases) tell(News::kReleased);
    if ((state & kHeld) == 0) {
      wait_for_change(page.state, state);
      continue;
    }
    const int problem = lock_within(page.mutex, kLookEvery);
    if (problem == EOWNERDEAD) {
      page.state.fetch_and(~kHeld);
      pthread_mutex_consistent(&page.mutex);
      pthread_mutex_unlock(&page.mutex);
      tell(News::kDied);
      end_in_idle_time(page.holder.load());
      return;
    }
    if (problem == 0) pthread_mutex_unlock(&page.mutex);
  }
}

void LifeWatch::tell(News news) {
  // At once if nobody has the loop: on busy cores each thread on the way costs milliseconds.
  if (loop_.try_lock()) {
    if (*alive_) on_news_(news);
    loop_.unlock();
    loop_.post([] {});  // the thread in wait() does not know of timers that were set here
    return;
  }
  loop_.post([this, alive = alive_, news] {
    if (*alive) on_news_(news);
  });
}

}  // namespace pliant
