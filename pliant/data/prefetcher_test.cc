#include "pliant/data/prefetcher.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "pliant/data/sample_seed.h"

namespace pliant {
namespace {

// A sample is its number, its epoch and its seed. Notes who read what.
class Numbers final : public Dataset {
 public:
  explicit Numbers(uint64_t size) : size_(size) {}

  uint64_t size() const override { return size_; }
  size_t sample_bytes() const override { return sizeof(Sample); }
  Status read(const Sample& sample, std::span<std::byte> to) const override {
    std::memcpy(to.data(), &sample, sizeof sample);
    {
      const std::lock_guard lock(mutex_);
      ++reads_[sample.index];
      readers_[sample.index] = std::this_thread::get_id();
    }
    total_.fetch_add(1);
    total_.notify_all();
    if (sample.index == 13) return invalid("sample 13 is damaged");
    return {};
  }

  void await_reads(size_t count) const {
    for (size_t total = total_.load(); total < count; total = total_.load()) total_.wait(total);
  }
  std::map<uint64_t, int> reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  std::thread::id reader(uint64_t index) const {
    const std::lock_guard lock(mutex_);
    return readers_.at(index);
  }

 private:
  const uint64_t size_;
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, int> reads_;
  mutable std::map<uint64_t, std::thread::id> readers_;
  mutable std::atomic<size_t> total_ = 0;
};

std::vector<Sample> contents(const Result<std::shared_ptr<const LoadedBatch>>& loaded) {
  if (!loaded.ok()) return {};
  std::vector<Sample> samples((*loaded)->size());
  std::memcpy(samples.data(), (*loaded)->bytes().data(), (*loaded)->bytes().size());
  return samples;
}

std::vector<Sample> expected(const UpcomingSamples& wanted, uint64_t seed) {
  std::vector<Sample> samples;
  for (const uint64_t index : wanted.samples)
    samples.push_back({index, wanted.epoch, sample_seed(seed, wanted.epoch, index)});
  return samples;
}

const UpcomingSamples kFirst{.epoch = 1, .samples = {5, 2, 9}};
const UpcomingSamples kSecond{.epoch = 1, .samples = {7, 0, 4}};
const UpcomingSamples kThird{.epoch = 2, .samples = {7, 0, 4}};

TEST(Prefetcher, ReadsAheadWhatItExpects) {
  const Numbers dataset(20);
  Prefetcher prefetcher(dataset, {.batches = 2, .threads = 1, .seed = 8});
  EXPECT_EQ(contents(prefetcher.take(kFirst)), expected(kFirst, 8));
  prefetcher.expect(std::vector{kSecond, kThird, kFirst});
  dataset.await_reads(9);
  EXPECT_EQ(dataset.reads()[5], 1) << "no more than two batches ahead";
  EXPECT_NE(dataset.reader(7), std::this_thread::get_id());
  EXPECT_EQ(contents(prefetcher.take(kSecond)), expected(kSecond, 8));
  EXPECT_EQ(contents(prefetcher.take(kThird)), expected(kThird, 8));
  EXPECT_EQ(dataset.reads()[7], 2) << "once in each epoch, and not again when they were taken";
  EXPECT_EQ(prefetcher.counts().guessed, 2u);
  EXPECT_EQ(prefetcher.counts().read_now, 1u);
  EXPECT_EQ(prefetcher.counts().thrown_away, 0u);
}

TEST(Prefetcher, ThrowsWrongGuessesAway) {
  const Numbers dataset(20);
  Prefetcher prefetcher(dataset, {.batches = 2, .threads = 2});
  prefetcher.expect(std::vector{kFirst, kSecond});
  EXPECT_EQ(contents(prefetcher.take(kThird)), expected(kThird, 0)) << "the same but for the epoch";
  prefetcher.expect(std::vector{kSecond});
  EXPECT_EQ(prefetcher.counts().thrown_away, 1u) << "the second is still a guess";
  EXPECT_EQ(contents(prefetcher.take(kSecond)), expected(kSecond, 0));
  EXPECT_EQ(prefetcher.counts().guessed, 1u);
}

TEST(Prefetcher, DoesWithoutThreadsAndWithoutSamples) {
  const Numbers dataset(20);
  for (const int threads : {0, 1, 3}) {
    Prefetcher prefetcher(dataset, {.batches = 3, .threads = threads});
    const UpcomingSamples none{.epoch = 3, .samples = {}};
    prefetcher.expect(std::vector{none, kFirst});
    EXPECT_EQ(contents(prefetcher.take(kFirst)), expected(kFirst, 0));
    const auto loaded = prefetcher.take(none);
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ((*loaded)->size(), 0u);
  }
}

TEST(Prefetcher, ReportsTheSampleThatCannotBeRead) {
  const Numbers dataset(20);
  Prefetcher prefetcher(dataset, {.batches = 1, .threads = 1});
  const UpcomingSamples damaged{.epoch = 0, .samples = {1, 13, 2, 20}};
  prefetcher.expect(std::vector{damaged});
  const auto read = prefetcher.take(damaged);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().message, "sample 13 is damaged");
  const auto outside = prefetcher.take({.epoch = 0, .samples = {20}});
  ASSERT_FALSE(outside.ok());
  EXPECT_EQ(outside.error().message, "there is no sample 20: the dataset has 20");
  prefetcher.expect(std::vector{damaged});
  EXPECT_TRUE(prefetcher.take(kFirst).ok()) << "what is thrown away harms nobody";
}

TEST(Prefetcher, BatchesOutliveIt) {
  const Numbers dataset(20);
  auto prefetcher = std::make_unique<Prefetcher>(dataset, PrefetchOptions{});
  const auto loaded = prefetcher->take(kFirst);
  prefetcher->expect(std::vector{kSecond});
  prefetcher.reset();
  EXPECT_EQ(contents(loaded), expected(kFirst, 0));
}

// A member of a job whose size, batch and losses change: what it gets is what its sampler says.
TEST(Prefetcher, FollowsAnElasticJob) {
  const Numbers dataset(13);  // without the damaged one
  for (const int threads : {1, 3}) {
    std::mt19937_64 prng(static_cast<uint64_t>(threads));
    auto sampler = Sampler::make({.samples = 13, .global_batch = 4, .seed = 2, .epochs = 40});
    ASSERT_TRUE(sampler.ok());
    Prefetcher prefetcher(dataset, {.batches = 3, .threads = threads, .seed = 2});
    int members = 3;
    while (!sampler->done()) {
      if (prng() % 4 == 0) members = static_cast<int>(1 + prng() % 4);
      if (prng() % 6 == 0) {
        ASSERT_TRUE(sampler->set_global_batch(1 + prng() % 9).ok());
      }
      const Draw draw = sampler->draw(members);
      const UpcomingSamples mine{draw.epoch, sampler->indices(draw, 0)};
      ASSERT_EQ(contents(prefetcher.take(mine)), expected(mine, 2));
      Sampler guess = *sampler;
      const bool all[] = {true, true, true, true};
      const auto count = static_cast<size_t>(members);
      guess.commit(draw, {all, count});
      std::vector<UpcomingSamples> upcoming;
      for (int ahead = 0; ahead < 3; ++ahead) {
        const Draw next = guess.draw(members);
        upcoming.push_back({next.epoch, guess.indices(next, 0)});
        if (!next.empty()) guess.commit(next, {all, count});
      }
      prefetcher.expect(upcoming);
      bool contributed[] = {true, true, true, true};
      for (bool& flag : contributed) flag = prng() % 10 != 0;
      sampler->commit(draw, {contributed, count});
    }
    EXPECT_GT(prefetcher.counts().guessed, prefetcher.counts().read_now);
    EXPECT_GT(prefetcher.counts().thrown_away, 0u);
  }
}

}  // namespace
}  // namespace pliant
