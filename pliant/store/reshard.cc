#include "pliant/store/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace pliant::store {
namespace {

constexpr size_t kFilesMax = 99'999;  // of a rank: five digits

// Takes away what is written already; the boxes that are left are disjoint.
std::vector<Box> without(const Box& box, const std::vector<OwnedBox>& written) {
  std::vector<Box> rest = {box};
  std::vector<Box> next;
  for (const OwnedBox& other : written) {
    if (!tensor::overlap(box, other.box)) continue;
    next.clear();
    for (const Box& part : rest) {
      if (tensor::overlap(part, other.box)) {
        tensor::subtract(part, other.box, next);
      } else {
        next.push_back(part);
      }
    }
    rest.swap(next);
  }
  return rest;
}

// Replicas that are cut differently: each rank in turn adds what those before it lack.
std::vector<OwnedBox> first_to_cover(const std::vector<OwnedBox>& all, uint64_t elements) {
  std::vector<OwnedBox> owned;
  uint64_t covered = 0;
  for (const OwnedBox& candidate : all) {
    if (covered == elements) break;
    for (const Box& box : without(candidate.box, owned)) {
      owned.push_back({candidate.rank, box});
      covered += tensor::volume(box);
    }
  }
  return owned;
}

struct RankPiece {
  PlannedPiece piece;
  size_t number = 0;  // among those of its tensor on this rank
  uint64_t bytes = 0;
};

// The files of one rank: first pieces of all tensors, then second ones, and so on.
std::vector<PlannedFile> files_of(std::vector<RankPiece>& pieces, uint64_t shard_bytes_max) {
  std::ranges::stable_sort(pieces, {}, &RankPiece::number);
  std::vector<PlannedFile> files;
  uint64_t held = 0;
  size_t number = 0;
  for (const RankPiece& item : pieces) {
    const bool full = held > shard_bytes_max || item.bytes > shard_bytes_max - held;
    if (files.empty() || full || item.number != number) {
      files.emplace_back();
      held = 0;
      number = item.number;
    }
    files.back().pieces.push_back(item.piece);
    held += item.bytes;
  }
  return files;
}

}  // namespace

std::vector<OwnedBox> owned_boxes(const tensor::Placement& placement,
                                  const std::vector<uint64_t>& shape) {
  const Box all = tensor::whole(shape);
  if (tensor::is_empty(all)) return {{0, all}};  // nobody holds it, and yet it is a tensor
  std::vector<OwnedBox> owned;
  for (const tensor::Shard& shard : placement.shards)
    owned.push_back({shard.holders.front(), shard.box});
  std::ranges::sort(owned, {}, [](const OwnedBox& item) { return std::pair(item.rank, item.box); });
  if (placement.is_partition) return owned;
  return first_to_cover(owned, tensor::volume(all));
}

std::string rank_file_name(Rank rank, size_t number, size_t files) {
  return fmt::format("shard-{:05}-model-{:05}-of-{:05}.safetensors", rank + 1, number, files);
}

Result<std::vector<PlannedFile>> plan_rank_files(const tensor::Layout& layout,
                                                 uint64_t shard_bytes_max) {
  std::unordered_map<const tensor::Placement*, std::vector<OwnedBox>> known;
  std::vector<std::vector<RankPiece>> by_rank(layout.mesh().size());
  for (size_t i = 0; i < layout.collection().size(); ++i) {
    const TensorInfo& info = layout.collection()[i];
    const tensor::Placement& placement = layout.placement(i);
    auto [found, is_new] = known.try_emplace(&placement);
    // Tensors without elements have no boxes, so that those of several shapes may lie alike.
    if (is_new || info.elements() == 0) found->second = owned_boxes(placement, info.shape);
    Rank rank = -1;
    size_t number = 0;
    for (const OwnedBox& item : found->second) {
      number = item.rank == rank ? number + 1 : 0;
      rank = item.rank;
      by_rank[static_cast<size_t>(rank)].push_back(
          {{i, item.box}, number, tensor::volume(item.box) * size_of(info.dtype)});
    }
    if (info.elements() == 0) known.erase(found);
  }
  std::vector<PlannedFile> files;
  for (Rank rank = 0; rank < static_cast<Rank>(by_rank.size()); ++rank) {
    auto own = files_of(by_rank[static_cast<size_t>(rank)], std::max<uint64_t>(shard_bytes_max, 1));
    if (own.size() > kFilesMax)
      return invalid(
          fmt::format("rank {} needs {} files, and {} can be numbered; allow larger files, or cut "
                      "its tensors into fewer pieces",
                      rank, own.size(), kFilesMax));
    for (size_t i = 0; i < own.size(); ++i) own[i].name = rank_file_name(rank, i + 1, own.size());
    std::ranges::move(own, std::back_inserter(files));
  }
  return files;
}

Status check_same_tensors(const tensor::Collection& layout, const tensor::Collection& checkpoint) {
  for (const TensorInfo& info : checkpoint.tensors()) {
    const auto wanted = layout.find(info.name);
    if (!wanted)
      return invalid(
          fmt::format("the checkpoint has tensor '{}', {}, and the layout has none of "
                      "that name",
                      info.name, to_string(info)));
    const TensorInfo& other = layout[*wanted];
    if (other.dtype != info.dtype || other.shape != info.shape)
      return invalid(fmt::format("tensor '{}' is {} in the checkpoint and {} in the layout",
                                 info.name, to_string(info), to_string(other)));
  }
  for (const TensorInfo& info : layout.tensors()) {
    if (!checkpoint.find(info.name))
      return invalid(
          fmt::format("the layout has tensor '{}', {}, and the checkpoint has none of "
                      "that name",
                      info.name, to_string(info)));
  }
  return {};
}

}  // namespace pliant::store
