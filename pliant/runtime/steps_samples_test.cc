// The samples of steps, of one process alone: what needs others is in the simulator and in
// tests/python/data_test.py.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "pliant/runtime/session.h"

namespace pliant {
namespace {

class Samples : public ::testing::Test {
 protected:
  // Makes a step and gives its samples.
  std::vector<uint64_t> step() {
    Step step = session_->begin_step();
    if (!step) return {};
    const std::vector<uint64_t> samples(step.samples().begin(), step.samples().end());
    EXPECT_TRUE(step.commit().ok());
    return samples;
  }

  std::unique_ptr<Session> session_ = std::move(*Session::open(SessionOptions{}));
};

TEST_F(Samples, TheBatchChangesWithTheNextStep) {
  EXPECT_FALSE(session_->set_global_batch(4).ok()) << "there is no sampler";
  EXPECT_EQ(session_->data_position(), DataPosition{});
  ASSERT_TRUE(session_->use_sampler({.samples = 10, .global_batch = 2, .shuffle = false}).ok());
  EXPECT_EQ(step(), (std::vector<uint64_t>{0, 1}));
  ASSERT_TRUE(session_->set_global_batch(5).ok());
  EXPECT_EQ(session_->data_position(),
            (DataPosition{.epoch = 0, .consumed = 2, .samples = 10, .global_batch = 5}));
  Step open = session_->begin_step();
  ASSERT_TRUE(open);
  EXPECT_EQ(open.samples().size(), 5u);
  EXPECT_EQ(open.batch(), 5u);
  const Status inside = session_->set_global_batch(1);
  ASSERT_FALSE(inside.ok());
  EXPECT_NE(inside.error().message.find("between two steps; step 2"), std::string::npos);
  ASSERT_TRUE(open.commit().ok());
  EXPECT_EQ(step(), (std::vector<uint64_t>{7, 8, 9}));
  EXPECT_EQ(session_->data_epoch(), 1u);
  EXPECT_FALSE(session_->begin_step());
}

TEST_F(Samples, UpcomingOnesAreThoseOfTheStepsThatFollow) {
  EXPECT_EQ(session_->upcoming_samples(1), UpcomingSamples{});
  ASSERT_TRUE(
      session_->use_sampler({.samples = 23, .global_batch = 5, .seed = 1, .epochs = 2}).ok());
  std::vector<UpcomingSamples> ahead;
  for (size_t steps = 0; steps <= 11; ++steps) ahead.push_back(session_->upcoming_samples(steps));
  EXPECT_TRUE(ahead[0].samples.empty());
  EXPECT_EQ(ahead[5].epoch, 0u);
  EXPECT_EQ(ahead[6].epoch, 1u);
  for (size_t number = 1; number <= 10; ++number) {
    EXPECT_EQ(session_->upcoming_samples(1), ahead[number]);
    Step open = session_->begin_step();
    ASSERT_TRUE(open);
    EXPECT_EQ(std::vector(open.samples().begin(), open.samples().end()), ahead[number].samples);
    for (size_t further = 1; number + further <= 10; ++further)
      EXPECT_EQ(session_->upcoming_samples(further), ahead[number + further]);
    ASSERT_TRUE(open.commit().ok());
  }
  EXPECT_TRUE(ahead[11].samples.empty());
}

}  // namespace
}  // namespace pliant
