// Which samples a step has: the sampler's part of the steps.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "pliant/runtime/steps.h"

namespace pliant {
namespace {

// Commits a draw as if nobody were lost.
void commit_all(Sampler& sampler, const Draw& draw) {
  const std::unique_ptr<bool[]> all = std::make_unique<bool[]>(draw.members.size());
  std::fill_n(all.get(), draw.members.size(), true);
  sampler.commit(draw, {all.get(), draw.members.size()});
}

}  // namespace

Status Steps::use_sampler(const SamplerOptions& options) {
  if (agreed_) return invalid("a sampler is chosen before the first step");
  auto sampler = Sampler::make(options);
  if (!sampler) return sampler.error();
  sampler_ = std::move(*sampler);
  return {};
}

// Everybody makes the call between the same two steps, and before it shows up for newcomers: so the
// draw of a step that some have begun in an older view is the same for those who begin it later,
// and newcomers are given the new batch.
Status Steps::set_global_batch(uint64_t samples) {
  if (!sampler_) return invalid("the global batch is that of a sampler; call use_sampler() first");
  if (open_)
    return invalid(fmt::format(
        "the global batch is set between two steps; step {} was begun and not committed",
        open_->number));
  return sampler_->set_global_batch(samples);
}

DataPosition Steps::data_position() const {
  if (!sampler_) return {};
  const SamplerOptions& options = sampler_->options();
  const auto members = static_cast<uint64_t>(std::max(1, ground_.world().size()));
  return {.epoch = sampler_->state().epoch,
          .consumed = sampler_->state().consumed_in_epoch(),
          .samples = options.samples,
          .global_batch = options.batch_of(members)};
}

UpcomingSamples Steps::upcoming_samples(size_t steps_ahead) const {
  UpcomingSamples upcoming;
  const auto& members = ground_.world().members;
  const auto self = std::find(members.begin(), members.end(), self_);
  if (!sampler_ || steps_ahead == 0 || self == members.end()) return upcoming;
  Sampler sampler = *sampler_;
  if (open_) commit_all(sampler, open_->draw);
  const auto size = static_cast<int>(members.size());
  for (size_t step = 1; step < steps_ahead && !sampler.done(); ++step)
    commit_all(sampler, sampler.draw(size));
  const Draw draw = sampler.draw(size);
  upcoming.epoch = draw.epoch;
  upcoming.samples = sampler.indices(draw, static_cast<size_t>(self - members.begin()));
  return upcoming;
}

// By the view in which the step was first begun, also if a later one has taken its place: everybody
// deals alike, and what a lost member was to do is found again.
void Steps::deal_samples() {
  samples_.clear();
  open_->dealt_to = members_of_.at(open_->assigned_epoch);
  open_->draw = sampler_->draw(static_cast<int>(open_->dealt_to.size()));
  open_->batch = sampler_->options().batch_of(open_->dealt_to.size());
  // Others have begun it before, and lost members since.
  if (redealt_.step == open_->number)
    for (; open_->redeals < redealt_.all.size(); ++open_->redeals)
      apply(redealt_.all[open_->redeals], open_->draw);
  const auto at = std::find(open_->dealt_to.begin(), open_->dealt_to.end(), self_);
  if (at == open_->dealt_to.end()) return;
  samples_ = sampler_->indices(open_->draw, static_cast<size_t>(at - open_->dealt_to.begin()));
}

std::vector<uint64_t> Steps::committed_samples() const {
  std::vector<uint64_t> all;
  if (!sampler_) return all;
  for (size_t i = 0; i < last_draw_.members.size(); ++i) {
    if (contributed_[i] == 0) continue;
    const std::vector<uint64_t> part = sampler_->indices(last_draw_, i);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Of a deliberate defect alone.
void Steps::skip_samples_of_open_step() {
  if (!sampler_ || sampler_->state().epoch != open_->draw.epoch) return;
  commit_all(*sampler_, open_->draw);
  open_->draw = sampler_->draw(static_cast<int>(open_->dealt_to.size()));
}

}  // namespace pliant
