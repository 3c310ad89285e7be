#include "pliant/tensor/plan_cuts.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "pliant/tensor/layout_tables.h"
#include "pliant/tensor/plan.h"

namespace pliant::tensor {
namespace {

// Replicas that are cut differently can meet in very many small boxes.
constexpr size_t kAtomsMax = size_t{1} << 20;

// Adds one more box to disjoint ones, each with its sources, so that they are disjoint again.
void refine(std::vector<Cut>& atoms, size_t first, Cut added) {
  std::vector<Box> fresh = {added.box};
  std::vector<Box> next;
  const size_t count = atoms.size();
  for (size_t i = first; i < count && !fresh.empty(); ++i) {
    if (!overlap(atoms[i].box, added.box)) continue;
    const Box common = intersect(atoms[i].box, added.box);
    next.clear();
    subtract(atoms[i].box, common, next);
    for (const Box& rest : next) atoms.push_back({atoms[i].target, rest, atoms[i].sources});
    atoms[i].box = common;
    atoms[i].sources.push_back(added.sources[0]);
    next.clear();
    for (const Box& part : fresh) subtract(part, common, next);
    std::swap(fresh, next);
  }
  for (const Box& part : fresh) atoms.push_back({added.target, part, added.sources});
}

}  // namespace

Source::Source(const Placement& placement, const Givers& givers)
    : placement_(&placement), dim_(most_cut_dim(placement.shards)) {
  holders_.reserve(placement.shards.size());
  for (const Shard& shard : placement.shards) {
    std::vector<Rank> left;
    for (const Rank rank : shard.holders)
      if (!givers.is_lost[static_cast<size_t>(rank)]) left.push_back(rank);
    const auto is_before = [&](Rank a, Rank b) { return givers.is_before(a, b); };
    if (!std::ranges::is_sorted(left, is_before)) std::ranges::sort(left, is_before);
    is_any_gone_ = is_any_gone_ || left.empty();
    holders_.push_back(std::move(left));
  }
  order_.resize(placement.shards.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::ranges::stable_sort(order_, {}, [&](uint32_t shard) { return box(shard).begin[dim_]; });
  uint64_t end = 0;
  for (const uint32_t shard : order_) {
    begins_.push_back(box(shard).begin[dim_]);
    end = std::max(end, box(shard).end[dim_]);
    ends_so_far_.push_back(end);
  }
}

void Source::find(const Box& target, std::vector<uint32_t>& found) const {
  found.clear();
  if (target.dims == 0) {
    found = order_;
    return;
  }
  const auto first =
      std::ranges::upper_bound(ends_so_far_, target.begin[dim_]) - ends_so_far_.begin();
  const auto last = std::ranges::lower_bound(begins_, target.end[dim_]) - begins_.begin();
  for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i)
    if (overlap(box(order_[i]), target)) found.push_back(order_[i]);
}

Result<std::vector<Box>> Source::gone(const Box& whole_tensor) const {
  if (!is_any_gone_) return std::vector<Box>();
  std::vector<Box> left;
  std::vector<Box> lost;
  for (uint32_t shard = 0; shard < holders_.size(); ++shard)
    (holders_[shard].empty() ? lost : left).push_back(box(shard));
  if (is_partition()) return lost;
  return uncovered(whole_tensor, left);
}

Result<CutList> cut(const Source& source, const Placement& target, const Givers& givers,
                    std::span<const Rank> members) {
  CutList list;
  std::vector<uint32_t> found;
  const auto is_before = [&](Rank a, Rank b) { return givers.is_before(a, b); };
  for (uint32_t t = 0; t < target.shards.size(); ++t) {
    const Shard& shard = target.shards[t];
    source.find(shard.box, found);
    const size_t first = list.cuts.size();
    const uint64_t elements = volume(shard.box);
    list.held_elements += elements * shard.holders.size();
    list.missing_elements += elements * shard.holders.size();
    for (const uint32_t s : found) {
      const std::span<const Rank> holders = source.holders(s);
      if (holders.empty()) continue;
      const Box common = intersect(source.box(s), shard.box);
      // What a process had before, box by box: those of one rank do not overlap, so nothing is
      // counted twice.
      const auto has = [&](Rank rank) {
        const Rank member = members[static_cast<size_t>(rank)];
        return member != kNewcomer && std::ranges::binary_search(holders, member, is_before);
      };
      const auto here = static_cast<uint64_t>(std::ranges::count_if(shard.holders, has));
      list.missing_elements -= here * volume(common);
      if (source.is_partition()) {
        list.cuts.push_back({t, common, {s}});
      } else {
        refine(list.cuts, first, {t, common, {s}});
      }
    }
    if (list.cuts.size() > kAtomsMax)
      return invalid(
          "its replicas are cut in too many different ways; cut them along common lines");
  }
  return list;
}

}  // namespace pliant::tensor
