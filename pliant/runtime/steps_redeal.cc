// How a step keeps its global batch: the samples of members that are lost in the middle of it are
// dealt to the others, which add them before the step is run again.
//
// Why this is sound. Who follows the fate of a view makes the same redeal as everybody else who
// does, since all have the same reports and the same redeals before. Not all may get so far, and
// somebody who did may already be computing; so the next fate begins with the newest redeals that
// anybody has. Parts only grow, therefore whoever is behind has computed the first part of its
// share and lacks the rest, never something that it should not have. Results come about only by
// operations of one view, which everybody runs with exactly its share by the fate of that view.
// That is also why what a dead member left behind fits: it belongs to an operation of the view in
// which it died, and a view is part of an operation's key; after that it gets nothing more.
#include <algorithm>

#include "pliant/base/defect.h"
#include "pliant/runtime/steps.h"

namespace pliant {

const std::vector<PeerId>& Steps::dealt_to(const Fate& fate) const {
  if (open_ && open_->number == fate.open) return open_->dealt_to;
  return members_of_.at(fate.assigned_epoch);
}

Result<std::vector<Redeal>> Steps::learn_redeals(const Fate& fate) {
  if (!keeps_batch() || fate.open == 0 || fate.redeals == 0) return std::vector<Redeal>{};
  std::vector<Redeal> mine;
  if (redealt_.step == fate.open && open_ && open_->number == fate.open) mine = redealt_.all;
  if (fate.redealer < 0 || test_defect() == Defect::kRedealUnheard) return mine;
  const size_t members = dealt_to(fate).size();
  // Each redeal loses a member, so that there are no more of them.
  if (fate.redeals > members)
    return invalid("a step was dealt out more often than it has members: they are not of one job");
  const Group& world = ground_.world();
  std::vector<std::byte> bytes(fate.redeals * members);
  if (world.self == fate.redealer) bytes = encode(mine);
  const auto root = std::find(fate.with_state.begin(), fate.with_state.end(), fate.redealer);
  Operation tell;
  tell.collective = Collective::kBroadcast;
  tell.name = "pliant/redeals";
  tell.input = bytes.data();
  tell.output = bytes.data();
  tell.count = bytes.size();
  tell.dtype = DType::kU8;
  tell.root = static_cast<Rank>(root - fate.with_state.begin());
  PLIANT_TRY(ground_.run(tell, active_, nullptr));
  auto told = decode_redeals(bytes, fate.redeals, members);
  if (told &&
      !std::equal(mine.begin(), mine.end(), told->begin(),
                  told->begin() + static_cast<std::ptrdiff_t>(std::min(mine.size(), told->size()))))
    return invalid("a step was dealt out in two ways: they are not of one job");
  return told;
}

// Of the dead whose inputs everybody reaches: not those whose samples others have taken over.
std::vector<PeerId> Steps::counting_dead(const Fate& fate,
                                         const std::vector<Redeal>& redeals) const {
  std::vector<PeerId> counting;
  for (const PeerId peer : fate.left_behind) {
    const std::vector<PeerId>& members = open_->dealt_to;
    const auto at = std::find(members.begin(), members.end(), peer);
    if (at == members.end() || !is_lost(redeals, static_cast<size_t>(at - members.begin())))
      counting.push_back(peer);
  }
  return counting;
}

// Nothing in here can fail.
void Steps::redeal(const Fate& fate, std::vector<Redeal> redeals) {
  redealt_ = {};
  if (!keeps_batch() || fate.open == 0) return;
  redealt_.step = fate.open;
  redealt_.epoch = fate.redealt_epoch;
  const std::vector<PeerId>& members = dealt_to(fate);
  // Dead members count only if everybody is inside the step: left_behind_ is the same for all.
  if (auto next = redeal_lost(members, redeals, active_.members, left_behind_)) {
    redeals.push_back(std::move(*next));
    redealt_.epoch = number(ground_.view().epoch);
  }
  redealt_.all = std::move(redeals);
  if (!open_ || open_->number != fate.open) return;
  const auto at = std::find(members.begin(), members.end(), self_);
  if (at == members.end()) return;
  const auto self = static_cast<size_t>(at - members.begin());
  const uint64_t had = size_of(open_->draw.members[self]);
  for (size_t i = open_->redeals; i < redealt_.all.size(); ++i) apply(redealt_.all[i], open_->draw);
  open_->redeals = redealt_.all.size();
  if (test_defect() == Defect::kExtraSamplesSkipped) return;
  more_ = size_of(open_->draw.members[self]) > had;
  if (!more_) return;
  samples_ = sampler_->indices(open_->draw, self);
  samples_.erase(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(had));
}

}  // namespace pliant
