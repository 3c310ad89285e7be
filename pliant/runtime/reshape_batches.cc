#include "pliant/runtime/reshape_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "pliant/base/bytes.h"

namespace pliant {
namespace {

// Of very many kinds of tensors so many are compared each time.
constexpr size_t kKindsMax = 64;

using Amounts = std::vector<std::pair<Rank, uint64_t>>;  // bytes by rank

// What each tensor brings to new ranks, and frees on them.
struct Flows {
  size_t ranks = 0;
  std::vector<Amounts> brings;
  std::vector<Amounts> frees;
};

void add_flows(const BatchOrigin& origin, Flows& flows) {
  const tensor::Plan& plan = origin.plan;
  for (const tensor::Move& move : plan.moves) {
    Amounts& ranks = flows.brings[move.tensor];
    // Moves are sorted by rank.
    if (ranks.empty() || ranks.back().first != move.to) ranks.emplace_back(move.to, 0);
    ranks.back().second += plan.bytes_of(move);
  }
  std::vector<Rank> new_rank(plan.from_ranks, -1);
  for (size_t rank = 0; rank < plan.members.size(); ++rank)
    if (plan.members[rank] != tensor::kNewcomer)
      new_rank[static_cast<size_t>(plan.members[rank])] = static_cast<Rank>(rank);
  const tensor::Collection& tensors = *plan.collection;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    if (!origin.has(tensor)) continue;
    std::map<Rank, uint64_t> bytes;
    const size_t old = origin.from.collection().find(tensors[tensor].name).value();
    for (const tensor::Shard& shard : origin.from.placement(old).shards)
      for (const Rank holder : shard.holders)
        if (const Rank rank = new_rank[static_cast<size_t>(holder)]; rank >= 0)
          bytes[rank] += volume(shard.box) * size_of(tensors[tensor].dtype);
    flows.frees[tensor].assign(bytes.begin(), bytes.end());
  }
}

Flows flows_of(std::span<const BatchOrigin> origins) {
  const size_t tensors = origins[0].plan.collection->size();
  Flows flows{origins[0].plan.to_ranks, std::vector<Amounts>(tensors),
              std::vector<Amounts>(tensors)};
  for (const BatchOrigin& origin : origins) add_flows(origin, flows);
  return flows;
}

// What each member holds while tensors are exchanged, and what it may hold; by new rank.
struct Load {
  std::vector<uint64_t> held;
  std::vector<uint64_t> limit;

  uint64_t& held_by(Rank rank) { return held[static_cast<size_t>(rank)]; }
  void bring(const Amounts& amounts) {
    for (const auto& [rank, bytes] : amounts) held_by(rank) += bytes;
  }
  void free(const Amounts& amounts) {
    for (const auto& [rank, bytes] : amounts) held_by(rank) -= bytes;
  }
  // How far the member for which it is the tightest would be above its limit; negative: below.
  int64_t excess_with(const Amounts& amounts) const {
    int64_t most = INT64_MIN;
    for (const auto& [rank, bytes] : amounts) {
      const auto at = static_cast<size_t>(rank);
      most =
          std::max(most, static_cast<int64_t>(held[at] + bytes) - static_cast<int64_t>(limit[at]));
    }
    return most;
  }
};

Load load_of(const Flows& flows, uint64_t extra_bytes_max) {
  Load load{std::vector<uint64_t>(flows.ranks), std::vector<uint64_t>(flows.ranks)};
  for (const Amounts& amounts : flows.frees) load.bring(amounts);
  for (const Amounts& amounts : flows.brings)
    for (const auto& [rank, bytes] : amounts) load.limit[static_cast<size_t>(rank)] += bytes;
  for (size_t rank = 0; rank < load.held.size(); ++rank)
    load.limit[rank] = std::max(load.limit[rank], load.held[rank]) + extra_bytes_max;
  return load;
}

// An order in which members fill and empty evenly: tensor by tensor as they come, some would be
// full long before they can free anything. Each time that tensor is taken after which all are the
// nearest to the straight way from what they hold at first to what they hold in the end.
class Spread {
 public:
  Spread(const Flows& flows, Load load)
      : flows_(flows), load_(std::move(load)), first_(load_.held.begin(), load_.held.end()) {
    last_.resize(first_.size());
    // A kind comes from the same place and goes to the same place: only its next one is looked at.
    for (uint32_t tensor = 0; tensor < flows.brings.size(); ++tensor) {
      const Amounts& brings = flows.brings[tensor];
      for (const auto& [rank, bytes] : brings) {
        last_[static_cast<size_t>(rank)] += static_cast<double>(bytes);
        total_ += static_cast<double>(bytes);
      }
      const Amounts& frees = flows.frees[tensor];
      const auto first = [](const Amounts& ranks) { return ranks.empty() ? -1 : ranks[0].first; };
      const Rank last = frees.empty() ? -1 : frees.back().first;
      const uint64_t bytes = brings.empty() ? 0 : brings[0].second;
      kinds_[{first(frees), last, first(brings), bytes}].push_back(tensor);
    }
  }

  std::vector<uint32_t> order() {
    std::vector<uint32_t> order;
    while (order.size() < flows_.brings.size()) {
      auto best = kinds_.begin();
      double least = -1;
      size_t looked_at = 0;
      for (auto kind = kinds_.begin(); kind != kinds_.end() && looked_at < kKindsMax; ++kind) {
        if (kind->second.empty()) continue;
        ++looked_at;
        const double distance = distance_after(kind->second.front());
        if (least >= 0 && distance >= least) continue;
        least = distance;
        best = kind;
      }
      order.push_back(best->second.front());
      best->second.pop_front();
      apply(order.back());
    }
    return order;
  }

 private:
  void apply(uint32_t tensor) {
    load_.bring(flows_.brings[tensor]);
    load_.free(flows_.frees[tensor]);
    for (const auto& amount : flows_.brings[tensor]) done_ += static_cast<double>(amount.second);
  }

  double distance_after(uint32_t tensor) {
    const std::vector<uint64_t> held = load_.held;
    const double done = done_;
    apply(tensor);
    const double share = total_ > 0 ? done_ / total_ : 0;
    double sum = 0;
    for (size_t rank = 0; rank < first_.size(); ++rank) {
      const double ideal = first_[rank] + share * (last_[rank] - first_[rank]);
      const double off = static_cast<double>(load_.held[rank]) - ideal;
      sum += off * off;
    }
    load_.held = held;
    done_ = done;
    return sum;
  }

  const Flows& flows_;
  Load load_;
  std::vector<double> first_;
  std::vector<double> last_;
  std::map<std::tuple<Rank, Rank, Rank, uint64_t>, std::deque<uint32_t>> kinds_;
  double total_ = 0;  // bytes
  double done_ = 0;
};

}  // namespace

Result<Batches> cut_into_batches(std::span<const BatchOrigin> origins, uint64_t extra_bytes_max) {
  const Flows flows = flows_of(origins);
  const tensor::Collection& tensors = *origins[0].plan.collection;
  Load load = load_of(flows, extra_bytes_max);
  Batches batches{std::vector<uint32_t>(flows.brings.size()), 1};
  std::vector<uint32_t> open;  // the tensors of the batch that is being filled
  for (const uint32_t tensor : Spread(flows, load).order()) {
    const Amounts& brings = flows.brings[tensor];
    if (load.excess_with(brings) > 0 && !open.empty()) {
      for (const uint32_t done : open) load.free(flows.frees[done]);
      open.clear();
      ++batches.count;
    }
    if (const int64_t excess = load.excess_with(brings); excess > 0)
      return invalid(
          fmt::format("{} of additional memory are too little for '{}': allow at least {}",
                      human_bytes(extra_bytes_max), tensors[tensor].name,
                      human_bytes(extra_bytes_max + static_cast<uint64_t>(excess))));
    load.bring(brings);
    batches.of_tensor[tensor] = batches.count - 1;
    open.push_back(tensor);
  }
  return batches;
}

}  // namespace pliant
