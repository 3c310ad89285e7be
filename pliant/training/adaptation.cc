#include "pliant/training/adaptation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "pliant/collective/strategy.h"

namespace pliant {
namespace {

// A proposal is lost while the coordinator is away; it costs nothing to make it again.
constexpr uint64_t kProposeAgainSteps = 100;
constexpr size_t kTopologyBytesMax = size_t{1} << 20;
constexpr uint8_t kNoSynchronisation = UINT8_MAX;

}  // namespace

Adaptation::Adaptation(Session& session, Monitor& monitor, Policies policies,
                       AdaptationOptions options)
    : session_(session),
      monitor_(monitor),
      policies_(std::move(policies)),
      options_(std::move(options)) {}

Result<std::unique_ptr<Adaptation>> Adaptation::make(Session& session, Monitor& monitor,
                                                     Policies policies, AdaptationOptions options) {
  std::unique_ptr<Adaptation> adaptation(
      new Adaptation(session, monitor, std::move(policies), std::move(options)));
  for (size_t i = 0; i < adaptation->policies_.size(); ++i) {
    Policy& policy = *adaptation->policies_[i];
    const std::span<std::byte> state = policy.state();
    if (!state.empty())
      PLIANT_TRY(
          session.register_state(fmt::format("pliant/policy/{}/{}", i, policy.name()), state));
  }
  PLIANT_TRY(session.register_note(
      "pliant/adaptation", [raw = adaptation.get()] { return raw->pack(); },
      [raw = adaptation.get()](Bytes bytes) { return raw->adopt(bytes); }));
  return adaptation;
}

std::vector<std::byte> Adaptation::pack() const {
  Writer writer;
  writer.put(static_cast<uint32_t>(policies_.size()));
  for (const auto& policy : policies_) writer.put_string(policy->name());
  writer.put(static_cast<uint8_t>(now_.train_began ? 1 : 0));
  writer.put(now_.epochs_begun);
  writer.put(now_.wanted_members);
  writer.put_string(now_.wanted_topology);
  writer.put(now_.wanted_measurements);
  writer.put(now_.wanted_batch);
  writer.put(now_.decided_batch);
  writer.put(now_.learning_rate_factor);
  writer.put(now_.synchronisation ? static_cast<uint8_t>(*now_.synchronisation)
                                  : kNoSynchronisation);
  writer.put(static_cast<uint8_t>(now_.stopped ? 1 : 0));
  writer.put(now_.decisions);
  return writer.bytes();
}

Status Adaptation::adopt(Bytes bytes) {
  Reader reader(bytes);
  const auto policies = reader.take<uint32_t>();
  bool same = policies == policies_.size();
  for (uint32_t i = 0; i < policies && reader.ok(); ++i) {
    const std::string name = reader.take_string(256);
    same = same && name == policies_[i]->name();
  }
  if (!same) return invalid("this worker cannot join: its policies are not those of the others");
  Now theirs;
  theirs.train_began = reader.take<uint8_t>() != 0;
  theirs.epochs_begun = reader.take<uint64_t>();
  theirs.wanted_members = reader.take<int>();
  theirs.wanted_topology = reader.take_string(kTopologyBytesMax);
  theirs.wanted_measurements = reader.take<uint64_t>();
  theirs.wanted_batch = reader.take<uint64_t>();
  theirs.decided_batch = reader.take<uint64_t>();
  theirs.learning_rate_factor = reader.take<double>();
  const auto synchronisation = reader.take<uint8_t>();
  if (synchronisation <= static_cast<uint8_t>(Synchronisation::kPairAveraging))
    theirs.synchronisation = static_cast<Synchronisation>(synchronisation);
  theirs.stopped = reader.take<uint8_t>() != 0;
  theirs.decisions = reader.take<uint64_t>();
  if (!reader.finished()) return invalid("what the job's policies have decided cannot be read");
  now_ = std::move(theirs);
  return {};
}

// ---- A step -----------------------------------------------------------------------------------

Status Adaptation::begin(Step& step) {
  decided_ = {};
  if (!now_.train_began) {
    now_.train_began = true;
    consult(&Policy::before_train);
  }
  const uint64_t epochs = session_.data_epoch() + 1;
  if (now_.epochs_begun < epochs) {
    now_.epochs_begun = epochs;
    consult(&Policy::before_epoch);
  }
  consult(&Policy::before_step);
  return carry_out(step);
}

Status Adaptation::committed() {
  decided_ = {};
  const Signals& signals = monitor_.signals();
  if (signals.members == now_.wanted_members) now_.wanted_members = 0;
  // Somebody could not do its part, so that nobody did: it is given up by all.
  if (monitor_.refused()) {
    now_.wanted_topology.clear();
    now_.wanted_measurements = 0;
  }
  consult(&Policy::after_step);
  if (session_.data_epoch() != signals.data_epoch) consult(&Policy::after_epoch);
  propose();
  return set_batch();
}

void Adaptation::finish() {
  decided_ = {};
  consult(&Policy::after_train);
  if (now_.stopped) session_.finish_steps();
}

std::optional<uint64_t> Adaptation::global_batch() const {
  if (now_.decided_batch == 0) return std::nullopt;
  return now_.decided_batch;
}

std::optional<Synchronisation> Adaptation::take_synchronisation() {
  return std::exchange(now_.synchronisation, std::nullopt);
}

// ---- Decisions --------------------------------------------------------------------------------

void Adaptation::consult(Hook hook) {
  for (const auto& policy : policies_) {
    const Decision decision = (policy.get()->*hook)(monitor_.signals());
    if (!decision.empty()) take(policy->name(), decision);
  }
}

void Adaptation::take(std::string_view policy, const Decision& decision) {
  std::vector<std::string> changes;
  if (decision.members && first(policy, decided_.members, "the number of members"))
    changes.push_back(take_members(policy, *decision.members));
  if (decision.global_batch && first(policy, decided_.global_batch, "the global batch"))
    changes.push_back(take_batch(*decision.global_batch));
  if (decision.learning_rate_factor &&
      first(policy, decided_.learning_rate_factor, "the learning rate") &&
      *decision.learning_rate_factor != now_.learning_rate_factor) {
    changes.push_back(fmt::format("learning rate x {:g}", *decision.learning_rate_factor));
    now_.learning_rate_factor = *decision.learning_rate_factor;
  }
  if (decision.synchronisation &&
      first(policy, decided_.synchronisation, "the way of synchronisation"))
    changes.push_back(take_synchronisation(*decision.synchronisation));
  if (decision.topology && first(policy, decided_.topology, "the topology"))
    changes.push_back(take_topology(policy, *decision.topology));
  if (decision.measure_links && now_.wanted_measurements <= session_.links_measured()) {
    now_.wanted_measurements = session_.links_measured() + 1;
    changes.push_back("measures the links");
  }
  if (decision.stop && !now_.stopped) {
    now_.stopped = true;
    changes.push_back("stop");
  }
  std::erase(changes, "");
  if (changes.empty()) return;
  ++now_.decisions;
  say(fmt::format("after step {}: policy {}: {}: {}", monitor_.signals().step, policy,
                  fmt::join(changes, ", "),
                  decision.reason.empty() ? "it gives no reason" : decision.reason));
}

bool Adaptation::first(std::string_view policy, std::string_view& owner, const char* what) {
  if (owner.empty() || owner == policy) {
    owner = policy;
    return true;
  }
  say_once(fmt::format("policies {} and {} both decide {}: the first in the list has its way",
                       owner, policy, what));
  return false;
}

std::string Adaptation::take_members(std::string_view policy, int members) {
  if (!session_.elastic()) {
    say_once(
        fmt::format("policy {} wants {} members, but the job is not elastic: start it with "
                    "pliant run --min or --max",
                    policy, members));
    return "";
  }
  const SizeLimits limits = session_.size_limits();
  const int most = limits.members_max > 0 ? limits.members_max : std::max(members, 1);
  const int clipped = std::clamp(members, limits.members_min, std::max(most, limits.members_min));
  if (clipped != members)
    say_once(fmt::format("policy {} wants {} members, and the job takes {} to {}: {} it is", policy,
                         members, limits.members_min, most, clipped));
  const int present = monitor_.signals().members;
  const int wanted = now_.wanted_members == 0 ? present : now_.wanted_members;
  if (clipped == wanted) return "";
  now_.wanted_members = clipped;
  return fmt::format("members {} -> {}", present, clipped);
}

std::string Adaptation::take_batch(uint64_t samples) {
  const uint64_t present = session_.data_position().global_batch;
  const uint64_t wanted = now_.wanted_batch != 0    ? now_.wanted_batch
                          : now_.decided_batch != 0 ? now_.decided_batch
                                                    : present;
  if (samples == wanted) return "";
  now_.wanted_batch = samples;
  return fmt::format("global batch {} -> {}", wanted, samples);
}

std::string Adaptation::take_topology(std::string_view policy, const std::string& topology) {
  const auto strategy = parse_strategy(topology);
  if (!strategy) {
    say_once(fmt::format("policy {}: {}", policy, strategy.error().message));
    return "";
  }
  const std::string text = to_string(*strategy);
  const std::string present = session_.strategy();
  if (text == (now_.wanted_topology.empty() ? present : now_.wanted_topology)) return "";
  now_.wanted_topology = text;
  return fmt::format("topology {} -> {}", present, text);
}

std::string Adaptation::take_synchronisation(Synchronisation synchronisation) {
  const Synchronisation present = monitor_.signals().synchronisation;
  if (synchronisation == now_.synchronisation.value_or(present)) return "";
  now_.synchronisation = synchronisation;
  return fmt::format("synchronisation {} -> {}", to_string(present), to_string(synchronisation));
}

// ---- Carrying out -----------------------------------------------------------------------------

// Everybody who begins the step here compares the same values, so all make the same calls.
Status Adaptation::carry_out(Step& step) {
  if (!step.begun_by_all()) return {};
  if (now_.wanted_topology == session_.strategy()) now_.wanted_topology.clear();
  if (!now_.wanted_topology.empty()) {
    const Status switched = session_.set_strategy(now_.wanted_topology);
    PLIANT_TRY(finish_collective(switched, "the topology is not switched"));
    // The links are measured by the next step then.
    if (!switched.ok()) return {};
  }
  if (now_.wanted_measurements > session_.links_measured()) {
    const Instant began = now();
    const Status measured = session_.measure_links();
    if (measured.ok()) measure_seconds_ = seconds(now() - began);
    return finish_collective(measured, "the links are not measured");
  }
  return {};
}

Status Adaptation::finish_collective(const Status& status, const char* what) {
  if (status.ok()) return {};
  if (next_view_heals(status.error())) return {};
  if (status.code() != Code::kInvalid) return status.error();
  // The others may have been interrupted before they knew: the step tells them.
  monitor_.refuse();
  say_once(fmt::format("{}: {}", what, status.error().message));
  return {};
}

void Adaptation::propose() {
  if (now_.wanted_members == 0 || session_.rank() != 0) return;
  const uint64_t step = monitor_.signals().step;
  if (proposed_ == now_.wanted_members && step < proposed_at_ + kProposeAgainSteps) return;
  proposed_ = now_.wanted_members;
  proposed_at_ = step;
  if (const Status told = session_.propose_size(proposed_); !told) say_once(told.error().message);
}

Status Adaptation::set_batch() {
  const uint64_t wanted = std::exchange(now_.wanted_batch, 0);
  if (wanted == 0) return {};
  now_.decided_batch = wanted;
  if (session_.data_position().samples == 0) return {};
  const Status set = session_.set_global_batch(wanted);
  if (!set) say_once(fmt::format("the global batch stays: {}", set.error().message));
  return {};
}

void Adaptation::say(const std::string& line) const {
  if (session_.rank() != 0) return;
  if (options_.say) return options_.say(line);
  std::fprintf(stderr, "[pliant] %s\n", line.c_str());
}

void Adaptation::say_once(const std::string& line) {
  if (line == last_complaint_) return;
  last_complaint_ = line;
  say(line);
}

}  // namespace pliant
