// One process alone: what needs others is in tests/process/loader_test.py.
#include "pliant/training/step_loader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

namespace pliant {
namespace {

class Numbers final : public Dataset {
 public:
  uint64_t size() const override { return 50; }
  size_t sample_bytes() const override { return sizeof(uint64_t); }
  Status read(const Sample& sample, std::span<std::byte> to) const override {
    const uint64_t value = sample.index * 1000 + sample.epoch;
    std::memcpy(to.data(), &value, sizeof value);
    return {};
  }
};

TEST(StepLoader, GivesTheSamplesOfEachStep) {
  const auto session = std::move(*Session::open(SessionOptions{}));
  const Numbers dataset;
  ASSERT_TRUE(session->use_sampler({.samples = 50, .global_batch = 8, .epochs = 3}).ok());
  StepLoader loader(*session, dataset, {.batches = 2, .threads = 1});
  std::map<uint64_t, std::set<uint64_t>> seen;
  while (Step step = session->begin_step()) {
    const auto batch = loader.load(step);
    ASSERT_TRUE(batch.ok());
    for (size_t i = 0; i < (*batch)->size(); ++i) {
      uint64_t value = 0;
      std::memcpy(&value, (*batch)->sample(i).data(), sizeof value);
      EXPECT_EQ(value, step.samples()[i] * 1000 + session->data_epoch());
      EXPECT_TRUE(seen[value % 1000].insert(value / 1000).second);
    }
    ASSERT_TRUE(step.commit().ok());
    // A guess that was right until now is not any more.
    if (step.number() == 4) {
      ASSERT_TRUE(session->set_global_batch(5).ok());
    }
  }
  for (uint64_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(seen[epoch].size(), 50u);
  EXPECT_EQ(loader.counts().read_now, 2u) << "the first step, and the first of another batch";
  EXPECT_EQ(loader.counts().thrown_away, 2u);
}

TEST(StepLoader, RefusesADatasetOfAnotherSize) {
  const auto session = std::move(*Session::open(SessionOptions{}));
  const Numbers dataset;
  ASSERT_TRUE(session->use_sampler({.samples = 49, .global_batch = 8}).ok());
  StepLoader loader(*session, dataset, {});
  Step step = session->begin_step();
  const auto batch = loader.load(step);
  ASSERT_FALSE(batch.ok());
  EXPECT_NE(batch.error().message.find("of 49 samples, the dataset has 50"), std::string::npos);
}

}  // namespace
}  // namespace pliant
