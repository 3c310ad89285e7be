// The training loop of a simulated worker: a small integer model, whose every bit the judge knows.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pliant/sim/worker.h"

namespace pliant::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Behind the gradients of each operation: how many samples, and whose. One bit a member.
constexpr size_t kTrailer = 4;
constexpr int kBitsEach = 60;
constexpr Duration kGoodbyeWait = milliseconds(300);

struct Slice {
  size_t begin = 0;
  size_t end = 0;
};

Slice slice(size_t model, int operations, int index) {
  const auto parts = static_cast<size_t>(operations);
  const auto at = static_cast<size_t>(index);
  return {model * at / parts, model * (at + 1) / parts};
}

// Adds the gradients of samples to an input, which may have those of others already.
void add_samples(Vector& input, const Slice& range, const Vector& state,
                 const std::vector<uint64_t>& samples, int member) {
  for (const uint64_t sample : samples)
    for (size_t i = range.begin; i < range.end; ++i)
      input[i - range.begin] += gradient(sample, i, state[i]);
  int64_t* const trailer = &input[range.end - range.begin];
  trailer[0] += static_cast<int64_t>(samples.size());
  PLIANT_CHECK(member < 3 * kBitsEach, "a history has a bounded number of members");
  trailer[1 + member / kBitsEach] = int64_t{1} << (member % kBitsEach);
}

std::set<int> contributors_of(const int64_t* trailer) {
  std::set<int> members;
  for (int bit = 0; bit < 3 * kBitsEach; ++bit)
    if ((trailer[1 + bit / kBitsEach] >> (bit % kBitsEach) & 1) != 0) members.insert(bit);
  return members;
}

std::span<std::byte> bytes_of(Vector& values) { return std::as_writable_bytes(std::span(values)); }

}  // namespace

void Worker::train() {
  // Who cannot open its session ends with an error.
  const int exit_code = join() ? train_steps() : 1;
  if (dead_) return;
  leave();
  if (dead_) return;
  around_.ended(*this, exit_code);
}

// Of an elastic job a newcomer meets the members before it is one of them.
bool Worker::join() {
  wait_until(Waiting::kTime, [&] { return first_view_.has_value() || !out_.ok(); });
  if (dead_ || !first_view_) return false;
  for (const pliant::Member& member : first_view_->members)
    if (member.id != id()) transport_->add_peer(member);
  executor_->install(first_view_->epoch, {});
  const View first = *std::exchange(first_view_, std::nullopt);
  enter_view(first);
  return true;
}

void Worker::leave() {
  std::vector<PeerId> peers;
  for (const PeerId peer : group_.members)
    if (peer != id()) peers.push_back(peer);
  executor_->cancel_all({Code::kCancelled, "the session ends", {}, {}});
  executor_->advance_all(time());
  executor_->say_goodbye(peers);
  const Instant give_up = time() + kGoodbyeWait;
  around_.world.timeline.at(give_up, [this] { deliver([] {}); });
  wait_until(Waiting::kTime, [&] { return executor_->goodbye_said() || time() >= give_up; });
}

int Worker::judge_end(const Error& error) {
  if (dead_) return 1;
  ++around_.world.ends[pliant::to_string(error.code)];
  around_.world.note(
      fmt::format("member {} ends: {}", pliant::to_string(id()), pliant::to_string(error)));
  if (error.code == Code::kCancelled) return 0;
  const bool all_gone = error.message.starts_with("the state is lost");
  if (error.code == Code::kInvalid && !damaged_ && !all_gone)
    around_.world.violate(Promise::kS2, fmt::format("member {} cannot go on: {}",
                                                    pliant::to_string(id()), error.message));
  // The coordinator is never away for as long as members wait for it.
  if (error.code != Code::kInvalid)
    around_.world.violate(Promise::kS7, fmt::format("member {} ends although a view could heal "
                                                    "it: {}",
                                                    pliant::to_string(id()), error.message));
  return 1;
}

// What the results of a step say about themselves.
Judge::Commit Worker::commit_of(const Steps& steps, const std::vector<Vector>& outputs) {
  Judge::Commit commit;
  commit.step = steps.committed();
  commit.reported_contributors = steps.contributors();
  commit.reported_samples = steps.contributed_samples();
  commit.batch = steps.step_batch();
  for (const uint64_t sample : steps.committed_samples()) commit.samples.insert(sample);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t* const trailer = &outputs[i][outputs[i].size() - kTrailer];
    if (i == 0) {
      commit.contributors = contributors_of(trailer);
      commit.counted_samples = static_cast<uint64_t>(trailer[0]);
    } else if (contributors_of(trailer) != commit.contributors) {
      around_.world.violate(
          Promise::kS3,
          fmt::format("the operations of step {} have different contributors", commit.step));
    }
    commit.result.insert(commit.result.end(), outputs[i].begin(),
                         outputs[i].end() - static_cast<std::ptrdiff_t>(kTrailer));
  }
  return commit;
}

// Computes, hands in and commits, as often as there are more samples.
Status Worker::train_step(Steps& steps, const Vector& state, std::vector<Vector>& inputs,
                          std::vector<Vector>& outputs) {
  const Scenario& scenario = around_.world.scenario;
  while (true) {
    sleep(around_.world.prng.duration(scenario.compute_min, scenario.compute_max));
    for (int i = 0; i < scenario.operations && !dead_; ++i) {
      const auto at = static_cast<size_t>(i);
      const Slice range = slice(scenario.model, scenario.operations, i);
      if (!steps.more()) inputs[at].assign(range.end - range.begin + kTrailer, 0);
      add_samples(inputs[at], range, state, steps.samples(), index_);
      outputs[at].assign(inputs[at].size(), 0);
      const Status handed =
          steps.all_reduce(fmt::format("gradient{}", i), inputs[at].data(), outputs[at].data(),
                           inputs[at].size(), DType::kI64, Op::kSum);
      PLIANT_CHECK(handed.ok() || dead_, "an input is handed in");
      dawdle();
    }
    Status done = steps.commit();
    if (dead_ || !done || !steps.more()) return done;
    ++around_.world.redealt;
    around_.judge.dealt_more(index_, steps.step_number(), steps.samples());
  }
}

int Worker::train_steps() {
  const Scenario& scenario = around_.world.scenario;
  Steps::Options options;
  options.elastic = true;
  steps_ = std::make_unique<Steps>(*this, id(), options);
  Steps& steps = *steps_;
  Vector state(scenario.model, 0);
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<int64_t>(i % 7);
  Vector counter(1, 0);
  const Status registered[] = {steps.register_state("model", bytes_of(state), DType::kI64),
                               steps.register_state("counter", bytes_of(counter), DType::kI64),
                               steps.use_sampler(scenario.sampler)};
  for (const Status& status : registered) PLIANT_CHECK(status.ok(), "the state is registered");
  std::vector<Vector> inputs(static_cast<size_t>(scenario.operations));
  std::vector<Vector> outputs(inputs.size());
  while (true) {
    // Everybody knows alike which batch the next step has; who joins now is told by the others.
    if (!scenario.scales_batch()) {
      const Status batch = steps.set_global_batch(scenario.batch_of(steps.committed() + 1));
      PLIANT_CHECK(batch.ok(), "a batch is set between two steps");
    }
    const auto begun = steps.begin();
    if (dead_) return 1;
    if (!begun) return judge_end(begun.error());
    if (!*begun) {
      ++around_.world.ends["out"];
      return 0;
    }
    around_.judge.begun(index_, steps.step_number(), steps.samples(), state);
    const Status done = train_step(steps, state, inputs, outputs);
    if (dead_) return 1;
    if (!done) return judge_end(done.error());
    const Judge::Commit commit = commit_of(steps, outputs);
    for (size_t i = 0; i < state.size(); ++i) state[i] += commit.result[i];
    ++counter[0];
    if (static_cast<uint64_t>(counter[0]) != commit.step)
      around_.world.violate(
          Promise::kS2, fmt::format("the small state of step {} says {}", commit.step, counter[0]));
    around_.judge.committed(index_, commit, state);
    if (around_.world.healed) ++committed_since_heal_;
  }
}

}  // namespace pliant::sim
