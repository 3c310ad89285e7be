#include "pliant/tensor/copies.h"

#include <algorithm>
#include <span>
#include <unordered_map>

#include "pliant/tensor/plan_cuts.h"

namespace pliant::tensor {
namespace {

// A part of the box that fewer than `ranks` ranks have in these shards. Those of one rank never
// overlap, so that holders of shards that do can be added up.
std::optional<Box> scarce_part(const Box& box, size_t ranks, const Placement& placement,
                               std::span<const uint32_t> shards) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = placement.shards[shards[i]];
    if (!overlap(box, shard.box)) continue;
    const auto others = shards.subspan(i + 1);
    std::vector<Box> outside;
    subtract(box, shard.box, outside);
    for (const Box& part : outside)
      if (const auto found = scarce_part(part, ranks, placement, others)) return found;
    if (shard.holders.size() >= ranks) return std::nullopt;
    return scarce_part(intersect(box, shard.box), ranks - shard.holders.size(), placement, others);
  }
  return box;
}

std::optional<Box> scarce_part(const Placement& placement, size_t ranks, const Givers& all) {
  const auto is_rare = [&](const Shard& shard) { return shard.holders.size() < ranks; };
  const auto first = std::ranges::find_if(placement.shards, is_rare);
  if (first == placement.shards.end()) return std::nullopt;
  if (placement.is_partition) return first->box;
  const Source shards(placement, all);
  std::vector<uint32_t> found;
  for (const Shard& shard : placement.shards) {
    if (!is_rare(shard)) continue;
    shards.find(shard.box, found);
    if (const auto part = scarce_part(shard.box, ranks, placement, found)) return part;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Scarce> find_scarce(const Layout& layout, size_t ranks,
                                  const std::vector<bool>& tensors) {
  const Givers all{layout.mesh().hosts(), std::vector<bool>(layout.mesh().size())};
  std::unordered_map<const Placement*, std::optional<Box>>
      known;  // tensors that lie alike share it
  for (size_t tensor = 0; tensor < layout.collection().size(); ++tensor) {
    if (!tensors.empty() && !tensors[tensor]) continue;
    const Placement& placement = layout.placement(tensor);
    const auto [at, is_new] = known.try_emplace(&placement);
    if (is_new) at->second = scarce_part(placement, ranks, all);
    if (at->second) return Scarce{tensor, *at->second};
  }
  return std::nullopt;
}

}  // namespace pliant::tensor
