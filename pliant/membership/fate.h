// The fate of an open step when the view changes: what every member of the new view concludes from
// the same reports. Pure; values; any thread.
//
// A member reports how far it is; all exchange their reports in the new view, so all decide alike:
//   - a step that somebody has committed is committed by all: who has its results gives them to
//     those that miss them (roll forward);
//   - otherwise it is run again from the inputs that everybody kept (roll back). Inputs of members
//     that died after they had handed everything in still count if every member can reach them;
//   - if such a step is to keep its global batch, what the lost members were to compute is dealt
//     out again (data/redeal.h); who has missed an earlier redeal of the step is told of it first;
//   - a change of the settings that only some members have made, because a loss came between, is
//     made by all;
//   - members without state (newcomers, or all but the first when a job begins) wait for the state
//     until nobody is inside a step any more.
// Committed steps of two members with state differ by one at most: to finish step k+1 everybody
// must have begun it, and so have finished step k.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"

namespace pliant {

// Dead members whose inputs a report can mention.
inline constexpr size_t kLeftBehindMax = 6;

// What one member says. Fixed in size, so that all of them are one small all_gather.
struct StepReport {
  uint64_t committed = 0;       // the newest step that this member has committed; 0: none
  uint64_t open = 0;            // the step that it has begun; 0: it is between steps
  uint32_t assigned_epoch = 0;  // the view by which the open step's samples were dealt out
  // kFresh: the state that it began with. kSpoiled: less, a part of what others had.
  static constexpr uint32_t kFresh = 0;
  static constexpr uint32_t kState = 1;
  static constexpr uint32_t kSpoiled = 2;
  uint32_t has_state = kFresh;
  uint64_t left_behind[kLeftBehindMax] = {};  // packed PeerIds, ascending; 0: none
  // The view by whose reports the open step's samples were last redealt, and how often they were.
  // Members with the same view here have made the same redeals.
  uint32_t redealt_epoch = 0;
  uint32_t redeals = 0;
  uint64_t settings = 0;  // how often what all plan by was changed, as far as this member knows

  bool operator==(const StepReport&) const = default;
};
static_assert(sizeof(StepReport) == 40 + 8 * kLeftBehindMax);

struct Fate {
  std::vector<Rank> with_state;  // of the new view, ascending: they go on with the training
  uint64_t committed = 0;        // the newest step that counts
  // Roll forward: rank `holder` gives the results of step `committed` to these.
  Rank holder = -1;
  std::vector<Rank> behind;
  // The open step is run again by all with state: its samples stay dealt out as by this view.
  uint64_t open = 0;  // 0: nobody is inside a step
  uint32_t assigned_epoch = 0;
  std::vector<PeerId> left_behind;  // whose inputs count although they are dead
  // The redeals of the open step that have been made. Each was made by somebody who knew those
  // before it, so whoever knows the newest knows all.
  uint32_t redealt_epoch = 0;  // of the newest; 0: there were none
  uint32_t redeals = 0;
  Rank redealer = -1;  // who tells all others with state; -1: everybody knows
  Rank settler = -1;   // who tells all others its settings, the newest; -1: everybody has them
  // Who has no state gets it before this step begins.
  uint64_t sync_before = 0;
};

// The index of a report is the rank. An error names a rank that cannot belong to this job.
Result<Fate> decide_fate(std::span<const StepReport> reports);

}  // namespace pliant
