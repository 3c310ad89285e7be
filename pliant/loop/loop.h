// An event loop: file descriptors, timers and a mailbox, turned by one thread at a time.
//
// Whoever holds the loop's lock is its thread for that while. Usually that is a background thread
// that sleeps in wait() and then turns the loop; a caller that wants its answer without a thread
// switch takes over with an Inline scope (the background thread is then not woken by descriptors)
// and turns the loop itself. Callbacks run inside turn(), with the lock held. Everything except
// post(), lock(), unlock() and wait() asserts that the caller holds the lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "pliant/base/time.h"

namespace pliant {

class Loop {
 public:
  using FdCallback = std::function<void(uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLHUP, ...
  using Callback = std::function<void()>;
  enum class TimerId : uint64_t {};

  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Makes the caller the loop's thread until unlock(); not recursive.
  void lock();
  void unlock();
  bool try_lock();
  void assert_held() const;

  // Level-triggered. The descriptor stays the caller's and is unwatched before it is closed; a
  // callback may unwatch any descriptor, its own included.
  void watch(int fd, uint32_t events, FdCallback callback);
  void change(int fd, uint32_t events);
  void unwatch(int fd);

  TimerId at(Instant when, Callback callback);
  void cancel(TimerId timer);  // harmless if it fired already

  // From any thread: runs `callback` in the next turn and wakes the thread in wait().
  void post(Callback callback);

  // One turn without blocking: posted work, due timers, ready descriptors. True if any ran.
  bool turn();

  // Blocks, without the lock, until a turn has something to do or `longest` has passed, or soon
  // after the last Inline scope has ended. For one thread at a time.
  void wait(Duration longest);

  // Lets descriptors wake the thread in wait() again at once, unless an Inline scope exists.
  void arm();

  // While one exists, and for a millisecond after, ready descriptors do not wake the thread in
  // wait(): callers in a tight loop would otherwise pay for a thread that wakes between two of
  // their calls, only to find the loop taken. Any thread.
  class Inline {
   public:
    explicit Inline(Loop& loop);
    ~Inline();
    Inline(const Inline&) = delete;
    Inline& operator=(const Inline&) = delete;

   private:
    Loop& loop_;
  };

 private:
  struct Watch {
    uint32_t generation;
    FdCallback callback;
  };
  bool run_posted();
  bool run_timers();
  void note_next_due();
  bool run_descriptors();
  void set_armed(bool armed);
  void sleep(Duration longest);
  void drain_wake();

  std::mutex mutex_;
  std::atomic<std::thread::id> holder_;
  int inner_ = -1;  // epoll of the watched descriptors
  int outer_ = -1;  // epoll of inner_ and wake_: what wait() sleeps on
  int wake_ = -1;   // eventfd, written by post()
  std::atomic<int> inline_drivers_ = 0;
  std::atomic<uint64_t> inline_scopes_ = 0;  // counts them
  std::mutex arm_mutex_;                     // guards the change of armed_
  std::atomic<bool> armed_ = true;           // does inner_ wake the thread in wait()?

  uint32_t next_generation_ = 1;
  std::unordered_map<int, Watch> watches_;
  uint64_t next_timer_ = 1;
  std::map<std::pair<Instant, uint64_t>, Callback> timers_;
  std::unordered_map<uint64_t, Instant> timer_times_;
  std::atomic<int64_t> next_due_ns_;  // of the earliest timer, for wait()

  std::mutex posted_mutex_;  // guards what follows, and the draining of wake_
  std::vector<Callback> posted_;
  std::atomic<bool> has_posted_ = false;
  bool waiting_ = false;  // a thread is in wait()
};

}  // namespace pliant
