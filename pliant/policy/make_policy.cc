#include "pliant/policy/make_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "pliant/policy/add_while_faster.h"
#include "pliant/policy/batch_by_noise.h"
#include "pliant/policy/best_size.h"
#include "pliant/policy/option_text.h"
#include "pliant/policy/size_schedule.h"
#include "pliant/policy/synchronisation_by_size.h"
#include "pliant/policy/topology_by_interference.h"

namespace pliant {
namespace {

using Made = Result<std::unique_ptr<Policy>>;
using Fields = std::vector<OptionField>;

constexpr double kMembersMost = 1 << 20;
constexpr double kStepsMost = 1e15;

template <typename Enum>
ChoiceField choice(Enum& field, std::vector<std::string_view> words) {
  static_assert(sizeof(Enum) == 1);
  return {reinterpret_cast<uint8_t*>(&field), std::move(words)};
}

Fields fields_of(BestSizeOptions& o) {
  return {
      {"min", &o.members_min, 1, kMembersMost, "members, at least"},
      {"max", &o.members_max, 1, kMembersMost, "members, at most"},
      {"price", &o.price, 0, 1e6, "what a member must add, in shares of one at the first size"},
      {"revocations", &o.revocations_per_hour, -1, 1e6,
       "of a member in an hour; -1: as measured from losses"},
      {"repair", &o.repair_seconds, 0, 1e6, "seconds a revocation costs; 0: as a resize"},
      {"resize", &o.resize_seconds, 0, 1e6, "seconds a resize costs, until one was measured"},
      {"horizon", &o.horizon_seconds, 1, 1e9, "seconds within which a resize must have paid"},
      {"patience", &o.patience_seconds, 1, 1e6, "seconds to wait for members that were asked for"},
      {"window", &o.window, 2, 1e6, "steps of a measurement, at least"},
      {"precision", &o.precision, 0.001, 1, "relative error at which a measurement is complete"},
      {"confidence", &o.confidence, 0, 10, "standard errors that a gain must have"},
      {"drift", &o.drift, 0.1, 0.99, "share of the predicted throughput that opens the search"},
  };
}

Fields fields_of(AddWhileFasterOptions& o) {
  return {
      {"max", &o.members_max, 1, kMembersMost, "members, at most"},
      {"alpha", &o.alpha, 0, 1e3, "one more is added while n give 1 + alpha/n times as much"},
      {"window", &o.window, 2, 1e6, "steps between two comparisons"},
  };
}

Fields fields_of(BatchByNoiseOptions& o) {
  return {
      {"min", &o.batch_min, 1, kStepsMost, "global batch, at least"},
      {"max", &o.batch_max, 1, kStepsMost, "global batch, at most"},
      {"ratio", &o.ratio, 1e-6, 1e6, "wanted batch over the noise scale"},
      {"patience", &o.patience, 1, 1e6, "steps that must ask for it in a row"},
      {"rule", choice(o.rule, {"none", "linear", "sqrt"}), 0, 0,
       "how the learning rate follows: none, linear, sqrt"},
  };
}

Fields fields_of(SynchronisationBySizeOptions& o) {
  const std::vector<std::string_view> ways = {"synchronous", "model_averaging", "pair_averaging"};
  return {
      {"synchronous", &o.synchronous_max, 0, kMembersMost, "members up to which it is synchronous"},
      {"model_averaging", &o.model_averaging_max, 0, kMembersMost,
       "members up to which models are averaged; pairs beyond"},
      {"slack", &o.slack, 0, kMembersMost, "members below a limit at which it goes back"},
      {"congestion", &o.congestion, 0, 1, "share of waiting that loosens it; 0: never"},
      {"window", &o.window, 1, 1e6, "steps over which waiting is measured"},
      {"change_step", &o.change_step, 0, kStepsMost, "change at this step instead; 0: by size"},
      {"before", choice(o.before, ways), 0, 0, "the way before change_step"},
      {"after", choice(o.after, ways), 0, 0, "the way from change_step on"},
  };
}

Fields fields_of(TopologyByInterferenceOptions& o) {
  return {
      {"threshold", &o.threshold, 0.05, 0.99, "share of the usual throughput that is too little"},
      {"window", &o.window, 1, TopologyByInterference::kWindowMax, "steps, of which most decide"},
      {"share", &o.share_min, 0, 1, "share of the step that waiting must have to matter"},
      {"back_off", &o.back_off, 1, 1e6, "steps until it looks whether the interference is over"},
      {"back_off_max", &o.back_off_max, 1, 1e6, "steps between two looks, at most"},
      {"fallback", WordsField{&o.fallbacks}, 0, 0, "topologies to take in turn, as in auto|star@1"},
  };
}

// What no single field can see.
Status check(const BestSizeOptions& o) {
  if (o.members_min <= o.members_max) return {};
  return invalid(
      fmt::format("best_size: min={} is more than max={}", o.members_min, o.members_max));
}
Status check(const BatchByNoiseOptions& o) {
  if (o.batch_min <= o.batch_max) return {};
  return invalid(
      fmt::format("batch_by_noise: min={} is more than max={}", o.batch_min, o.batch_max));
}
Status check(const SynchronisationBySizeOptions& o) {
  if (o.synchronous_max <= o.model_averaging_max) return {};
  return invalid(
      fmt::format("synchronisation_by_size: synchronous={} is more than model_averaging={}",
                  o.synchronous_max, o.model_averaging_max));
}
Status check(const AddWhileFasterOptions&) { return {}; }
Status check(const TopologyByInterferenceOptions&) { return {}; }

template <typename T, typename Options>
Made make(std::string_view name, std::string_view text) {
  Options options;
  PLIANT_TRY(read_options(name, text, fields_of(options)));
  PLIANT_TRY(check(options));
  return Made(std::make_unique<T>(options));
}

Made make_size_schedule(std::string_view, std::string_view text) {
  auto schedule = parse_size_schedule(text);
  if (!schedule) return invalid("size_schedule: " + schedule.error().message);
  for (const ScheduledSize& entry : *schedule)
    if (entry.size > kMembersMost)
      return invalid(fmt::format("size_schedule: {} members are too many", entry.size));
  return Made(std::make_unique<SizeSchedule>(std::move(*schedule)));
}

template <typename Options>
std::string describe() {
  Options options;
  return describe_options(fields_of(options));
}

std::string describe_schedule() { return "    SIZE@STEP,...                    as in 2@0,4@100\n"; }

struct Shipped {
  std::string_view name;
  std::string_view meaning;
  Made (*make)(std::string_view name, std::string_view text);
  std::string (*describe)();
};

constexpr std::array<Shipped, 6> kShipped = {{
    {"size_schedule", "so many members from such a step on", make_size_schedule, describe_schedule},
    {"best_size", "finds the number of members that is worth most", make<BestSize, BestSizeOptions>,
     describe<BestSizeOptions>},
    {"add_while_faster", "KungFu's rule: one more member while that pays",
     make<AddWhileFaster, AddWhileFasterOptions>, describe<AddWhileFasterOptions>},
    {"batch_by_noise", "the global batch follows the noise scale of the gradients",
     make<BatchByNoise, BatchByNoiseOptions>, describe<BatchByNoiseOptions>},
    {"synchronisation_by_size", "looser synchronisation in a larger or congested cluster",
     make<SynchronisationBySize, SynchronisationBySizeOptions>,
     describe<SynchronisationBySizeOptions>},
    {"topology_by_interference", "another topology while the network is disturbed, and back",
     make<TopologyByInterference, TopologyByInterferenceOptions>,
     describe<TopologyByInterferenceOptions>},
}};

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view options = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::vector<std::string_view> names;
  for (const Shipped& shipped : kShipped) {
    if (shipped.name == name) return shipped.make(name, options);
    names.push_back(shipped.name);
  }
  return invalid(
      fmt::format("there is no policy '{}'; there are {}", name, fmt::join(names, ", ")));
}

std::string describe_policies() {
  std::string text;
  for (const Shipped& shipped : kShipped)
    text += fmt::format("{}: {}\n{}", shipped.name, shipped.meaning, shipped.describe());
  return text;
}

}  // namespace pliant
