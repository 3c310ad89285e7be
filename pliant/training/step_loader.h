// A StepLoader gives the samples of each step of a session, read ahead as far as the next steps can
// be foreseen (data/prefetcher.h). Owned and called by the thread that trains:
//
//   StepLoader loader(session, dataset, {.batches = 2, .threads = 2, .seed = 1});
//   while (Step step = session.begin_step()) {
//     auto batch = loader.load(step);       // again if there are more()
//     ...
//   }
#pragma once

#include <memory>

#include "pliant/base/result.h"
#include "pliant/data/dataset.h"
#include "pliant/data/prefetcher.h"
#include "pliant/runtime/session.h"

namespace pliant {

class StepLoader final {
 public:
  // Both are borrowed and outlive it. The session's sampler is over the dataset's samples.
  StepLoader(Session& session, const Dataset& dataset, const PrefetchOptions& options);

  // This member's samples of the step, and begins to read those of the next ones. There may be
  // none, where there are more members than samples.
  Result<std::shared_ptr<const LoadedBatch>> load(const Step& step);

  const Prefetcher::Counts& counts() const { return prefetcher_.counts(); }

 private:
  Session& session_;
  const Dataset& dataset_;
  Prefetcher prefetcher_;
};

}  // namespace pliant
