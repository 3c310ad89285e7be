#include "pliant/data/prefetcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pliant/data/sample_seed.h"

namespace pliant {

LoadedBatch::LoadedBatch(UpcomingSamples wanted, size_t sample_bytes)
    : wanted_(std::move(wanted)),
      sample_bytes_(sample_bytes),
      bytes_(std::make_unique_for_overwrite<std::byte[]>(wanted_.samples.size() * sample_bytes)) {}

// A batch that is being read, by whoever has time: each takes the next sample that nobody has
// taken. Shared by the caller and the threads.
class Prefetcher::Reading final {
 public:
  Reading(const Dataset& dataset, uint64_t seed, const UpcomingSamples& wanted)
      : dataset_(dataset),
        seed_(seed),
        batch_(new LoadedBatch(wanted, dataset.sample_bytes())),
        statuses_(wanted.samples.size()) {}

  bool is_of(const UpcomingSamples& wanted) const { return batch_->wanted_ == wanted; }
  size_t size() const { return statuses_.size(); }

  // Reads until nothing is left to begin.
  void work() {
    size_t at = next_.fetch_add(1, std::memory_order_relaxed);
    for (; at < size(); at = next_.fetch_add(1, std::memory_order_relaxed)) {
      statuses_[at] = read(at);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) done_.notify_all();
    }
  }

  // Nobody wants it: what has not begun never does.
  void abandon() { next_.store(size(), std::memory_order_relaxed); }

  Result<std::shared_ptr<const LoadedBatch>> finish() {
    work();
    for (size_t done = done_.load(std::memory_order_acquire); done < size();
         done = done_.load(std::memory_order_acquire))
      done_.wait(done, std::memory_order_acquire);
    for (const Status& status : statuses_)
      if (!status.ok()) return status.error();
    return batch_;
  }

 private:
  Status read(size_t at) {
    const uint64_t index = batch_->wanted_.samples[at];
    if (index >= dataset_.size())
      return invalid(
          fmt::format("there is no sample {}: the dataset has {}", index, dataset_.size()));
    const uint64_t epoch = batch_->wanted_.epoch;
    const Sample sample{index, epoch, sample_seed(seed_, epoch, index)};
    const size_t bytes = batch_->sample_bytes_;
    return dataset_.read(sample, {batch_->bytes_.get() + at * bytes, bytes});
  }

  const Dataset& dataset_;
  const uint64_t seed_;
  const std::shared_ptr<const LoadedBatch> batch_;
  std::vector<Status> statuses_;
  std::atomic<size_t> next_ = 0;  // that nobody has taken
  std::atomic<size_t> done_ = 0;
};

Prefetcher::Prefetcher(const Dataset& dataset, const PrefetchOptions& options)
    : dataset_(dataset), options_(options) {
  if (options.threads <= 0) return;
  // A task that finds no room is not missed: the caller reads what is left.
  const size_t waiting_max = (options.batches + 2) * static_cast<size_t>(options.threads);
  pool_ = std::make_unique<TaskPool>(options.threads, waiting_max);
}

Prefetcher::~Prefetcher() {
  for (const auto& guess : guesses_) guess->abandon();
}

std::shared_ptr<Prefetcher::Reading> Prefetcher::begin(const UpcomingSamples& wanted, int threads) {
  auto reading = std::make_shared<Reading>(dataset_, options_.seed, wanted);
  for (int i = 0; pool_ && i < threads; ++i)
    if (!pool_->submit([reading] { reading->work(); })) break;
  return reading;
}

void Prefetcher::expect(std::span<const UpcomingSamples> upcoming) {
  if (!pool_) return;
  std::deque<std::shared_ptr<Reading>> kept;
  for (const UpcomingSamples& wanted :
       upcoming.first(std::min(upcoming.size(), options_.batches))) {
    const auto known = std::ranges::find_if(
        guesses_, [&](const auto& guess) { return guess && guess->is_of(wanted); });
    if (known != guesses_.end())
      kept.push_back(std::exchange(*known, nullptr));
    else if (!wanted.samples.empty())
      kept.push_back(begin(wanted, options_.threads));
  }
  for (const auto& guess : guesses_) {
    if (!guess) continue;
    guess->abandon();
    ++counts_.thrown_away;
  }
  guesses_ = std::move(kept);
}

Result<std::shared_ptr<const LoadedBatch>> Prefetcher::take(const UpcomingSamples& wanted) {
  const auto known =
      std::ranges::find_if(guesses_, [&](const auto& guess) { return guess->is_of(wanted); });
  if (known != guesses_.end()) {
    const std::shared_ptr<Reading> reading = std::move(*known);
    guesses_.erase(known);
    ++counts_.guessed;
    return reading->finish();
  }
  ++counts_.read_now;
  // The caller is one of the readers.
  return begin(wanted, wanted.samples.size() > 1 ? options_.threads : 0)->finish();
}

}  // namespace pliant
