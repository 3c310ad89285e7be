// Many histories, and what came out of them all. Values; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/defect.h"
#include "pliant/sim/history.h"

namespace pliant::sim {

struct CampaignOptions {
  uint64_t first_seed = 1;
  uint64_t last_seed = 1;
  uint32_t members = 0;  // 0: drawn
  uint64_t steps = 5;
  // For each seed: without faults once, then once for each delivery with a kill exactly before it.
  bool sweep = false;
  bool calm = false;                     // no faults
  std::optional<uint64_t> kill_at = {};  // one of a sweep alone
  Defect defect = Defect::kNone;
  bool stop_at_first = false;
};

struct Failure {
  HistoryResult history;
  std::string command;  // runs this history again
};

struct CampaignResult {
  uint64_t histories = 0;
  uint64_t steps = 0;
  uint64_t commits = 0;
  uint64_t deliveries = 0;
  uint64_t redealt = 0;    // commits that asked a member for more samples
  uint64_t handed_on = 0;  // results that a member took from another of its host
  uint64_t epochs = 0;
  std::map<std::string, uint64_t> faults;      // by kind
  std::map<std::string, uint64_t> ends;        // of training loops, by the reason
  std::map<std::string, uint64_t> violations;  // by promise; those that are checked are all there
  std::vector<uint64_t> failed_seeds;
  std::vector<Failure> failures;  // the first few
};

// `on_failure` is called for each history that breaks a promise.
CampaignResult run_campaign(const CampaignOptions& options,
                            const std::function<void(const Failure&)>& on_failure);

std::string to_json(const CampaignResult& result);

}  // namespace pliant::sim
