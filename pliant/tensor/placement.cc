#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pliant/tensor/layout_tables.h"

namespace pliant::tensor {
namespace {

// Puts the ranks of equal boxes together.
std::vector<Shard> merged(std::vector<std::pair<Box, Rank>> held) {
  std::ranges::sort(held);
  std::vector<Shard> shards;
  for (const auto& [box, rank] : held) {
    if (shards.empty() || shards.back().box != box) shards.push_back({box, {}});
    std::vector<Rank>& holders = shards.back().holders;
    if (holders.empty() || holders.back() != rank) holders.push_back(rank);
  }
  return shards;
}

// Whether no two boxes overlap; an error if two of one rank do.
Result<bool> check_overlaps(const std::vector<Shard>& shards) {
  const uint32_t dim = most_cut_dim(shards);
  std::vector<const Shard*> order;
  for (const Shard& shard : shards) order.push_back(&shard);
  std::ranges::stable_sort(order, {}, [&](const Shard* shard) { return shard->box.begin[dim]; });
  bool is_partition = true;
  std::vector<Rank> both;
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = i + 1; j < order.size(); ++j) {
      if (order[j]->box.begin[dim] >= order[i]->box.end[dim]) break;
      if (!overlap(order[i]->box, order[j]->box)) continue;
      is_partition = false;
      both.clear();
      std::ranges::set_intersection(order[i]->holders, order[j]->holders, std::back_inserter(both));
      if (!both.empty())
        return invalid(fmt::format("pieces: rank {} has {} twice, in {} and in {}", both[0],
                                   to_string(intersect(order[i]->box, order[j]->box)),
                                   to_string(order[i]->box), to_string(order[j]->box)));
    }
  }
  return is_partition;
}

Status check_stated(const StatedPiece& piece, size_t index, const TensorInfo& tensor,
                    const Mesh& mesh) {
  if (piece.box.dims != tensor.shape.size())
    return invalid(fmt::format("pieces[{}] has {} dimensions, but the tensor is {}", index,
                               piece.box.dims, to_string(tensor)));
  if (!contains(whole(tensor.shape), piece.box) || is_empty(piece.box))
    return invalid(fmt::format("pieces[{}]: {} is empty or beyond the tensor, which is {}", index,
                               to_string(piece.box), to_string(tensor)));
  for (const Rank rank : piece.ranks)
    if (rank < 0 || static_cast<uint32_t>(rank) >= mesh.size())
      return invalid(fmt::format("pieces[{}].ranks: there is no rank {} in a mesh of {}", index,
                                 rank, mesh.size()));
  if (piece.ranks.empty()) return invalid(fmt::format("pieces[{}].ranks is empty", index));
  return {};
}

}  // namespace

uint32_t most_cut_dim(std::span<const Shard> shards) {
  uint32_t best = 0;
  size_t best_count = 0;
  std::vector<uint64_t> begins;
  const uint32_t dims = shards.empty() ? 0 : shards[0].box.dims;
  for (uint32_t d = 0; d < dims; ++d) {
    begins.clear();
    for (const Shard& shard : shards) begins.push_back(shard.box.begin[d]);
    std::ranges::sort(begins);
    const auto count = static_cast<size_t>(std::ranges::unique(begins).begin() - begins.begin());
    if (count > best_count) {
      best = d;
      best_count = count;
    }
  }
  return best;
}

void append_local_range(const Arrangement& arrangement, Rank rank, uint64_t begin, uint64_t end,
                        std::vector<LocalBox>& boxes) {
  std::vector<Box> ranges;
  append_flat_range(arrangement.local_shape(rank), begin, end, ranges);
  std::vector<LocalBox> blocks;
  arrangement.append_local(rank, blocks);
  for (const Box& range : ranges) {
    for (const LocalBox& block : blocks) {
      LocalBox found = block;
      bool is_there = true;
      for (uint32_t d = 0; d < range.dims && is_there; ++d) {
        const uint64_t from = std::max(range.begin[d], block.local[d]);
        const uint64_t to = std::min(range.end[d], block.local[d] + block.box.extent(d));
        is_there = from < to;
        if (!is_there) break;
        found.box.begin[d] = block.box.begin[d] + (from - block.local[d]);
        found.box.end[d] = found.box.begin[d] + (to - from);
        found.local[d] = from;
      }
      if (is_there) boxes.push_back(found);
    }
  }
}

Placement place(const Arrangement& arrangement, const Mesh& mesh) {
  std::vector<std::pair<uint64_t, Rank>> ranks;
  for (Rank rank = 0; rank < static_cast<Rank>(mesh.size()); ++rank)
    if (arrangement.holds(rank)) ranks.emplace_back(arrangement.content_of(rank), rank);
  std::ranges::sort(ranks);
  // Boxes of one content are the same for all of its ranks, so one of them tells.
  std::vector<Shard> shards;
  std::vector<LocalBox> boxes;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin;
    std::vector<Rank> holders;
    for (; end < ranks.size() && ranks[end].first == ranks[begin].first; ++end)
      holders.push_back(ranks[end].second);
    boxes.clear();
    arrangement.append_local(holders[0], boxes);
    for (const LocalBox& box : boxes) shards.push_back({box.box, holders});
    begin = end;
  }
  // Units that several contents have, as heads of grouped queries.
  std::ranges::stable_sort(shards, {}, &Shard::box);
  Placement placement;
  for (Shard& shard : shards) {
    if (placement.shards.empty() || placement.shards.back().box != shard.box) {
      placement.shards.push_back(std::move(shard));
      continue;
    }
    std::vector<Rank>& holders = placement.shards.back().holders;
    holders.insert(holders.end(), shard.holders.begin(), shard.holders.end());
    std::ranges::sort(holders);
  }
  return placement;
}

Placement place_flat(const Arrangement& arrangement, const FlatGroup& group,
                     std::span<const FlatStart> starts, uint64_t elements) {
  std::vector<std::pair<Box, Rank>> held;
  std::vector<LocalBox> boxes;
  for (const FlatStart& start : starts) {
    const uint64_t range = group.range[static_cast<size_t>(start.rank)];
    const uint64_t size = volume(whole(arrangement.local_shape(start.rank)));
    if (size == 0) continue;
    const uint64_t last = (start.offset + size - 1) / range;
    for (uint64_t index = start.offset / range; index <= last; ++index) {
      const uint64_t begin = std::max(index * range, start.offset) - start.offset;
      const uint64_t end = std::min((index + 1) * range, start.offset + size) - start.offset;
      const Rank rank = start.rank + group.axes.offset_of(static_cast<uint32_t>(index));
      boxes.clear();
      append_local_range(arrangement, start.rank, begin, end, boxes);
      for (const LocalBox& box : boxes) held.emplace_back(box.box, rank);
    }
  }
  Placement placement;
  placement.shards = merged(std::move(held));
  // Every replica covers the tensor. So the boxes overlap nowhere, if they are as large as it.
  uint64_t sum = 0;
  for (const Shard& shard : placement.shards) sum += volume(shard.box);
  placement.is_partition = sum == elements;
  return placement;
}

Result<Placement> place_stated(std::span<const StatedPiece> pieces, const TensorInfo& tensor,
                               const Mesh& mesh) {
  if (pieces.size() > Layout::kStatedPiecesMax)
    return invalid(fmt::format("pieces: {} of one tensor; the limit is {}", pieces.size(),
                               Layout::kStatedPiecesMax));
  std::vector<std::pair<Box, Rank>> held;
  for (size_t i = 0; i < pieces.size(); ++i) {
    PLIANT_TRY(check_stated(pieces[i], i, tensor, mesh));
    for (const Rank rank : pieces[i].ranks) held.emplace_back(pieces[i].box, rank);
  }
  Placement placement;
  placement.shards = merged(std::move(held));
  const auto is_partition = check_overlaps(placement.shards);
  if (!is_partition) return is_partition.error();
  placement.is_partition = *is_partition;
  uint64_t sum = 0;
  std::vector<Box> boxes;
  for (const Shard& shard : placement.shards) {
    sum += volume(shard.box);
    boxes.push_back(shard.box);
  }
  if (placement.is_partition && sum == tensor.elements()) return placement;
  const auto missing = uncovered(whole(tensor.shape), boxes);
  if (!missing) return invalid("pieces: " + missing.error().message);
  if (!missing->empty())
    return invalid(fmt::format(
        "pieces: no rank has {}{}", to_string((*missing)[0]),
        missing->size() == 1 ? "" : fmt::format(" and {} parts more", missing->size() - 1)));
  return placement;
}

}  // namespace pliant::tensor
