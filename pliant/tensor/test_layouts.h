// For tests: layouts from a few words; random numbers, and random collections and layouts, the same
// on every machine.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pliant/base/check.h"
#include "pliant/base/text.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/philox.h"

namespace pliant::tensor {

using Tensors = std::vector<TensorInfo>;

// Of axes with names of two letters, as in "dp=2,tp=4", and rules as the text form has them.
inline Layout layout_of(const std::string& mesh, const std::string& rules, const Tensors& tensors,
                        const std::string& pipeline = "") {
  std::string axes;
  for (const std::string& axis : comma_separated(mesh))
    axes += fmt::format(R"({}{{"name": "{}", "size": {}}})", axes.empty() ? "" : ", ",
                        axis.substr(0, 2), axis.substr(3));
  auto document = parse_layout(
      fmt::format(R"({{"format": "pliant.layout/1", "mesh": {{"axes": [{}]}}, {}"rules": [{}]}})",
                  axes, pipeline, rules));
  PLIANT_CHECK(document.ok(), document.ok() ? "" : document.error().message.c_str());
  auto layout =
      Layout::make(document->spec, std::make_shared<Collection>(*Collection::make(tensors)));
  PLIANT_CHECK(layout.ok(), layout.ok() ? "" : layout.error().message.c_str());
  return *layout;
}

// A rule for all tensors: along one dimension over tp.
inline std::string sharded(int dim, const std::string& more = "") {
  return fmt::format(R"({{"match": "*", "shard": [{{"dim": {}, "axes": ["tp"]{}}}]}})", dim, more);
}

class Chance {
 public:
  explicit Chance(uint64_t seed) : state_(derive_random(seed, "test", 0, 0)) {}

  // From 0 to before `end`.
  uint64_t below(uint64_t end) {
    state_ = following(state_);
    return philox(state_)[0] % std::max<uint64_t>(end, 1);
  }
  // Both ends included.
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool percent(uint64_t percent) { return below(100) < percent; }

  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }
  template <typename T>
  const T& one_of(const std::vector<T>& items) {
    return items[below(items.size())];
  }

 private:
  PhiloxState state_;
};

// Tensors that one rule is for: all have one shape and type.
struct Family {
  std::string pattern = {};
  std::vector<uint64_t> shape = {};
  DType dtype = DType::kF32;
};

// A random collection, from which random layouts can be made.
class RandomWorld {
 public:
  static constexpr uint32_t kLayers = 5;
  static constexpr uint32_t kExperts = 4;

  explicit RandomWorld(uint64_t seed) : chance_(seed) {
    std::vector<TensorInfo> tensors;
    const uint64_t families = chance_.between(1, 5);
    for (uint64_t f = 0; f < families; ++f) {
      Family family;
      const uint64_t kind = chance_.below(4);
      family.pattern = fmt::format("f{}.{}w", f,
                                   kind == 1   ? "{layer}."
                                   : kind == 2 ? "{expert}."
                                   : kind == 3 ? "{layer}.{expert}."
                                               : "");
      const uint64_t dims = chance_.below(4);
      for (uint64_t d = 0; d < dims; ++d)
        family.shape.push_back(chance_.percent(3) ? 0 : chance_.between(1, d == 0 ? 12 : 5));
      family.dtype = static_cast<DType>(chance_.below(kDTypes));
      add_names(family, tensors);
      families_.push_back(std::move(family));
    }
    chance_.shuffle(tensors);
    collection_ = std::make_shared<Collection>(*Collection::make(std::move(tensors)));
  }

  const std::shared_ptr<const Collection>& collection() const { return collection_; }
  Chance& chance() { return chance_; }

  LayoutSpec random_spec() {
    LayoutSpec spec;
    axes_ = {};
    uint64_t size = 1;
    for (const char* name : {"pp", "dp", "ep", "tp"}) {
      const auto extent = static_cast<uint32_t>(chance_.percent(30) ? 1 : chance_.between(1, 4));
      if (size * extent > 12) continue;
      size *= extent;
      axes_.push_back({name, extent});
    }
    spec.mesh = *Mesh::make(axes_, static_cast<uint32_t>(chance_.below(4)));
    if (has_axis("pp")) spec.pipeline = random_pipeline(size_of_axis("pp"));
    for (const Family& family : families_) spec.rules.push_back(random_rule(family, spec));
    chance_.shuffle(spec.rules);
    return spec;
  }

 private:
  void add_names(const Family& family, std::vector<TensorInfo>& tensors) {
    const bool has_layer = family.pattern.find("{layer}") != std::string::npos;
    const bool has_expert = family.pattern.find("{expert}") != std::string::npos;
    for (uint32_t layer = 0; layer < (has_layer ? kLayers : 1); ++layer) {
      for (uint32_t expert = 0; expert < (has_expert ? kExperts : 1); ++expert) {
        std::string name = family.pattern;
        if (has_layer) name.replace(name.find("{layer}"), 7, std::to_string(layer));
        if (has_expert) name.replace(name.find("{expert}"), 8, std::to_string(expert));
        tensors.push_back({name, family.dtype, family.shape});
      }
    }
  }

  bool has_axis(std::string_view name) const {
    return std::ranges::any_of(axes_, [&](const Axis& axis) { return axis.name == name; });
  }
  uint32_t size_of_axis(std::string_view name) const {
    for (const Axis& axis : axes_)
      if (axis.name == name) return axis.size;
    return 1;
  }

  Pipeline random_pipeline(uint32_t stages) {
    Pipeline pipeline{.axis = "pp", .layers = kLayers};
    pipeline.interleave = static_cast<uint32_t>(chance_.between(1, 2));
    const uint32_t runs = stages * pipeline.interleave;
    if (kLayers % runs == 0 && chance_.percent(50)) return pipeline;
    pipeline.counts.resize(runs);
    for (uint32_t layer = 0; layer < kLayers; ++layer) ++pipeline.counts[chance_.below(runs)];
    return pipeline;
  }

  // Takes some axes away from those that a rule has left.
  std::vector<std::string> some_axes(std::vector<std::string>& left) {
    chance_.shuffle(left);
    const uint64_t count = chance_.between(1, std::min<uint64_t>(left.size(), 2));
    std::vector<std::string> taken(left.end() - static_cast<ptrdiff_t>(count), left.end());
    left.resize(left.size() - count);
    return taken;
  }

  uint32_t parts_of(const std::vector<std::string>& axes) const {
    uint32_t parts = 1;
    for (const std::string& axis : axes) parts *= size_of_axis(axis);
    return parts;
  }

  Split random_split(uint64_t extent, uint32_t parts) {
    Split split;
    const uint64_t kind = chance_.below(extent % parts == 0 ? 4 : 3);
    split.kind = kind == 0   ? Split::Kind::kCeil
                 : kind == 1 ? Split::Kind::kBalanced
                 : kind == 2 ? Split::Kind::kSizes
                             : Split::Kind::kEven;
    if (split.kind == Split::Kind::kSizes) {
      split.sizes.resize(parts);
      for (uint64_t i = 0; i < extent; ++i) ++split.sizes[chance_.below(parts)];
    } else if (split.kind != Split::Kind::kEven && extent % 2 == 0 && chance_.percent(30)) {
      split.unit = 2;
    }
    return split;
  }

  DimShard random_shard(uint32_t dim, uint64_t extent, std::vector<std::string> axes) {
    DimShard shard{.dim = dim, .axes = std::move(axes)};
    const uint32_t parts = parts_of(shard.axes);
    if (extent >= 2 && chance_.percent(35)) {
      shard.split.kind = chance_.percent(50) ? Split::Kind::kCeil : Split::Kind::kBalanced;
      if (extent % 2 == 0 && chance_.percent(30)) shard.repeat = 2;
      uint64_t left = extent / shard.repeat;
      while (left > 0) {
        const uint64_t size = shard.blocks.size() == 2 ? left : chance_.between(1, left);
        shard.blocks.push_back({.name = {}, .size = size, .units = random_units(size, parts)});
        left -= size;
      }
      return shard;
    }
    if (chance_.percent(20)) {
      shard.padded = extent + chance_.between(1, 5);
      shard.split = random_split(shard.padded, parts);
      return shard;
    }
    shard.split = random_split(extent, parts);
    return shard;
  }

  uint32_t random_units(uint64_t size, uint32_t parts) {
    const auto units = static_cast<uint32_t>(chance_.between(1, size));
    if (chance_.percent(50) || size % units != 0) return 0;
    return units >= parts || parts % units == 0 ? units : 0;
  }

  Rule random_rule(const Family& family, const LayoutSpec& spec) {
    Rule rule;
    rule.match = {family.pattern};
    if (chance_.percent(15)) {
      rule.pieces = random_pieces(family.shape, spec.mesh);
      if (!rule.pieces.empty()) return rule;
    }
    std::vector<std::string> left;
    for (const Axis& axis : axes_) left.push_back(axis.name);
    const auto without = [&](const char* name) { std::erase(left, name); };
    if (spec.pipeline && chance_.percent(60)) {
      const bool has_layer = family.pattern.find("{layer}") != std::string::npos;
      const std::vector<Stage::Kind> kinds = {Stage::Kind::kFirst, Stage::Kind::kLast,
                                              Stage::Kind::kFirstAndLast};
      rule.stage = Stage{.kind = has_layer ? Stage::Kind::kLayer : chance_.one_of(kinds)};
      without("pp");
    }
    if (family.pattern.find("{expert}") != std::string::npos && has_axis("ep") &&
        chance_.percent(70)) {
      rule.experts = Experts{{"ep"}, kExperts};
      rule.experts->split = random_split(kExperts, size_of_axis("ep"));
      rule.experts->split.unit = 1;
      without("ep");
    }
    if (!left.empty() && chance_.percent(30)) {
      rule.flat = random_flat(family.dtype, left);
    }
    for (uint32_t d = 0; d < family.shape.size() && !left.empty(); ++d)
      if (chance_.percent(60))
        rule.shard.push_back(random_shard(d, family.shape[d], some_axes(left)));
    rule.replicated = rule.shard.empty() && !rule.stage && !rule.experts && !rule.flat;
    return rule;
  }

  Flat random_flat(DType dtype, std::vector<std::string>& left) {
    Flat flat;
    flat.axes = some_axes(left);
    flat.align = chance_.between(1, 3);
    flat.multiple = chance_.between(1, 4);
    flat.group = fmt::format("{} {} {} {}", to_string(dtype), fmt::join(flat.axes, "+"), flat.align,
                             flat.multiple);
    return flat;
  }

  // Each rank, or a few of them, cuts the tensor in its own way; together they have all of it.
  std::vector<StatedPiece> random_pieces(const std::vector<uint64_t>& shape, const Mesh& mesh) {
    std::vector<StatedPiece> pieces;
    if (volume(whole(shape)) == 0) return pieces;
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < static_cast<Rank>(mesh.size()); ++rank) ranks.push_back(rank);
    chance_.shuffle(ranks);
    const uint64_t replicas = chance_.between(1, 2);
    for (uint64_t replica = 0; replica < replicas && !ranks.empty(); ++replica) {
      const auto count = static_cast<size_t>(chance_.between(1, ranks.size()));
      const std::vector<Rank> some(ranks.end() - static_cast<ptrdiff_t>(count), ranks.end());
      ranks.resize(ranks.size() - count);
      std::vector<Box> boxes = {whole(shape)};
      for (uint64_t cut = chance_.below(5); cut > 0; --cut) halve(boxes);
      for (const Box& box : boxes) pieces.push_back({{chance_.one_of(some)}, box});
    }
    return pieces;
  }

  void halve(std::vector<Box>& boxes) {
    const size_t which = chance_.below(boxes.size());
    if (boxes[which].dims == 0) return;
    const auto dim = static_cast<uint32_t>(chance_.below(boxes[which].dims));
    if (boxes[which].extent(dim) < 2) return;
    const uint64_t at = boxes[which].begin[dim] + chance_.between(1, boxes[which].extent(dim) - 1);
    Box second = boxes[which];
    second.begin[dim] = at;
    boxes[which].end[dim] = at;
    boxes.push_back(second);
  }

  Chance chance_;
  std::vector<Family> families_;
  std::shared_ptr<const Collection> collection_;
  std::vector<Axis> axes_;
};

}  // namespace pliant::tensor
