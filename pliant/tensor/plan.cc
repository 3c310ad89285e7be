#include "pliant/tensor/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "pliant/base/check.h"
#include "pliant/tensor/plan_cuts.h"
#include "pliant/tensor/seating.h"

namespace pliant::tensor {
namespace {

// Of a tensor with very many replicas so many are looked at, from another place on each time.
constexpr size_t kReplicasMax = 32;
constexpr uint64_t kMovesMax = uint64_t{1} << 28;

// For each tensor of the new layout, the same one in the old.
Result<std::vector<size_t>> match_tensors(const Collection& from, const Collection& to) {
  std::vector<size_t> places(to.size());
  std::vector<std::string> faults;
  size_t count = 0;
  const auto fault = [&](std::string text) {
    if (++count <= 3) faults.push_back(std::move(text));
  };
  for (size_t i = 0; i < to.size(); ++i) {
    const auto place = from.find(to[i].name);
    if (!place) {
      fault(fmt::format("'{}' is in the new layout alone", to[i].name));
    } else if (from[*place] != to[i]) {
      fault(fmt::format("'{}' is {} in the old layout and {} in the new one", to[i].name,
                        to_string(from[*place]), to_string(to[i])));
    }
    places[i] = place.value_or(0);
  }
  for (const TensorInfo& tensor : from.tensors())
    if (!to.find(tensor.name)) fault(fmt::format("'{}' is in the old layout alone", tensor.name));
  if (count == 0) return places;
  return invalid(fmt::format("the layouts are of different tensors: {}{}", fmt::join(faults, "; "),
                             count <= 3 ? "" : fmt::format("; and {} more", count - 3)));
}

Result<std::vector<bool>> mark_lost(std::span<const Rank> lost, uint32_t ranks) {
  std::vector<bool> is_lost(ranks);
  for (const Rank rank : lost) {
    if (rank < 0 || static_cast<uint32_t>(rank) >= ranks)
      return invalid(
          fmt::format("lost: the old layout has no rank {}; it has 0 to {}", rank, ranks - 1));
    is_lost[static_cast<size_t>(rank)] = true;
  }
  return is_lost;
}

// The old rank of each new one.
Result<std::vector<Rank>> match_members(const Mesh& from, const Mesh& to,
                                        const std::vector<Rank>& given,
                                        const std::vector<bool>& is_lost) {
  std::vector<Rank> members(to.size(), kNewcomer);
  if (!given.empty() && given.size() != to.size())
    return invalid(fmt::format("members: {} are given, but the new layout has {} ranks",
                               given.size(), to.size()));
  std::vector<bool> is_taken(from.size());
  for (uint32_t rank = 0; rank < to.size(); ++rank) {
    const Rank own = rank < from.size() ? static_cast<Rank>(rank) : kNewcomer;
    const Rank member = given.empty() ? own : given[rank];
    if (member == kNewcomer) continue;
    if (member < 0 || static_cast<uint32_t>(member) >= from.size())
      return invalid(
          fmt::format("members: new rank {} was old rank {}, but the old layout has 0 to "
                      "{}",
                      rank, member, from.size() - 1));
    const auto old = static_cast<size_t>(member);
    if (is_taken[old])
      return invalid(
          fmt::format("members: old rank {} becomes two new ranks, one of them {}", member, rank));
    is_taken[old] = true;
    if (is_lost[old]) continue;
    if (from.host_of(member) != to.host_of(static_cast<Rank>(rank)))
      return invalid(
          fmt::format("old rank {} is on host {}, but as new rank {} on host {}; a "
                      "process stays where it is: give the old rank of each new one",
                      member, from.host_of(member), rank, to.host_of(static_cast<Rank>(rank))));
    members[rank] = member;
  }
  return members;
}

Result<Seating> seat(const Layout& from, const Layout& to, const PlanOptions& options,
                     std::span<const size_t> old_tensors, const Givers& givers) {
  if (options.choice == PlanOptions::Members::kChosen) {
    if (!options.members.empty()) return invalid("members are either given or chosen");
    if (uint64_t{from.mesh().size()} * to.mesh().size() <= kSeatingPairsMax)
      return choose_seating(from, to, old_tensors, givers);
  }
  auto members = match_members(from.mesh(), to.mesh(), options.members, givers.is_lost);
  if (!members) return members.error();
  return Seating{std::move(*members), to.mesh().hosts()};
}

// Large tensors first, so that the small ones can level out what the large ones leave uneven.
std::vector<uint32_t> order_of(const Collection& collection) {
  std::vector<uint32_t> order(collection.size());
  std::iota(order.begin(), order.end(), 0u);
  std::vector<uint64_t> bytes;
  for (const TensorInfo& tensor : collection.tensors()) bytes.push_back(tensor.bytes());
  std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
    return bytes[a] != bytes[b] ? bytes[a] > bytes[b] : collection[a].name < collection[b].name;
  });
  return order;
}

class Planner {
 public:
  Planner(const Layout& from, const Layout& to, Plan& plan, const Givers& givers,
          PlanOptions::Wire wire)
      : wire_(wire),
        from_(from),
        to_(to),
        plan_(plan),
        givers_(givers),
        sent_(from.mesh().size()),
        received_(to.mesh().size()) {
    const uint32_t last = *std::ranges::max_element(plan.to_hosts);
    plan_.hosts.resize(std::max(from.mesh().hosts_end(), last + 1));
    for (const uint32_t host : from.mesh().hosts()) ++plan_.hosts[host].ranks_before;
    for (const uint32_t host : plan.to_hosts) ++plan_.hosts[host].ranks_after;
  }

  Status add(uint32_t tensor, size_t old_tensor) {
    const Placement& before = from_.placement(old_tensor);
    const Placement& after = to_.placement(tensor);
    const auto ready = cuts_of(before, after);
    if (!ready) return ready.error();
    const Ready& cuts = **ready;
    const TensorInfo& info = to_.collection()[tensor];
    const uint64_t element = size_of(info.dtype);
    plan_.totals.bytes_total += cuts.list.held_elements * element;
    plan_.totals.bytes_lower_bound += cuts.list.missing_elements * element;
    for (size_t i = 0; i < cuts.list.cuts.size(); ++i) {
      const Cut& cut = cuts.list.cuts[i];
      const uint64_t bytes = volume(cut.box) * element;
      const auto box = static_cast<uint32_t>(cuts.first_box + i);
      fetched_.clear();
      for (const Rank rank : after.shards[cut.target].holders)
        if (!relay(tensor, box, rank, bytes))
          bring(*cuts.source, cut, {tensor, box, 0, rank}, bytes);
    }
    if (plan_.moves.size() > kMovesMax)
      return invalid(fmt::format("the plan has more than {} moves", kMovesMax));
    const auto gone = cuts.source->gone(whole(info.shape));
    if (!gone) return gone.error();
    for (const Box& box : *gone) plan_.gone.push_back({tensor, box});
    return {};
  }

  void finish(const LinkSpeeds& speeds) {
    sort_moves();
    std::ranges::sort(plan_.gone, [](const Gone& a, const Gone& b) {
      return std::tie(a.tensor, a.box) < std::tie(b.tensor, b.box);
    });
    for (const auto& [hosts, bytes] : links_)
      plan_.links.push_back({hosts.first, hosts.second, bytes});
    PlanTotals& totals = plan_.totals;
    totals.bytes_moved = totals.bytes_inside + totals.bytes_network;
    totals.bytes_received_max = *std::ranges::max_element(received_);
    totals.bytes_sent_max = *std::ranges::max_element(sent_);
    for (const HostLoad& host : plan_.hosts) {
      const auto wire = static_cast<double>(std::max(host.bytes_in, host.bytes_out));
      totals.predicted_s = std::max({totals.predicted_s, wire / speeds.network,
                                     static_cast<double>(host.bytes_inside) / speeds.host});
    }
  }

 private:
  // The cuts between two placements, which many tensors share.
  struct Ready {
    const Source* source = nullptr;
    CutList list = {};
    size_t first_box = 0;  // of the cuts' boxes in the plan
  };
  struct PairHash {
    size_t operator()(const std::pair<const Placement*, const Placement*>& pair) const {
      return std::hash<const void*>{}(pair.first) * 31 + std::hash<const void*>{}(pair.second);
    }
  };

  Result<const Ready*> cuts_of(const Placement& before, const Placement& after) {
    const auto found = ready_.find({&before, &after});
    if (found != ready_.end()) return &found->second;
    const Source& source = sources_.try_emplace(&before, before, givers_).first->second;
    auto list = cut(source, after, givers_, plan_.members);
    if (!list) return list.error();
    Ready ready{&source, std::move(*list), plan_.boxes.size()};
    for (const Cut& cut : ready.list.cuts) plan_.boxes.push_back(cut.box);
    if (plan_.boxes.size() > UINT32_MAX) return invalid("the plan has too many boxes");
    return &ready_.emplace(std::pair(&before, &after), std::move(ready)).first->second;
  }

  // Takes a box from a rank of the same host that has fetched it from another one.
  bool relay(uint32_t tensor, uint32_t box, Rank to, uint64_t bytes) {
    const uint32_t host = plan_.to_hosts[static_cast<size_t>(to)];
    const auto found = std::ranges::find(fetched_, host, &std::pair<uint32_t, Rank>::first);
    if (found == fetched_.end()) return false;
    // What the host lacks, its ranks lack too; so nobody could have it in place.
    plan_.relays.push_back({tensor, box, found->second, to});
    received_[static_cast<size_t>(to)] += bytes;
    links_[{host, host}] += bytes;
    plan_.totals.bytes_inside += bytes;
    plan_.hosts[host].bytes_inside += bytes;
    return true;
  }

  void bring(const Source& source, const Cut& cut, Move move, uint64_t bytes) {
    move.from = choose(source, cut, move.to);
    plan_.moves.push_back(move);
    account(move.from, move.to, bytes);
    const uint32_t to_host = plan_.to_hosts[static_cast<size_t>(move.to)];
    if (wire_ == PlanOptions::Wire::kOnceAHost &&
        givers_.hosts[static_cast<size_t>(move.from)] != to_host)
      fetched_.emplace_back(to_host, move.to);
  }

  // Who gives a box to a new rank: itself, or the member of its host that has sent the least, or
  // the member that has sent the least of the host that has.
  Rank choose(const Source& source, const Cut& cut, Rank to) {
    const Rank self = plan_.members[static_cast<size_t>(to)];
    const uint32_t to_host = plan_.to_hosts[static_cast<size_t>(to)];
    const auto is_before = [&](Rank a, Rank b) { return givers_.is_before(a, b); };
    const auto host_of = [&](Rank rank) { return givers_.hosts[static_cast<size_t>(rank)]; };
    if (self != kNewcomer)
      for (const uint32_t shard : cut.sources)
        if (std::ranges::binary_search(source.holders(shard), self, is_before)) return self;
    Rank best = kNewcomer;
    for (const uint32_t shard : cut.sources)
      for (const Rank rank : std::ranges::equal_range(source.holders(shard), to_host, {}, host_of))
        if (best == kNewcomer || sent_of(rank) < sent_of(best)) best = rank;
    if (best != kNewcomer) return best;
    for (const uint32_t shard : cut.sources) {
      const std::span<const Rank> holders = source.holders(shard);
      const size_t looked_at = std::min(holders.size(), kReplicasMax);
      const size_t start = holders.size() <= kReplicasMax ? 0 : turn_++ * kReplicasMax;
      for (size_t i = 0; i < looked_at; ++i) {
        const Rank rank = holders[(start + i) % holders.size()];
        if (best == kNewcomer || has_sent_less(rank, best)) best = rank;
      }
    }
    PLIANT_CHECK(best != kNewcomer, "a cut is made only of what somebody has");
    return best;
  }

  uint64_t sent_of(Rank rank) const { return sent_[static_cast<size_t>(rank)]; }

  bool has_sent_less(Rank a, Rank b) const {
    const uint64_t out_a = plan_.hosts[givers_.hosts[static_cast<size_t>(a)]].bytes_out;
    const uint64_t out_b = plan_.hosts[givers_.hosts[static_cast<size_t>(b)]].bytes_out;
    return out_a != out_b ? out_a < out_b : sent_of(a) < sent_of(b);
  }

  void account(Rank from, Rank to, uint64_t bytes) {
    const uint32_t to_host = plan_.to_hosts[static_cast<size_t>(to)];
    HostLoad& receiver = plan_.hosts[to_host];
    if (plan_.members[static_cast<size_t>(to)] == from) {
      plan_.totals.bytes_in_place += bytes;
      receiver.bytes_in_place += bytes;
      return;
    }
    const uint32_t from_host = givers_.hosts[static_cast<size_t>(from)];
    sent_[static_cast<size_t>(from)] += bytes;
    received_[static_cast<size_t>(to)] += bytes;
    if (last_link_ == nullptr || last_hosts_ != std::pair(from_host, to_host)) {
      last_hosts_ = {from_host, to_host};
      last_link_ = &links_[last_hosts_];
    }
    *last_link_ += bytes;
    if (from_host == to_host) {
      plan_.totals.bytes_inside += bytes;
      receiver.bytes_inside += bytes;
    } else {
      plan_.totals.bytes_network += bytes;
      receiver.bytes_in += bytes;
      plan_.hosts[from_host].bytes_out += bytes;
    }
  }

  // By new rank; those of one rank stay in the order in which they were made.
  void sort_moves() {
    std::vector<size_t>& first = plan_.first_move;
    first.assign(to_.mesh().size() + 1, 0);
    for (const Move& move : plan_.moves) ++first[static_cast<size_t>(move.to) + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    std::vector<size_t> next(first.begin(), first.end() - 1);
    std::vector<Move> sorted(plan_.moves.size());
    for (const Move& move : plan_.moves) sorted[next[static_cast<size_t>(move.to)]++] = move;
    plan_.moves = std::move(sorted);
    std::ranges::stable_sort(plan_.relays, {}, &Move::to);
  }

  const PlanOptions::Wire wire_;
  const Layout& from_;
  const Layout& to_;
  Plan& plan_;
  const Givers& givers_;
  std::vector<std::pair<uint32_t, Rank>> fetched_;  // of the current cut: host, and who has it
  std::vector<uint64_t> sent_;
  std::vector<uint64_t> received_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> links_;
  std::pair<uint32_t, uint32_t> last_hosts_;
  uint64_t* last_link_ = nullptr;
  size_t turn_ = 0;
  std::unordered_map<const Placement*, Source> sources_;
  std::unordered_map<std::pair<const Placement*, const Placement*>, Ready, PairHash> ready_;
};

}  // namespace

Result<Plan> make_plan(const Layout& from, const Layout& to, const PlanOptions& options) {
  const auto places = match_tensors(from.collection(), to.collection());
  if (!places) return places.error();
  auto is_lost = mark_lost(options.lost, from.mesh().size());
  if (!is_lost) return is_lost.error();
  const Givers givers{from.mesh().hosts(), std::move(*is_lost)};
  auto seating = seat(from, to, options, *places, givers);
  if (!seating) return seating.error();
  if (!(options.speeds.host > 0) || !(options.speeds.network > 0))
    return invalid("the speeds of links are more than zero");
  const std::vector<bool>& chosen = options.tensors;
  if (!chosen.empty() && chosen.size() != to.collection().size())
    return invalid(fmt::format("tensors: {} are marked, but there are {}", chosen.size(),
                               to.collection().size()));
  Plan plan;
  plan.collection = to.shared_collection();
  plan.from_ranks = from.mesh().size();
  plan.to_ranks = to.mesh().size();
  plan.members = std::move(seating->members);
  plan.to_hosts = std::move(seating->hosts);
  Planner planner(from, to, plan, givers, options.wire);
  for (const uint32_t tensor : order_of(to.collection())) {
    if (!chosen.empty() && !chosen[tensor]) continue;
    if (const Status added = planner.add(tensor, (*places)[tensor]); !added.ok())
      return invalid(
          fmt::format("tensor '{}': {}", to.collection()[tensor].name, added.error().message));
  }
  planner.finish(options.speeds);
  return plan;
}

}  // namespace pliant::tensor
