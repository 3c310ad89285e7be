// A few threads that run tasks in the order in which they were given. Owned by whoever gives them;
// any thread may. The destructor drops what has not begun, and waits for what has.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pliant {

class TaskPool final {
 public:
  // Signals of the process are not for these threads. `waiting_max` bounds the tasks that have not
  // begun.
  TaskPool(int threads, size_t waiting_max);
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // False, and the task is dropped, if too many are waiting.
  [[nodiscard]] bool submit(std::function<void()> task);

 private:
  void work();

  const size_t waiting_max_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pliant
