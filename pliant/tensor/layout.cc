#include "pliant/tensor/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "pliant/tensor/layout_tables.h"
#include "pliant/tensor/pattern.h"

namespace pliant::tensor {
namespace {

std::string names_of(const Mesh& mesh) {
  std::string names;
  for (const Axis& axis : mesh.axes()) names += (names.empty() ? "" : ", ") + axis.name;
  return names.empty() ? "none" : names;
}

// Looks axes up, and refuses one that the same rule uses elsewhere.
class AxisBook {
 public:
  explicit AxisBook(const Mesh& mesh) : mesh_(mesh) {}

  Result<AxisGroup> take(const std::vector<std::string>& names, const std::string& field) {
    std::vector<uint32_t> axes;
    if (names.empty()) return invalid(fmt::format("{} names no axis", field));
    for (const std::string& name : names) {
      const auto axis = take_one(name, field);
      if (!axis) return axis.error();
      axes.push_back(*axis);
    }
    return AxisGroup(mesh_, axes);
  }

  Result<uint32_t> take_one(const std::string& name, const std::string& field) {
    const auto axis = mesh_.find(name);
    if (!axis)
      return invalid(
          fmt::format("{}: the mesh has no axis '{}'; it has {}", field, name, names_of(mesh_)));
    const auto [place, is_new] = taken_.emplace(*axis, field);
    if (!is_new)
      return invalid(fmt::format("{} and {} both use axis '{}'; each can be used once in a rule",
                                 place->second, field, name));
    return *axis;
  }

 private:
  const Mesh& mesh_;
  std::map<uint32_t, std::string> taken_;
};

// On which stage each layer is.
Result<std::vector<uint32_t>> stages_of_layers(const Pipeline& pipeline, const Mesh& mesh) {
  constexpr uint32_t kLayersMax = 1u << 16;
  const auto axis = mesh.find(pipeline.axis);
  if (!axis)
    return invalid(fmt::format("pipeline.axis: the mesh has no axis '{}'; it has {}", pipeline.axis,
                               names_of(mesh)));
  if (pipeline.layers > kLayersMax)
    return invalid(
        fmt::format("pipeline.layers: {}; the limit is {}", pipeline.layers, kLayersMax));
  const uint32_t stages = mesh.axes()[*axis].size;
  const uint64_t runs = uint64_t{stages} * pipeline.interleave;
  if (pipeline.interleave == 0 || runs > kLayersMax)
    return invalid(fmt::format("pipeline.interleave: {} runs of layers on each of {} stages",
                               pipeline.interleave, stages));
  Split split;
  if (!pipeline.counts.empty()) {
    split.kind = Split::Kind::kSizes;
    split.sizes.assign(pipeline.counts.begin(), pipeline.counts.end());
  }
  const auto bounds = cut_into(split, pipeline.layers, static_cast<uint32_t>(runs));
  if (!bounds && pipeline.counts.empty())
    return invalid(
        fmt::format("pipeline: {} layers cannot be divided evenly into {} runs; give "
                    "'counts', the layers of each run",
                    pipeline.layers, runs));
  if (!bounds) return invalid("pipeline.counts: " + bounds.error().message);
  std::vector<uint32_t> stage_of(pipeline.layers);
  for (size_t run = 0; run < runs; ++run)
    for (uint64_t layer = (*bounds)[run]; layer < (*bounds)[run + 1]; ++layer)
      stage_of[layer] = static_cast<uint32_t>(run % stages);
  return stage_of;
}

struct ReadyRule {
  std::vector<Pattern> patterns = {};
  RuleAxes axes = {};
  std::vector<uint64_t> expert_bounds = {};
};

}  // namespace

class LayoutMaker {
 public:
  LayoutMaker(LayoutSpec spec, std::shared_ptr<const Collection> collection)
      : tables_(std::make_shared<Layout::Tables>()) {
    tables_->spec = std::move(spec);
    tables_->collection = std::move(collection);
  }

  Result<Layout> make() {
    PLIANT_TRY(prepare());
    tables_->tensors.resize(tables_->collection->size());
    for (size_t i = 0; i < tables_->tensors.size(); ++i)
      if (const Status placed = arrange(i); !placed.ok())
        return invalid(fmt::format("tensor '{}': {}", info(i).name, placed.error().message));
    finish_groups();
    return Layout(tables_);
  }

 private:
  using Key =
      std::tuple<size_t, std::vector<uint64_t>, std::vector<uint32_t>, std::optional<uint32_t>>;
  // A rank with index 0 along the axes of flat ranges, and how many elements of the tensor it has.
  struct First {
    Rank rank = 0;
    uint64_t size = 0;
  };
  struct Shared {
    std::shared_ptr<const Arrangement> arrangement = {};
    std::shared_ptr<const Placement> placement = {};
    std::vector<First> firsts = {};
  };

  const LayoutSpec& spec() const { return tables_->spec; }
  const TensorInfo& info(size_t index) const { return (*tables_->collection)[index]; }

  Status prepare() {
    if (spec().pipeline) {
      auto stages = stages_of_layers(*spec().pipeline, spec().mesh);
      if (!stages) return stages.error();
      stage_of_layer_ = std::move(*stages);
    }
    for (size_t i = 0; i < spec().rules.size(); ++i) {
      if (const Status ready = prepare_rule(spec().rules[i]); !ready.ok())
        return invalid(fmt::format("rules[{}]: {}", i, ready.error().message));
      if (spec().rules[i].otherwise && i + 1 != spec().rules.size())
        return invalid(fmt::format("rules[{}]: 'otherwise' must be the last rule", i));
    }
    return {};
  }

  Status prepare_rule(const Rule& rule) {
    ReadyRule ready;
    if (rule.otherwise != rule.match.empty())
      return invalid("give either 'match', one or more patterns, or 'otherwise'");
    for (const std::string& text : rule.match) {
      auto pattern = Pattern::parse(text);
      if (!pattern) return pattern.error();
      ready.patterns.push_back(std::move(*pattern));
    }
    PLIANT_TRY(check_kinds(rule));
    PLIANT_TRY(look_up_axes(rule, ready));
    PLIANT_TRY(check_numbers(rule, ready));
    rules_.push_back(std::move(ready));
    return {};
  }

  static Status check_kinds(const Rule& rule) {
    const bool by_rule = !rule.shard.empty() || rule.stage || rule.experts || rule.flat;
    const int kinds = (by_rule ? 1 : 0) + (rule.pieces.empty() ? 0 : 1) + (rule.replicated ? 1 : 0);
    if (kinds == 0)
      return invalid(
          "says nothing; give 'shard', 'stage', 'experts', 'flat' or 'pieces', or "
          "'replicated': true");
    if (kinds > 1)
      return invalid(
          "'pieces' and 'replicated' each stand alone, without 'shard', 'stage', "
          "'experts' and 'flat'");
    for (size_t i = 0; i < rule.shard.size(); ++i)
      for (size_t before = 0; before < i; ++before)
        if (rule.shard[before].dim == rule.shard[i].dim)
          return invalid(
              fmt::format("shard[{}] and shard[{}] both divide dimension {}; name all "
                          "axes in one of them",
                          before, i, rule.shard[i].dim));
    return {};
  }

  Status look_up_axes(const Rule& rule, ReadyRule& ready) const {
    AxisBook book(spec().mesh);
    for (size_t i = 0; i < rule.shard.size(); ++i) {
      auto axes = book.take(rule.shard[i].axes, fmt::format("shard[{}].axes", i));
      if (!axes) return axes.error();
      ready.axes.shard.push_back(std::move(*axes));
    }
    if (rule.stage) {
      if (!spec().pipeline)
        return invalid("stage: the layout has no 'pipeline' to say what is on which stage");
      const auto axis = book.take_one(spec().pipeline->axis, "stage");
      if (!axis) return axis.error();
      ready.axes.stage = *axis;
    }
    if (rule.experts) {
      auto axes = book.take(rule.experts->axes, "experts.axes");
      if (!axes) return axes.error();
      auto bounds = cut_into(rule.experts->split, rule.experts->count, axes->size());
      if (!bounds) return invalid("experts: " + bounds.error().message);
      ready.axes.experts = std::move(*axes);
      ready.expert_bounds = std::move(*bounds);
    }
    if (rule.flat) {
      auto axes = book.take(rule.flat->axes, "flat.axes");
      if (!axes) return axes.error();
      ready.axes.flat = std::move(*axes);
      constexpr uint64_t kAlignMax = uint64_t{1} << 32;
      for (const uint64_t value : {rule.flat->align, rule.flat->multiple})
        if (value == 0 || value > kAlignMax)
          return invalid(fmt::format("flat: 'align' and 'multiple' are 1 to {}", kAlignMax));
    }
    return {};
  }

  // The numbers that a rule needs must be in each of its patterns.
  Status check_numbers(const Rule& rule, const ReadyRule& ready) const {
    const bool needs_layer = (rule.stage && rule.stage->kind == Stage::Kind::kLayer) ||
                             (rule.flat && rule.flat->group.find("{layer}") != std::string::npos);
    const auto lacks = [&](auto has) {
      return rule.otherwise || !std::ranges::all_of(ready.patterns, has);
    };
    if (needs_layer && lacks(&Pattern::has_layer))
      return invalid("needs the number of the layer; put {layer} into every pattern");
    if (rule.experts && lacks(&Pattern::has_expert))
      return invalid("needs the number of the expert; put {expert} into every pattern");
    if (rule.stage && rule.stage->kind == Stage::Kind::kNumber) {
      const uint32_t stages = spec().mesh.axes()[*ready.axes.stage].size;
      if (rule.stage->number >= stages)
        return invalid(
            fmt::format("stage: there is no stage {} among {}", rule.stage->number, stages));
    }
    return {};
  }

  // The rule of a tensor, and the numbers in its name.
  Result<std::pair<size_t, NameNumbers>> rule_of(const std::string& name) const {
    std::optional<std::pair<size_t, NameNumbers>> found;
    for (size_t i = 0; i < rules_.size(); ++i) {
      for (size_t p = 0; p < rules_[i].patterns.size(); ++p) {
        const auto numbers = rules_[i].patterns[p].match(name);
        if (!numbers) continue;
        if (found && found->first != i)
          return invalid(
              fmt::format("is matched by rules[{}] ('{}') and by rules[{}] ('{}'); make "
                          "one of them narrower",
                          found->first, fmt::join(spec().rules[found->first].match, "', '"), i,
                          spec().rules[i].match[p]));
        if (!found) found.emplace(i, *numbers);
      }
    }
    if (found) return *found;
    if (!rules_.empty() && spec().rules.back().otherwise)
      return std::pair(rules_.size() - 1, NameNumbers{});
    return invalid("no rule matches it; add one, or a last rule with 'otherwise': true");
  }

  Result<Arrangement::Where> where(size_t rule_index, const NameNumbers& numbers) const {
    const Rule& rule = spec().rules[rule_index];
    const ReadyRule& ready = rules_[rule_index];
    Arrangement::Where found;
    if (rule.stage) {
      const uint32_t last = spec().mesh.axes()[*ready.axes.stage].size - 1;
      switch (rule.stage->kind) {
        case Stage::Kind::kLayer:
          if (*numbers.layer >= stage_of_layer_.size())
            return invalid(fmt::format("its layer is {}, but the pipeline has layers 0 to {}",
                                       *numbers.layer, stage_of_layer_.size() - 1));
          found.stages = {stage_of_layer_[*numbers.layer]};
          break;
        case Stage::Kind::kFirst: found.stages = {0}; break;
        case Stage::Kind::kLast: found.stages = {last}; break;
        case Stage::Kind::kFirstAndLast: found.stages = {0, last}; break;
        case Stage::Kind::kNumber: found.stages = {rule.stage->number}; break;
      }
    }
    if (rule.experts) {
      if (*numbers.expert >= rule.experts->count)
        return invalid(fmt::format("its expert is {}, but the rule has experts 0 to {}",
                                   *numbers.expert, rule.experts->count - 1));
      const auto bound = std::ranges::upper_bound(ready.expert_bounds, *numbers.expert);
      found.expert = static_cast<uint32_t>(bound - ready.expert_bounds.begin() - 1);
    }
    return found;
  }

  Status arrange(size_t index) {
    const auto chosen = rule_of(info(index).name);
    if (!chosen) return chosen.error();
    const auto& [rule_index, numbers] = *chosen;
    const Rule& rule = spec().rules[rule_index];
    const auto in_rule = [&, number = rule_index](const Error& error) {
      return invalid(fmt::format("rules[{}].{}", number, error.message));
    };
    PlacedTensor& tensor = tables_->tensors[index];
    tensor.rule = &rule;
    if (!rule.pieces.empty()) {
      auto placement = place_stated(rule.pieces, info(index), spec().mesh);
      if (!placement) return in_rule(placement.error());
      tensor.placement = std::make_shared<Placement>(std::move(*placement));
      return {};
    }
    auto place_of = where(rule_index, numbers);
    if (!place_of) return place_of.error();
    Shared& shared =
        shared_[Key(rule_index, info(index).shape, place_of->stages, place_of->expert)];
    if (!shared.arrangement) {
      auto made = Arrangement::make(spec().mesh, rule, rules_[rule_index].axes, info(index).shape,
                                    std::move(*place_of));
      if (!made) return in_rule(made.error());
      shared.arrangement = std::make_shared<Arrangement>(std::move(*made));
    }
    tensor.arrangement = shared.arrangement;
    if (rule.flat) {
      if (shared.firsts.empty()) find_firsts(rules_[rule_index].axes.flat, shared);
      return join_group(index, rule_index, numbers, shared.firsts);
    }
    if (!shared.placement)
      shared.placement = std::make_shared<Placement>(place(*shared.arrangement, spec().mesh));
    tensor.placement = shared.placement;
    return {};
  }

  void find_firsts(const AxisGroup& axes, Shared& shared) const {
    for (Rank rank = 0; rank < static_cast<Rank>(spec().mesh.size()); ++rank)
      if (shared.arrangement->holds(rank) && axes.index_of(rank) == 0)
        shared.firsts.push_back({rank, volume(whole(shared.arrangement->local_shape(rank)))});
  }

  Status join_group(size_t index, size_t rule_index, const NameNumbers& numbers,
                    std::span<const First> firsts) {
    constexpr uint64_t kGroupMax = uint64_t{1} << 60;
    const Flat& flat = *spec().rules[rule_index].flat;
    std::string name = flat.group;
    if (const size_t mark = name.find("{layer}"); mark != std::string::npos)
      name.replace(mark, 7, std::to_string(*numbers.layer));
    const auto [place, is_new] = group_of_.emplace(name, tables_->groups.size());
    if (is_new) {
      tables_->groups.push_back({.name = name,
                                 .axes = rules_[rule_index].axes.flat,
                                 .flat = &flat,
                                 .dtype = info(index).dtype});
      tables_->groups.back().used.resize(spec().mesh.size());
    }
    FlatGroup& group = tables_->groups[place->second];
    if (group.dtype != info(index).dtype)
      return invalid(
          fmt::format("it is {}, but flat group '{}' began with {}; the tensors of a "
                      "group are of one type",
                      to_string(info(index).dtype), name, to_string(group.dtype)));
    if (*group.flat != flat)
      return invalid(fmt::format("flat group '{}' is described differently by another rule", name));
    PlacedTensor& tensor = tables_->tensors[index];
    tensor.group = place->second;
    for (const auto& [rank, size] : firsts) {
      uint64_t& used = group.used[static_cast<size_t>(rank)];
      used = (used + flat.align - 1) / flat.align * flat.align;
      tensor.starts.push_back({rank, used});
      used += size;
      if (used > kGroupMax)
        return invalid(fmt::format("flat group '{}' has more than 2^60 elements on a rank", name));
    }
    return {};
  }

  // Only now is it known how long the ranges are.
  void finish_groups() {
    for (FlatGroup& group : tables_->groups) {
      const uint64_t parts = group.axes.size();
      for (const uint64_t used : group.used) {
        const uint64_t range = (used + parts - 1) / parts;
        const uint64_t multiple = group.flat->multiple;
        group.range.push_back((range + multiple - 1) / multiple * multiple);
      }
    }
    for (size_t i = 0; i < tables_->tensors.size(); ++i) {
      PlacedTensor& tensor = tables_->tensors[i];
      if (tensor.group == kNoGroup) continue;
      tensor.placement = std::make_shared<Placement>(place_flat(
          *tensor.arrangement, tables_->groups[tensor.group], tensor.starts, info(i).elements()));
    }
  }

  std::shared_ptr<Layout::Tables> tables_;
  std::vector<ReadyRule> rules_;
  std::vector<uint32_t> stage_of_layer_;
  std::map<Key, Shared> shared_;
  std::map<std::string, size_t> group_of_;
};

Result<Layout> Layout::make(LayoutSpec spec, std::shared_ptr<const Collection> collection) {
  return LayoutMaker(std::move(spec), std::move(collection)).make();
}

const LayoutSpec& Layout::spec() const { return tables_->spec; }

const std::shared_ptr<const Collection>& Layout::shared_collection() const {
  return tables_->collection;
}

const Placement& Layout::placement(size_t tensor) const {
  return *tables_->tensors[tensor].placement;
}

}  // namespace pliant::tensor
