#include "pliant/tensor/arrangement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "pliant/base/check.h"

namespace pliant::tensor {

Result<Arrangement> Arrangement::make(const Mesh& mesh, const Rule& rule, const RuleAxes& axes,
                                      std::vector<uint64_t> shape, Where where) {
  Arrangement made;
  made.dims_.resize(shape.size());
  for (size_t d = 0; d < shape.size(); ++d)
    made.dims_[d].parts = {{.segments = {}, .length = shape[d]}};
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 0) made.dims_[d].parts[0].segments = {{0, shape[d], 0}};
  for (size_t i = 0; i < rule.shard.size(); ++i) {
    const DimShard& shard = rule.shard[i];
    if (shard.dim >= shape.size())
      return invalid(fmt::format("shard[{}].dim: there is no dimension {} in a shape {}", i,
                                 shard.dim, shape_text(shape)));
    auto parts = divide({shard.split, shard.blocks, shard.repeat, shard.padded}, shape[shard.dim],
                        axes.shard[i].size());
    if (!parts)
      return invalid(fmt::format("shard[{}], dimension {} of {}: {}", i, shard.dim,
                                 shape_text(shape), parts.error().message));
    made.dims_[shard.dim] = {axes.shard[i], std::move(*parts)};
  }
  PLIANT_TRY(made.check_size());
  if (axes.stage && !where.stages.empty()) {
    made.stage_axis_ = AxisGroup(mesh, std::array{*axes.stage});
    made.on_stage_.resize(made.stage_axis_.size());
    for (const uint32_t stage : where.stages) made.on_stage_[stage] = true;
  }
  made.expert_axes_ = axes.experts;
  made.expert_ = where.expert;
  return made;
}

Status Arrangement::check_size() const {
  uint64_t elements = 1;
  uint64_t boxes = 1;
  for (size_t d = 0; d < dims_.size(); ++d) {
    uint64_t longest = 1;
    uint64_t segments = 0;
    for (const DimPart& part : dims_[d].parts) {
      longest = std::max(longest, part.length);
      segments += part.segments.size();
    }
    if (longest > kElementsMax / elements)
      return invalid(
          fmt::format("shard: dimension {} is padded so far that a rank has more than "
                      "2^60 elements",
                      d));
    elements *= longest;
    boxes *= std::max<uint64_t>(segments, 1);
    if (boxes > kBoxesMax)
      return invalid(fmt::format("shard: the tensor is cut into more than {} boxes", kBoxesMax));
  }
  return {};
}

bool Arrangement::holds(Rank rank) const {
  if (!on_stage_.empty() && !on_stage_[stage_axis_.index_of(rank)]) return false;
  return !expert_ || expert_axes_.index_of(rank) == *expert_;
}

uint64_t Arrangement::content_of(Rank rank) const {
  uint64_t content = 0;
  for (const Dim& dim : dims_) content = content * dim.axes.size() + dim.axes.index_of(rank);
  return content;
}

std::vector<uint64_t> Arrangement::local_shape(Rank rank) const {
  std::vector<uint64_t> shape(dims_.size());
  for (size_t d = 0; d < dims_.size(); ++d) shape[d] = part(d, rank).length;
  return shape;
}

void Arrangement::append_local(Rank rank, std::vector<LocalBox>& boxes) const {
  LocalBox box;
  box.box.dims = static_cast<uint32_t>(dims_.size());
  std::array<size_t, kDimsMax> turn = {};
  for (size_t d = 0; d < dims_.size(); ++d)
    if (part(d, rank).segments.empty()) return;
  // All combinations of the segments of each dimension, the last dimension the fastest.
  while (true) {
    for (size_t d = 0; d < dims_.size(); ++d) {
      const Segment& segment = part(d, rank).segments[turn[d]];
      box.box.begin[d] = segment.begin;
      box.box.end[d] = segment.end;
      box.local[d] = segment.local;
    }
    boxes.push_back(box);
    size_t d = dims_.size();
    while (d > 0 && ++turn[d - 1] == part(d - 1, rank).segments.size()) turn[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace pliant::tensor
