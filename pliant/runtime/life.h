// The life lock of a worker: a robust mutex in shared memory that the worker holds while it lives.
//
// The kernel releases the robust mutexes of a killed process before it tears down its memory, and
// closes its sockets and wakes its pidfd after that: with gigabytes of memory the lock tells of a
// death a hundred times sooner. The agent makes a LifeLock for each worker it starts and blocks on
// it in the thread of a LifeWatch; the worker inherits the descriptor (PLIANT_LIFE_FD) and holds
// the lock by a LifeHold. A worker that never holds it is never reported.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/transport/socket.h"

namespace pliant {

struct LifePage;  // what lies in the shared memory

// One mapping of the page; shared between a lock and its watch.
class LifeMapping final {
 public:
  static Result<std::shared_ptr<LifeMapping>> of(const Fd& memory);
  ~LifeMapping();
  LifeMapping(const LifeMapping&) = delete;
  LifeMapping& operator=(const LifeMapping&) = delete;

  LifePage& page() { return *page_; }
  // For a lock that is still held: its thread's list of robust mutexes points into the page.
  void keep_for_good() { kept_ = true; }

 private:
  explicit LifeMapping(LifePage* page) : page_(page) {}

  LifePage* const page_;
  bool kept_ = false;
};

// The agent's end before the worker is started. A value that moves; any thread.
class LifeLock final {
 public:
  static Result<LifeLock> make();

  // For ChildOptions::inherited; the worker finds it under the same number.
  int fd() const { return memory_.get(); }
  const std::shared_ptr<LifeMapping>& mapping() const { return mapping_; }

 private:
  LifeLock(Fd memory, std::shared_ptr<LifeMapping> mapping)
      : memory_(std::move(memory)), mapping_(std::move(mapping)) {}

  Fd memory_;
  std::shared_ptr<LifeMapping> mapping_;
};

// The worker's end. hold() and release() are called by one and the same thread, which must live as
// long as the worker is to count as alive.
class LifeHold final {
 public:
  // Takes over the descriptor of PLIANT_LIFE_FD, and closes it.
  static Result<std::unique_ptr<LifeHold>> adopt(Fd memory);
  ~LifeHold();
  LifeHold(const LifeHold&) = delete;
  LifeHold& operator=(const LifeHold&) = delete;

  // kTimeout if another process holds it and does not let go.
  Status hold();
  // The worker goes on or ends in order: no death. May be held again.
  void release();

 private:
  explicit LifeHold(std::shared_ptr<LifeMapping> mapping) : mapping_(std::move(mapping)) {}

  const std::shared_ptr<LifeMapping> mapping_;
  bool held_ = false;
};

// The agent's end while the worker runs. Owned by the agent; made and destroyed with the loop held.
class LifeWatch final {
 public:
  enum class News { kDied, kReleased };

  // Calls back with the loop held, from whatever thread: kReleased when it was released in order,
  // kDied once and nothing after it. The callback does not destroy the watch.
  LifeWatch(Loop& loop, std::shared_ptr<LifeMapping> mapping, std::function<void(News)> on_news);
  // At once if the worker has ended or does not hold the lock, within a quarter of a second
  // otherwise. Nothing is called back after it.
  ~LifeWatch();
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;

 private:
  void watch();
  void tell(News news);

  Loop& loop_;
  const std::shared_ptr<LifeMapping> mapping_;
  const std::function<void(News)> on_news_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // read with the loop held
  std::thread thread_;
};

}  // namespace pliant
