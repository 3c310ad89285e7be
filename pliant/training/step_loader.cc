#include "pliant/training/step_loader.h"

#include <fmt/format.h>

#include <vector>

namespace pliant {

StepLoader::StepLoader(Session& session, const Dataset& dataset, const PrefetchOptions& options)
    : session_(session), dataset_(dataset), prefetcher_(dataset, options) {}

Result<std::shared_ptr<const LoadedBatch>> StepLoader::load(const Step& step) {
  const DataPosition position = session_.data_position();
  if (position.samples != dataset_.size())
    return invalid(
        fmt::format("the sampler is of {} samples, the dataset has {}; call "
                    "use_sampler() with the dataset's size",
                    position.samples, dataset_.size()));
  const std::span<const uint64_t> samples = step.samples();
  auto batch = prefetcher_.take({position.epoch, {samples.begin(), samples.end()}});
  std::vector<UpcomingSamples> upcoming;
  for (size_t ahead = 1; ahead <= prefetcher_.options().batches; ++ahead)
    upcoming.push_back(session_.upcoming_samples(ahead));
  prefetcher_.expect(upcoming);
  return batch;
}

}  // namespace pliant
