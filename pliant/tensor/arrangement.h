// Inside of layout.h: how one tensor lies over the mesh by its rule, before flat ranges are cut.
// Tensors that lie alike share one Arrangement: a hundred layers have a dozen of them.
//
// Immutable once made; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/tensor/box.h"
#include "pliant/tensor/mesh.h"
#include "pliant/tensor/rules.h"
#include "pliant/tensor/split.h"

namespace pliant::tensor {

// A rule with its axes looked up in the mesh.
struct RuleAxes {
  std::vector<AxisGroup> shard = {};  // of each DimShard
  std::optional<uint32_t> stage = {};
  AxisGroup experts = {};
  AxisGroup flat = {};
};

// A part of a tensor, and where in the rank's local array of it it begins.
struct LocalBox {
  Box box;
  Coordinates local = {};
};

class Arrangement {
 public:
  struct Where {
    std::vector<uint32_t> stages = {};    // coordinates along the axis of stages; empty: all
    std::optional<uint32_t> expert = {};  // the index along the axes of experts
  };

  // Fails if the rule does not fit the shape; the message begins with the field of the rule.
  static Result<Arrangement> make(const Mesh& mesh, const Rule& rule, const RuleAxes& axes,
                                  std::vector<uint64_t> shape, Where where);

  bool holds(Rank rank) const;
  // Ranks of one content have the same boxes at the same local places.
  uint64_t content_of(Rank rank) const;
  // The shape of the rank's local array, padding included; the rank holds the tensor.
  std::vector<uint64_t> local_shape(Rank rank) const;
  void append_local(Rank rank, std::vector<LocalBox>& boxes) const;

 private:
  struct Dim {
    AxisGroup axes = {};
    std::vector<DimPart> parts = {};
  };
  static constexpr uint64_t kElementsMax = uint64_t{1} << 60;
  static constexpr uint64_t kBoxesMax = uint64_t{1} << 22;
  Status check_size() const;
  const DimPart& part(size_t dim, Rank rank) const {
    return dims_[dim].parts[dims_[dim].axes.index_of(rank)];
  }

  std::vector<Dim> dims_;
  AxisGroup stage_axis_;
  std::vector<bool> on_stage_;  // empty: on all
  AxisGroup expert_axes_;
  std::optional<uint32_t> expert_;
};

}  // namespace pliant::tensor
