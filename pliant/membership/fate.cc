#include "pliant/membership/fate.h"

#include <fmt/format.h>

#include <algorithm>

namespace pliant {
namespace {

// Those that every member inside the step can reach; one that is not inside it cannot tell.
std::vector<PeerId> common_left_behind(std::span<const StepReport> reports,
                                       const std::vector<Rank>& with_state, uint64_t open) {
  std::vector<PeerId> common;
  const StepReport& first = reports[static_cast<size_t>(with_state.front())];
  for (const uint64_t packed : first.left_behind) {
    if (packed == 0) continue;
    const bool everywhere = std::all_of(with_state.begin(), with_state.end(), [&](Rank rank) {
      const StepReport& report = reports[static_cast<size_t>(rank)];
      return report.open == open &&
             std::find(std::begin(report.left_behind), std::end(report.left_behind), packed) !=
                 std::end(report.left_behind);
    });
    if (everywhere) common.push_back(PeerId::unpack(packed));
  }
  std::sort(common.begin(), common.end());
  return common;
}

// Who has the newest redeal of the open step, and whether somebody lacks it.
void find_redealer(std::span<const StepReport> reports, Fate& fate) {
  Rank newest = -1;
  for (const Rank rank : fate.with_state) {
    const StepReport& report = reports[static_cast<size_t>(rank)];
    if (report.open != fate.open || report.redealt_epoch <= fate.redealt_epoch) continue;
    newest = rank;
    fate.redealt_epoch = report.redealt_epoch;
    fate.redeals = report.redeals;
  }
  const bool known = std::all_of(fate.with_state.begin(), fate.with_state.end(), [&](Rank rank) {
    const StepReport& report = reports[static_cast<size_t>(rank)];
    return report.open == fate.open && report.redealt_epoch == fate.redealt_epoch;
  });
  if (!known) fate.redealer = newest;
}

// Settings change together, so that members differ by one change at most, and who has the later
// ones has what all had agreed on.
Rank find_settler(std::span<const StepReport> reports) {
  const auto [oldest, newest] = std::minmax_element(
      reports.begin(), reports.end(), [](const StepReport& left, const StepReport& right) {
        return left.settings < right.settings;
      });
  if (oldest->settings == newest->settings) return -1;
  return static_cast<Rank>(newest - reports.begin());
}

}  // namespace

Result<Fate> decide_fate(std::span<const StepReport> reports) {
  PLIANT_CHECK(!reports.empty(), "a view has members");
  Fate fate;
  for (size_t rank = 0; rank < reports.size(); ++rank)
    if (reports[rank].has_state == StepReport::kState)
      fate.with_state.push_back(static_cast<Rank>(rank));
  // A job begins with the state of its first member.
  for (size_t rank = 0; rank < reports.size() && fate.with_state.empty(); ++rank)
    if (reports[rank].has_state == StepReport::kFresh)
      fate.with_state.push_back(static_cast<Rank>(rank));
  if (fate.with_state.empty())
    return invalid("the state is lost: all members that had it are gone, and nobody got all of it");
  for (const Rank rank : fate.with_state) {
    const StepReport& report = reports[static_cast<size_t>(rank)];
    if (report.committed > fate.committed || fate.holder < 0) {
      fate.committed = report.committed;
      fate.holder = rank;
    }
  }
  for (const Rank rank : fate.with_state) {
    const StepReport& report = reports[static_cast<size_t>(rank)];
    if (report.committed + 1 < fate.committed)
      return invalid(fmt::format(
          "rank {} has committed step {} and rank {} only step {}: they are not of one job",
          fate.holder, fate.committed, rank, report.committed));
    if (report.committed < fate.committed) fate.behind.push_back(rank);
    if (report.open == fate.committed + 1) {
      fate.open = report.open;
      fate.assigned_epoch = std::max(fate.assigned_epoch, report.assigned_epoch);
    }
  }
  if (fate.open != 0) {
    fate.left_behind = common_left_behind(reports, fate.with_state, fate.open);
    find_redealer(reports, fate);
  }
  fate.settler = find_settler(reports);
  fate.sync_before = fate.committed + (fate.open != 0 ? 2 : 1);
  return fate;
}

}  // namespace pliant
