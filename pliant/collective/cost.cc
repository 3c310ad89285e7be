#include "pliant/collective/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "pliant/base/time.h"
#include "pliant/collective/host_links.h"
#include "pliant/collective/route.h"

namespace pliant {
namespace {

using Kind = Strategy::Kind;

constexpr size_t kKiB = 1024;
// So many bytes and the head of a message fill one of the kernel's packets, on the loopback device
// as on networks with frames of 1500 or 9000 bytes. The few more that round numbers have would go
// in a packet of their own, which costs as much as a full one.
constexpr size_t kPacketBytes = 62'400;
// Blocks up to here are not worth cutting into chunks.
constexpr size_t kUncutBytes = 64 * kKiB;
// Tensors up to here get smaller slots.
constexpr size_t kSmallSlotsBytesMax = 32 * kKiB * kKiB;
// Every root is a candidate up to here; beyond, the best connected hosts.
constexpr size_t kRootsMax = 8;

Strategy flat(Kind kind, int root = 0) {
  return {.kind = kind, .hierarchical = false, .root = root, .parents = {}};
}
Strategy between_hosts(Kind kind, int root = 0) {
  return {.kind = kind, .hierarchical = true, .root = root, .parents = {}};
}

bool reduces_everywhere(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kBarrier;
}
bool pair_of_ranks(Collective collective) {
  return collective == Collective::kSend || collective == Collective::kReceive;
}
// What each rank gets is meant for it alone, so there is nothing that a tree could share.
bool single_messages(Collective collective) {
  return pair_of_ranks(collective) || collective == Collective::kGather ||
         collective == Collective::kScatter || collective == Collective::kAllToAll;
}

// Doubling sends everything in every round: it is for what is not worth cutting. Of two nodes it is
// an exchange.
bool may_double(const Signature& signature, const Group& group, int nodes) {
  return nodes > 2 && total_bytes(signature, group) <= kUncutBytes;
}

std::vector<Strategy> staged_candidates(const Signature& signature, const Group& group,
                                        const CostModel& model) {
  std::vector<Strategy> all = {between_hosts(Kind::kRing)};
  for (const int host : HostLinks(group, model).best_connected(kRootsMax)) {
    all.push_back(between_hosts(Kind::kStar, host));
    // Over fewer hosts it is a star, or a star with a detour.
    if (group.hosts > 3) all.push_back(between_hosts(Kind::kBinaryTree, host));
  }
  all.push_back(between_hosts(Kind::kClique));
  all.push_back(between_hosts(Kind::kExchange));
  if (may_double(signature, group, group.hosts)) all.push_back(between_hosts(Kind::kDoubling));
  return all;
}

std::vector<Strategy> flat_candidates(const Signature& signature, const Group& group,
                                      const CostModel& model) {
  const auto members = members_by_host(group);
  std::vector<Strategy> trees;
  for (const int host : HostLinks(group, model).best_connected(kRootsMax)) {
    const Rank root = members[static_cast<size_t>(host)].front();
    trees.push_back(flat(Kind::kStar, root));
    if (group.size() > 3) trees.push_back(flat(Kind::kBinaryTree, root));
  }
  // Where processes share the cores, an even load of each is worth nothing: what counts is how much
  // there is to do, and that what is on its way fits the caches.
  if (group.one_host() && group.size() > 2 && group.size() >= 2 * model.cores) return trees;
  std::vector<Strategy> all = {flat(Kind::kRing)};
  all.insert(all.end(), trees.begin(), trees.end());
  all.push_back(flat(Kind::kClique));
  all.push_back(flat(Kind::kExchange));
  if (may_double(signature, group, group.size())) all.push_back(flat(Kind::kDoubling));
  if (group.hosts > 1 && group.hosts < group.size())
    for (const Kind kind : {Kind::kTree, Kind::kBinaryTreeStar, Kind::kMultiBinaryTreeStar})
      all.push_back(flat(kind));
  return all;
}

std::vector<Strategy> rooted_candidates(const Group& group) {
  std::vector<Strategy> all = {flat(Kind::kStar), flat(Kind::kBinaryTree), flat(Kind::kRing)};
  if (group.hosts == 1 || group.hosts == group.size()) return all;
  all.push_back(flat(Kind::kTree));
  all.push_back(flat(Kind::kBinaryTreeStar));
  all.push_back(between_hosts(Kind::kRing));
  return all;
}

std::string explain(const Signature& signature, const Group& group, const Choice& best,
                    const std::optional<Choice>& next, const CostModel& model) {
  const auto time = [](double value) { return human_duration(from_seconds(value)); };
  const std::string what = signature.collective == Collective::kBarrier
                               ? "barrier"
                               : human_bytes(total_bytes(signature, group));
  const std::string where = group.size() == 1  ? "alone"
                            : group.one_host() ? fmt::format("over {} ranks", group.size())
                                               : fmt::format("over {} hosts", group.hosts);
  std::string text = fmt::format("{}: {} {}, predicted {}", to_string(best.strategy), what, where,
                                 time(best.predicted_s));
  if (next.has_value())
    text += fmt::format(" (next best {} {})", to_string(next->strategy), time(next->predicted_s));
  const std::string slow = HostLinks(group, model).describe_slowest();
  return slow.empty() ? text : text + "; " + slow;
}

}  // namespace

size_t total_bytes(const Signature& signature, const Group& group) {
  size_t count = signature.count;
  switch (signature.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kReduceScatter:
      count = 0;
      for (Rank rank = 0; rank < group.size(); ++rank) count += signature.block_count(rank);
      break;
    case Collective::kAllToAll:
      count *= static_cast<size_t>(group.size()) * static_cast<size_t>(group.size());
      break;
    default: break;
  }
  return count * size_of(signature.dtype);
}

std::vector<Strategy> candidates(const Signature& signature, const Group& group,
                                 const CostModel& model) {
  const Collective collective = signature.collective;
  if (group.one_host() && model.shared_memory && !pair_of_ranks(collective))
    return {flat(Kind::kDirect)};
  if (single_messages(collective) || group.size() == 1) return {flat(Kind::kStar)};
  if (!reduces_everywhere(collective)) return rooted_candidates(group);
  return model.shared_memory ? staged_candidates(signature, group, model)
                             : flat_candidates(signature, group, model);
}

Choice choose(const Signature& signature, const Group& group, const CostModel& model) {
  std::vector<Choice> choices;
  for (Strategy& strategy : candidates(signature, group, model)) {
    Choice choice{
        .strategy = std::move(strategy), .chunk_bytes = 0, .predicted_s = 0, .reason = {}};
    choice.chunk_bytes = chunk_bytes_for(signature, group, choice.strategy, model.cores);
    choice.predicted_s = predict(signature, group, choice.strategy, choice.chunk_bytes, model);
    choices.push_back(std::move(choice));
  }
  std::stable_sort(choices.begin(), choices.end(), [](const Choice& left, const Choice& right) {
    return left.predicted_s < right.predicted_s;
  });
  Choice best = choices.front();
  std::optional<Choice> next;
  for (const Choice& choice : choices)
    if (!next.has_value() && choice.strategy.kind != best.strategy.kind) next = choice;
  best.reason = explain(signature, group, best, next, model);
  return best;
}

// ---- Chunks -----------------------------------------------------------------------------------

size_t chunk_bytes_for(const Signature& signature, const Group& group, const Strategy& strategy,
                       int cores) {
  const size_t members = most_members(group);
  // Several chunks a rank are on their way at once; from 4 ranks on, larger ones would fall out of
  // the caches before they are read.
  const bool crowd = members >= 4;
  if (strategy.kind == Kind::kDirect) {
    // Two chunks for each process that can work, so that none waits long for the last one; one
    // where they would be small, for then going for the second takes longer than that.
    const size_t busy = std::clamp<size_t>(static_cast<size_t>(std::max(cores, 1)), 1, members);
    const size_t bytes = total_bytes(signature, group);
    const size_t share = std::max(bytes / (2 * busy), std::min(bytes / busy, 32 * kKiB));
    // Private memory passes through kStageSlots slots of a chunk for each rank. As long as the
    // tensors themselves have some room in the caches, the slots should leave it to them.
    const size_t most = (crowd ? 128 : 256) * kKiB / (bytes <= kSmallSlotsBytesMax ? 2 : 1);
    const size_t chunk = std::clamp(share, 2 * kKiB, most);
    return (chunk + 63) / 64 * 64;
  }
  // Four chunks a block keep all hops of a tree busy.
  size_t longest = signature.count;
  if (reduces_everywhere(signature.collective)) {
    const size_t nodes = static_cast<size_t>(strategy.hierarchical ? group.hosts : group.size());
    const bool block_a_node = strategy.kind == Kind::kRing || strategy.kind == Kind::kClique;
    const bool block_a_host =
        strategy.kind == Kind::kMultiStar || strategy.kind == Kind::kMultiBinaryTreeStar;
    const size_t pairs = block_a_node ? nodes : block_a_host ? static_cast<size_t>(group.hosts) : 1;
    const size_t blocks = pairs * (strategy.hierarchical ? members : 1);
    longest = (signature.count + blocks - 1) / blocks;
  } else if (!signature.counts.empty()) {
    longest = *std::max_element(signature.counts.begin(), signature.counts.end());
  }
  const size_t bytes = longest * size_of(signature.dtype);
  if (bytes <= kUncutBytes) return kUncutBytes;
  // A block of 1 MiB fits the caches however it is cut. Between hosts the inputs and results of the
  // host's members want room there besides.
  const bool large = crowd && bytes > 1024 * kKiB;
  const size_t most = !large ? 4 : strategy.hierarchical ? 1 : 2;
  return std::clamp<size_t>(bytes / 4 / kPacketBytes, 1, most) * kPacketBytes;
}

CallPlan call_plan(const Signature& signature, const Group& group, const Strategy& strategy,
                   const CostModel& model) {
  CallPlan plan;
  plan.strategy = strategy;
  plan.chunk_bytes = chunk_bytes_for(signature, group, strategy, model.cores);
  plan.cores = model.cores;
  // A chunk travels up, is reduced, and travels down: twice there and back.
  if (!group.one_host())
    plan.in_flight_bytes = std::max(
        plan.in_flight_bytes, static_cast<size_t>(4 * HostLinks(group, model).longest_pipe()));
  return plan;
}

// ---- On the wire ------------------------------------------------------------------------------

namespace {

constexpr uint8_t kEncoding = 1;
constexpr double kLatencyMax = 3600;
constexpr double kRateMin = 1;
constexpr double kRateMax = 1e15;
constexpr int32_t kCoresMax = 1 << 20;
constexpr size_t kLinkBytes = 2 * sizeof(uint32_t) + 2 * sizeof(double);

void put(Writer& writer, const LinkCost& cost) {
  writer.put(cost.latency_s);
  writer.put(cost.bytes_per_s);
}

LinkCost take_link(Reader& reader) {
  LinkCost cost;
  cost.latency_s = reader.take<double>();
  cost.bytes_per_s = reader.take<double>();
  return cost;
}

// Not-a-number fails every comparison; a negative zero would have a second encoding.
bool usable_rate(double rate) { return rate >= kRateMin && rate <= kRateMax; }
bool usable(const LinkCost& cost) {
  return cost.latency_s >= 0 && cost.latency_s <= kLatencyMax && !std::signbit(cost.latency_s) &&
         usable_rate(cost.bytes_per_s);
}

}  // namespace

std::vector<std::byte> encode(const CostModel& model) {
  Writer writer;
  writer.put(kEncoding);
  writer.put(static_cast<uint8_t>(model.shared_memory ? 1 : 0));
  writer.put(static_cast<int32_t>(model.cores));
  writer.put(model.memory_bytes_per_s);
  put(writer, model.inside);
  put(writer, model.default_between);
  writer.put(static_cast<uint32_t>(model.between.size()));
  for (const auto& [hosts, cost] : model.between) {
    writer.put(hosts.first);
    writer.put(hosts.second);
    put(writer, cost);
  }
  return writer.bytes();
}

Result<CostModel> decode_cost_model(Bytes bytes) {
  Reader reader(bytes);
  CostModel model;
  const auto encoding = reader.take<uint8_t>();
  const auto shared_memory = reader.take<uint8_t>();
  model.cores = reader.take<int32_t>();
  model.memory_bytes_per_s = reader.take<double>();
  model.inside = take_link(reader);
  model.default_between = take_link(reader);
  const auto links = reader.take<uint32_t>();
  if (!reader.ok() || links != reader.left() / kLinkBytes)
    return invalid("a cost model is cut short or names more links than it holds");
  if (encoding != kEncoding || shared_memory > 1)
    return invalid("a cost model has an encoding that is not known here");
  model.shared_memory = shared_memory == 1;
  bool sound = model.cores >= 1 && model.cores <= kCoresMax &&
               usable_rate(model.memory_bytes_per_s) && usable(model.inside) &&
               usable(model.default_between);
  for (uint32_t i = 0; i < links && sound; ++i) {
    const auto from = reader.take<uint32_t>();
    const auto to = reader.take<uint32_t>();
    const std::pair hosts(from, to);
    const LinkCost cost = take_link(reader);
    const bool ascending = model.between.empty() || model.between.rbegin()->first < hosts;
    sound = ascending && from != to && usable(cost);
    model.between.emplace_hint(model.between.end(), hosts, cost);
  }
  if (!sound) return invalid("a cost model holds a latency, rate or link that cannot be");
  if (!reader.finished()) return invalid("a cost model is followed by more bytes");
  return model;
}

// ---- Fitting ----------------------------------------------------------------------------------

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds a byte: the median of the slopes between all pairs of sizes, each weighted by how far
// they are apart; 0 if there is none to be seen.
double slope_of(const std::map<size_t, double>& time_of) {
  std::vector<std::pair<double, double>> slopes;  // and weights
  double weights = 0;
  for (auto left = time_of.begin(); left != time_of.end(); ++left)
    for (auto right = std::next(left); right != time_of.end(); ++right) {
      const auto apart = static_cast<double>(right->first - left->first);
      slopes.emplace_back((right->second - left->second) / apart, apart);
      weights += apart;
    }
  std::sort(slopes.begin(), slopes.end());
  double seen = 0;
  for (const auto& [slope, weight] : slopes) {
    seen += weight;
    if (2 * seen >= weights) return std::max(slope, 0.0);
  }
  return 0;
}

}  // namespace

LinkCost fit_link(std::span<const LinkSample> samples, const LinkCost& otherwise) {
  std::map<size_t, std::vector<double>> times_of;
  for (const auto& [bytes, seconds] : samples)
    if (std::isfinite(seconds) && seconds > 0) times_of[bytes].push_back(seconds);
  if (times_of.empty()) return otherwise;
  std::map<size_t, double> time_of;
  for (auto& [bytes, times] : times_of) time_of[bytes] = median(std::move(times));

  const auto [smallest, smallest_s] = *time_of.begin();
  const auto [largest, largest_s] = *time_of.rbegin();
  double slope = slope_of(time_of);
  // One size, or noise above the signal: all of its time is transfer.
  if (slope == 0 && largest > 0) slope = largest_s / static_cast<double>(largest);
  LinkCost cost;
  cost.bytes_per_s = slope > 0 ? std::clamp(1 / slope, kRateMin, kRateMax) : otherwise.bytes_per_s;
  const double transfer_s = static_cast<double>(smallest) / cost.bytes_per_s;
  cost.latency_s = std::clamp(smallest_s - transfer_s, 0.0, kLatencyMax);
  return cost;
}

}  // namespace pliant
