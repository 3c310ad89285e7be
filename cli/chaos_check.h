// The judge of `pliant chaos`: reads what the workers wrote down, replays the committed history
// serially, and compares. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/chaos_record.h"
#include "pliant/base/result.h"

namespace pliant::cli {

struct ChaosVerdict {
  uint64_t steps = 0;    // committed, counted once
  uint64_t commits = 0;  // records of all workers
  uint64_t epochs_complete = 0;
  // Commits of workers that were lost at once, and with them all who had committed the step: the
  // members of the next view run it again, as they may.
  uint64_t lost_commits = 0;
  std::vector<std::string> divergences;  // sentences, at most a few
};

struct ChaosJudge {
  uint64_t samples = 0;  // of an epoch
};

// The commits of each worker, by its pid, from the folder that they wrote to. A record that was
// being written when its worker died is left out.
Result<std::map<int, std::vector<ChaosRecord>>> read_chaos_records(const std::string& folder);

ChaosVerdict judge_chaos(const std::map<int, std::vector<ChaosRecord>>& workers,
                         const ChaosJudge& judge);

}  // namespace pliant::cli
