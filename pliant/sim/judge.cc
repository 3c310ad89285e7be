#include "pliant/sim/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace pliant::sim {

Judge::Judge(World& world) : world_(world) {
  root_.state.assign(world.scenario.model, 0);
  for (size_t i = 0; i < root_.state.size(); ++i) root_.state[i] = static_cast<int64_t>(i % 7);
  root_.consumed.assign(world.scenario.sampler.samples, false);
  by_step_[0].push_back(&root_);
}

Judge::~Judge() {
  // A long history would overflow the stack if nodes destroyed their children one inside the other.
  std::vector<std::unique_ptr<Node>> pending;
  const auto take = [&](Node& node) {
    for (auto& [key, child] : node.children) pending.push_back(std::move(child));
    node.children.clear();
  };
  take(root_);
  while (!pending.empty()) {
    const std::unique_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    take(*node);
  }
}

int Judge::enter(PeerId peer) {
  members_.push_back({peer, 0, nullptr, {}});
  return static_cast<int>(members_.size()) - 1;
}

std::string Judge::name(int member) const {
  return "member " + pliant::to_string(members_.at(static_cast<size_t>(member)).peer);
}

uint64_t Judge::committed_by(int member) const {
  const Node* const node = members_.at(static_cast<size_t>(member)).node;
  return node == nullptr ? 0 : node->step;
}

void Judge::published(const View& view) {
  const auto [at, fresh] = views_.try_emplace(number(view.epoch), view);
  if (!fresh && at->second != view)
    world_.violate(Promise::kS1, fmt::format("epoch {} has two views", number(view.epoch)));
  if (fresh && view.epoch <= newest_.epoch)
    world_.violate(Promise::kS1, fmt::format("epoch {} was decided after epoch {}",
                                             number(view.epoch), number(newest_.epoch)));
  if (view.epoch > newest_.epoch) newest_ = view;
}

void Judge::installed(int member, const View& view) {
  Known& known = members_.at(static_cast<size_t>(member));
  const uint32_t epoch = number(view.epoch);
  if (epoch <= known.epoch)
    world_.violate(Promise::kS1, fmt::format("{} installs epoch {} after epoch {}", name(member),
                                             epoch, known.epoch));
  known.epoch = epoch;
  const auto at = views_.find(epoch);
  if (at == views_.end() || at->second != view)
    world_.violate(Promise::kS1, fmt::format("{} installs a view of epoch {} that nobody decided",
                                             name(member), epoch));
  if (view.rank_of(known.peer) < 0)
    world_.violate(Promise::kS1,
                   fmt::format("{} installs epoch {}, which is without it", name(member), epoch));
}

const Judge::Node* Judge::find_state(uint64_t step, const Vector& state) const {
  for (const Known& known : members_)
    if (known.node != nullptr && known.node->step == step && newest_.rank_of(known.peer) >= 0 &&
        known.node->state == state)
      return known.node;
  const auto at = by_step_.find(step);
  if (at == by_step_.end()) return nullptr;
  // The newest first: that is where everybody is.
  for (auto node = at->second.rbegin(); node != at->second.rend(); ++node)
    if ((*node)->state == state) return *node;
  return nullptr;
}

void Judge::begun(int member, uint64_t step, const std::vector<uint64_t>& samples,
                  const Vector& state) {
  Known& known = members_.at(static_cast<size_t>(member));
  // Equal states may stand on several branches: stay on the own one.
  const bool same =
      known.node != nullptr && known.node->step + 1 == step && known.node->state == state;
  const Node* const node = same ? known.node : find_state(step - 1, state);
  if (node == nullptr) {
    world_.violate(Promise::kS2, fmt::format("{} begins step {} with a state that no committed "
                                             "history has after step {}",
                                             name(member), step, step - 1));
    return;
  }
  if (known.node != nullptr && known.node != node) {
    world_.violate(Promise::kS2,
                   fmt::format("{} begins step {} with another state than it had committed",
                               name(member), step));
    return;
  }
  known.node = node;
  known.begun.push_back({step, node, {samples}});
}

void Judge::dealt_more(int member, uint64_t step, const std::vector<uint64_t>& samples) {
  Known& known = members_.at(static_cast<size_t>(member));
  if (known.begun.empty() || known.begun.back().step != step || samples.empty() ||
      !world_.scenario.sampler.constant_batch)
    return world_.violate(Promise::kS5,
                          fmt::format("{} is dealt more samples of step {}, of which it has none",
                                      name(member), step));
  known.begun.back().samples.push_back(samples);
}

const Judge::Begun* Judge::find_begun(int member, uint64_t step) const {
  if (member < 0 || static_cast<size_t>(member) >= members_.size()) return nullptr;
  const Known& known = members_[static_cast<size_t>(member)];
  for (auto begun = known.begun.rbegin(); begun != known.begun.rend(); ++begun)
    if (begun->step == step) return &*begun;
  return nullptr;
}

// Those of the samples that were dealt to the contributors: of each the first part, and each
// further one if all of it is among them.
std::optional<std::set<uint64_t>> Judge::dealt_of(const Node& parent, const Parts& parts,
                                                  const std::string& who) {
  std::set<uint64_t> dealt;
  for (const int contributor : parts.first) {
    const Begun* const begun = find_begun(contributor, parent.step + 1);
    if (begun == nullptr || begun->node != &parent) {
      world_.violate(
          Promise::kS2,
          fmt::format("{} commits step {} with a part of {}, which {}", who, parent.step + 1,
                      contributor < static_cast<int>(members_.size()) ? name(contributor)
                                                                      : std::string("nobody"),
                      begun == nullptr ? "has not begun it" : "has begun it with another state"));
      return std::nullopt;
    }
    for (const std::vector<uint64_t>& part : begun->samples) {
      const bool counts =
          std::ranges::all_of(part, [&](uint64_t sample) { return parts.second.contains(sample); });
      if (&part != &begun->samples.front() && !counts) break;
      dealt.insert(part.begin(), part.end());
    }
  }
  return dealt;
}

// Where nothing is put off, a step has the same samples as in a job that nothing happens to.
bool Judge::has_whole_batch(const Node& node, const std::set<uint64_t>& samples) {
  SamplerOptions options = world_.scenario.sampler;
  options.global_batch = node.batch;
  options.batch_per_member = 0;
  const auto undisturbed =
      Sampler::make(options, {.epoch = node.epoch, .cursor = node.consumed_count});
  const std::vector<uint64_t> batch = undisturbed->indices(undisturbed->draw(1), 0);
  if (samples == std::set(batch.begin(), batch.end())) return true;
  world_.violate(Promise::kS5, fmt::format("step {} has samples {}; its batch is {}", node.step,
                                           fmt::join(samples, ","), fmt::join(batch, ",")));
  return false;
}

// What a step was dealt out by is a fact of the step, whatever view its members know.
bool Judge::has_batch(const Commit& commit, const std::string& who) {
  const Scenario& scenario = world_.scenario;
  const bool fits = scenario.scales_batch() ? commit.batch % scenario.sampler.batch_per_member == 0
                                            : commit.batch == scenario.batch_of(commit.step);
  if (!fits || commit.batch < commit.samples.size())
    world_.violate(Promise::kS5,
                   fmt::format("{} is told of a batch of {} in step {}, which has {} samples", who,
                               commit.batch, commit.step, commit.samples.size()));
  return world_.violations.empty();
}

bool Judge::consume(Node& node, const std::set<uint64_t>& samples) {
  if (world_.scenario.sampler.constant_batch && !has_whole_batch(node, samples)) return false;
  for (const uint64_t sample : samples) {
    if (node.consumed.at(sample)) {
      world_.violate(Promise::kS5,
                     fmt::format("step {} uses sample {}, which an earlier step of "
                                 "the same epoch has used; {} of {} are used",
                                 node.step, sample, node.consumed_count, node.consumed.size()));
      return false;
    }
    node.consumed[sample] = true;
    ++node.consumed_count;
  }
  if (node.consumed_count < node.consumed.size()) return true;
  ++node.epoch;
  node.consumed.assign(node.consumed.size(), false);
  node.consumed_count = 0;
  return true;
}

// The step from `parent` by these contributors, computed serially.
Judge::Node* Judge::replay(Node& parent, const Commit& commit, const std::string& who) {
  const Parts parts{commit.contributors, commit.samples};
  if (const auto at = parent.children.find(parts); at != parent.children.end()) {
    if (at->second->batch == commit.batch) return at->second.get();
    world_.violate(Promise::kS2, fmt::format("{} is told of a batch of {} in step {}, others of {}",
                                             who, commit.batch, commit.step, at->second->batch));
    return nullptr;
  }
  if (!has_batch(commit, who)) return nullptr;
  const auto dealt = dealt_of(parent, parts, who);
  if (!dealt) return nullptr;
  if (*dealt != parts.second) {
    world_.violate(
        Promise::kS3,
        fmt::format("{} is told that step {} has samples {}; its contributors had {}", who,
                    parent.step + 1, fmt::join(parts.second, ","), fmt::join(*dealt, ",")));
    return nullptr;
  }
  auto node = std::make_unique<Node>();
  node->parent = &parent;
  node->step = parent.step + 1;
  node->batch = commit.batch;
  node->state = parent.state;
  node->epoch = parent.epoch;
  node->consumed = parent.consumed;
  node->consumed_count = parent.consumed_count;
  for (const uint64_t sample : *dealt)
    for (size_t i = 0; i < node->state.size(); ++i)
      node->state[i] += gradient(sample, i, parent.state[i]);
  if (!consume(*node, *dealt)) return nullptr;
  by_step_[node->step].push_back(node.get());
  ++steps_;
  return parent.children.emplace(parts, std::move(node)).first->second.get();
}

void Judge::committed(int member, const Commit& commit, const Vector& state_after) {
  ++commits_;
  Known& known = members_.at(static_cast<size_t>(member));
  const std::string who = name(member);
  if (known.node == nullptr || commit.step != known.node->step + 1)
    return world_.violate(Promise::kS2,
                          fmt::format("{} commits step {} out of order", who, commit.step));
  const auto reported = static_cast<size_t>(commit.reported_contributors);
  if (commit.contributors.size() != reported)
    world_.violate(Promise::kS3,
                   fmt::format("{} is told of {} contributors to step {}; the result "
                               "has parts of {}",
                               who, reported, commit.step, fmt::join(commit.contributors, ",")));
  if (commit.counted_samples != commit.reported_samples)
    world_.violate(Promise::kS3,
                   fmt::format("{} is told of {} samples in step {}; the result has "
                               "{}",
                               who, commit.reported_samples, commit.step, commit.counted_samples));
  if (commit.samples.size() != commit.reported_samples)
    world_.violate(Promise::kS5,
                   fmt::format("{} is told of {} samples in step {}, {} of them different", who,
                               commit.reported_samples, commit.step, commit.samples.size()));
  if (!world_.violations.empty()) return;
  auto* const parent = const_cast<Node*>(known.node);
  const Node* const node = replay(*parent, commit, who);
  if (node == nullptr) return;
  for (size_t i = 0; i < commit.result.size(); ++i)
    if (commit.result[i] != node->state[i] - parent->state[i])
      return world_.violate(
          Promise::kS3, fmt::format("{} commits step {} of members {}: element {} of the result is "
                                    "{}, the reference {}",
                                    who, commit.step, fmt::join(commit.contributors, ","), i,
                                    commit.result[i], node->state[i] - parent->state[i]));
  if (state_after != node->state)
    return world_.violate(Promise::kS2, fmt::format("{} has another state than the replay of step "
                                                    "{}",
                                                    who, commit.step));
  known.node = node;
  compare_with_view(member, *node);
}

// Members of the newest view that have got as far must have got there the same way.
void Judge::compare_with_view(int member, const Node& node) {
  if (newest_.rank_of(members_[static_cast<size_t>(member)].peer) < 0) return;
  for (const Known& other : members_) {
    const Node* theirs = other.node;
    if (theirs == nullptr || theirs->step < node.step || newest_.rank_of(other.peer) < 0) continue;
    while (theirs->step > node.step) theirs = theirs->parent;
    if (theirs == &node) continue;
    return world_.violate(
        Promise::kS2,
        fmt::format("{} and member {} are in epoch {} and have committed step {} "
                    "with different contributors or samples",
                    name(member), pliant::to_string(other.peer), number(newest_.epoch), node.step));
  }
}

}  // namespace pliant::sim
