#include "pliant/base/task_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace pliant {
namespace {

TEST(TaskPool, RunsEveryTaskOnce) {
  constexpr int kTasks = 500;
  std::vector<std::atomic<int>> runs(kTasks);
  std::latch all(kTasks);
  TaskPool pool(3, kTasks);
  for (int i = 0; i < kTasks; ++i)
    ASSERT_TRUE(pool.submit([&, i] {
      ++runs[static_cast<size_t>(i)];
      all.count_down();
    }));
  all.wait();
  for (const auto& count : runs) EXPECT_EQ(count, 1);
}

TEST(TaskPool, IsBoundedAndDropsWhatHasNotBegun) {
  std::latch begun(1);
  std::latch go_on(1);
  std::atomic<int> ran = 0;
  std::thread opener;
  {
    TaskPool pool(1, 2);
    ASSERT_TRUE(pool.submit([&] {
      begun.count_down();
      go_on.wait();
      ++ran;
    }));
    begun.wait();
    EXPECT_TRUE(pool.submit([&] { ran += 100; }));
    EXPECT_TRUE(pool.submit([&] { ran += 100; }));
    EXPECT_FALSE(pool.submit([&] { ran += 100; }));
    opener = std::thread([&] { go_on.count_down(); });
    // The destructor may find them waiting or, if the first ends before it is called, running.
    // What it must not do is to return while one runs.
  }
  opener.join();
  EXPECT_EQ(ran % 100, 1);
  const int after = ran;
  EXPECT_LE(after, 201);
}

}  // namespace
}  // namespace pliant
