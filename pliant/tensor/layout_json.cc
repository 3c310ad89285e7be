#include "pliant/tensor/layout_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "pliant/tensor/json_fields.h"
#include "pliant/tensor/presets.h"

namespace pliant::tensor {
namespace {

constexpr uint64_t kExtentMax = Collection::kBytesMax;
constexpr uint64_t kUnsignedMax = UINT32_MAX;

constexpr std::array<std::pair<std::string_view, Split::Kind>, 3> kSplits = {
    {{"even", Split::Kind::kEven},
     {"ceil", Split::Kind::kCeil},
     {"balanced", Split::Kind::kBalanced}}};
constexpr std::array<std::pair<std::string_view, Stage::Kind>, 4> kStages = {
    {{"layer", Stage::Kind::kLayer},
     {"first", Stage::Kind::kFirst},
     {"last", Stage::Kind::kLast},
     {"first_and_last", Stage::Kind::kFirstAndLast}}};

template <typename Kind, size_t size>
Result<Kind> find_word(const std::array<std::pair<std::string_view, Kind>, size>& words,
                       const JsonField& field, const char* otherwise) {
  std::string known;
  const std::string text = field.value().is_string() ? field.value().get<std::string>() : "";
  for (const auto& [word, kind] : words) {
    if (text == word) return kind;
    known += fmt::format("'{}', ", word);
  }
  return field.fault(fmt::format("expected {}or {}", known, otherwise));
}

template <typename Kind, size_t size>
std::string word_of(const std::array<std::pair<std::string_view, Kind>, size>& words, Kind kind) {
  for (const auto& [word, known] : words)
    if (known == kind) return std::string(word);
  return "";
}

// ---- Reading ------------------------------------------------------------------------------------

Status read_split(const JsonField& field, Split& split) {
  if (field.value().is_array()) {
    split.kind = Split::Kind::kSizes;
    return assign(split.sizes, field.numbers(kExtentMax));
  }
  return assign(split.kind, find_word(kSplits, field, "a list of sizes"));
}

Status read_block(const JsonField& field, Block& block) {
  PLIANT_TRY(field.check_keys({"name", "size", "units"}));
  PLIANT_TRY(field.read_optional(
      "name", [&](const JsonField& name) { return assign(block.name, name.text()); }));
  PLIANT_TRY(field.read_optional("units", [&](const JsonField& units) {
    return assign(block.units, units.number(1, kUnsignedMax));
  }));
  const auto size = field.get("size");
  if (!size) return size.error();
  return assign(block.size, size->number(1, kExtentMax));
}

Status read_shard(const JsonField& field, DimShard& shard) {
  PLIANT_TRY(
      field.check_keys({"dim", "axes", "split", "unit", "blocks", "repeat", "padded", "fill"}));
  const auto dim = field.get("dim");
  if (!dim) return dim.error();
  PLIANT_TRY(assign(shard.dim, dim->number(0, kDimsMax - 1)));
  const auto axes = field.get("axes");
  if (!axes) return axes.error();
  PLIANT_TRY(assign(shard.axes, axes->texts()));
  PLIANT_TRY(field.read_optional(
      "split", [&](const JsonField& split) { return read_split(split, shard.split); }));
  PLIANT_TRY(field.read_optional("unit", [&](const JsonField& unit) {
    return assign(shard.split.unit, unit.number(1, kExtentMax));
  }));
  PLIANT_TRY(field.read_optional("blocks", [&](const JsonField& blocks) {
    return blocks.each(
        [&](const JsonField& block) { return read_block(block, shard.blocks.emplace_back()); });
  }));
  PLIANT_TRY(field.read_optional("repeat", [&](const JsonField& repeat) {
    return assign(shard.repeat, repeat.number(1, kUnsignedMax));
  }));
  PLIANT_TRY(field.read_optional("padded", [&](const JsonField& padded) {
    return assign(shard.padded, padded.number(1, kExtentMax));
  }));
  return field.read_optional(
      "fill", [&](const JsonField& fill) { return assign(shard.fill, fill.real()); });
}

Status read_stage(const JsonField& field, std::optional<Stage>& stage) {
  stage.emplace();
  if (field.value().is_number()) {
    stage->kind = Stage::Kind::kNumber;
    return assign(stage->number, field.number(0, kUnsignedMax));
  }
  return assign(stage->kind, find_word(kStages, field, "the number of a stage"));
}

Status read_experts(const JsonField& field, std::optional<Experts>& experts) {
  PLIANT_TRY(field.check_keys({"axes", "count", "split"}));
  experts.emplace();
  const auto axes = field.get("axes");
  if (!axes) return axes.error();
  PLIANT_TRY(assign(experts->axes, axes->texts()));
  const auto count = field.get("count");
  if (!count) return count.error();
  PLIANT_TRY(assign(experts->count, count->number(1, kUnsignedMax)));
  return field.read_optional(
      "split", [&](const JsonField& split) { return read_split(split, experts->split); });
}

Status read_flat(const JsonField& field, std::optional<Flat>& flat) {
  PLIANT_TRY(field.check_keys({"group", "axes", "align", "multiple", "fill"}));
  flat.emplace();
  const auto group = field.get("group");
  if (!group) return group.error();
  PLIANT_TRY(assign(flat->group, group->text()));
  const auto axes = field.get("axes");
  if (!axes) return axes.error();
  PLIANT_TRY(assign(flat->axes, axes->texts()));
  PLIANT_TRY(field.read_optional("align", [&](const JsonField& align) {
    return assign(flat->align, align.number(1, kExtentMax));
  }));
  PLIANT_TRY(field.read_optional("multiple", [&](const JsonField& multiple) {
    return assign(flat->multiple, multiple.number(1, kExtentMax));
  }));
  return field.read_optional(
      "fill", [&](const JsonField& fill) { return assign(flat->fill, fill.real()); });
}

Status read_piece(const JsonField& field, StatedPiece& piece) {
  PLIANT_TRY(field.check_keys({"ranks", "begin", "end"}));
  const auto ranks = field.get("ranks");
  const auto begin = field.get("begin");
  const auto end = field.get("end");
  for (const auto* part : {&ranks, &begin, &end})
    if (!*part) return part->error();
  const auto numbers = ranks->numbers(Mesh::kRanksMax);
  const auto begins = begin->numbers(kExtentMax);
  const auto ends = end->numbers(kExtentMax);
  for (const auto* list : {&numbers, &begins, &ends})
    if (!*list) return list->error();
  if (begins->size() > kDimsMax || begins->size() != ends->size())
    return field.fault(
        fmt::format("'begin' and 'end' have one number for each dimension, of which "
                    "there are {} at most",
                    kDimsMax));
  for (const uint64_t rank : *numbers) piece.ranks.push_back(static_cast<Rank>(rank));
  piece.box.dims = static_cast<uint32_t>(begins->size());
  std::ranges::copy(*begins, piece.box.begin.begin());
  std::ranges::copy(*ends, piece.box.end.begin());
  return {};
}

Status read_rule(const JsonField& field, Rule& rule) {
  PLIANT_TRY(field.check_keys(
      {"match", "otherwise", "shard", "stage", "experts", "flat", "pieces", "replicated"}));
  PLIANT_TRY(field.read_optional("match", [&](const JsonField& match) {
    return match.value().is_array() ? assign(rule.match, match.texts())
                                    : assign(rule.match.emplace_back(), match.text());
  }));
  PLIANT_TRY(field.read_optional(
      "otherwise", [&](const JsonField& flag) { return assign(rule.otherwise, flag.flag()); }));
  PLIANT_TRY(field.read_optional("shard", [&](const JsonField& list) {
    return list.each(
        [&](const JsonField& shard) { return read_shard(shard, rule.shard.emplace_back()); });
  }));
  PLIANT_TRY(field.read_optional(
      "stage", [&](const JsonField& stage) { return read_stage(stage, rule.stage); }));
  PLIANT_TRY(field.read_optional(
      "experts", [&](const JsonField& experts) { return read_experts(experts, rule.experts); }));
  PLIANT_TRY(field.read_optional(
      "flat", [&](const JsonField& flat) { return read_flat(flat, rule.flat); }));
  PLIANT_TRY(field.read_optional("pieces", [&](const JsonField& list) {
    return list.each(
        [&](const JsonField& piece) { return read_piece(piece, rule.pieces.emplace_back()); });
  }));
  return field.read_optional(
      "replicated", [&](const JsonField& flag) { return assign(rule.replicated, flag.flag()); });
}

Status read_mesh(const JsonField& field, Mesh& mesh) {
  PLIANT_TRY(field.check_keys({"axes", "ranks_per_host", "hosts"}));
  std::vector<Axis> axes;
  const auto list = field.get("axes");
  if (!list) return list.error();
  PLIANT_TRY(list->each([&](const JsonField& item) -> Status {
    PLIANT_TRY(item.check_keys({"name", "size"}));
    Axis& axis = axes.emplace_back();
    const auto name = item.get("name");
    const auto size = item.get("size");
    if (!name) return name.error();
    if (!size) return size.error();
    PLIANT_TRY(assign(axis.name, name->text()));
    return assign(axis.size, size->number(1, Mesh::kRanksMax));
  }));
  uint32_t ranks_per_host = 0;
  PLIANT_TRY(field.read_optional("ranks_per_host", [&](const JsonField& ranks) {
    return assign(ranks_per_host, ranks.number(1, Mesh::kRanksMax));
  }));
  std::vector<uint64_t> hosts;
  PLIANT_TRY(field.read_optional("hosts", [&](const JsonField& given) {
    return assign(hosts, given.numbers(Mesh::kRanksMax - 1));
  }));
  if (field.has("hosts") && field.has("ranks_per_host"))
    return field.fault("give 'ranks_per_host' or 'hosts', not both");
  auto made = field.has("hosts") ? Mesh::make_on(std::move(axes),
                                                 std::vector<uint32_t>(hosts.begin(), hosts.end()))
                                 : Mesh::make(std::move(axes), ranks_per_host);
  if (!made) return field.fault(made.error().message);
  mesh = std::move(*made);
  return {};
}

Status read_pipeline(const JsonField& field, std::optional<Pipeline>& pipeline) {
  PLIANT_TRY(field.check_keys({"axis", "layers", "interleave", "counts"}));
  pipeline.emplace();
  const auto axis = field.get("axis");
  if (!axis) return axis.error();
  PLIANT_TRY(assign(pipeline->axis, axis->text()));
  const auto layers = field.get("layers");
  if (!layers) return layers.error();
  PLIANT_TRY(assign(pipeline->layers, layers->number(1, kUnsignedMax)));
  PLIANT_TRY(field.read_optional("interleave", [&](const JsonField& interleave) {
    return assign(pipeline->interleave, interleave.number(1, kUnsignedMax));
  }));
  return field.read_optional("counts", [&](const JsonField& counts) -> Status {
    const auto list = counts.numbers(kUnsignedMax);
    if (!list) return list.error();
    for (const uint64_t count : *list) pipeline->counts.push_back(static_cast<uint32_t>(count));
    return {};
  });
}

Status read_tensor(const JsonField& field, TensorInfo& tensor) {
  PLIANT_TRY(field.check_keys({"name", "dtype", "shape"}));
  const auto name = field.get("name");
  const auto dtype = field.get("dtype");
  const auto shape = field.get("shape");
  for (const auto* part : {&name, &dtype, &shape})
    if (!*part) return part->error();
  PLIANT_TRY(assign(tensor.name, name->text()));
  const auto word = dtype->text();
  if (!word) return word.error();
  const auto parsed = parse_dtype(*word);
  if (!parsed) return dtype->fault(parsed.error().message);
  tensor.dtype = *parsed;
  return assign(tensor.shape, shape->numbers(kExtentMax));
}

Status read_tensors(const JsonField& field, std::optional<Collection>& collection) {
  std::vector<TensorInfo> tensors;
  PLIANT_TRY(
      field.each([&](const JsonField& item) { return read_tensor(item, tensors.emplace_back()); }));
  auto made = Collection::make(std::move(tensors));
  if (!made) return field.fault(made.error().message);
  collection = std::move(*made);
  return {};
}

// A document that names a model instead of tensors and rules.
Status read_model(const JsonField& root, LayoutDocument& document) {
  PLIANT_TRY(root.check_keys({"format", "model", "dtype", "parallelism", "ranks_per_host"}));
  std::string name;
  PLIANT_TRY(root.read_optional(
      "model", [&](const JsonField& field) { return assign(name, field.text()); }));
  const auto model = find_model(name);
  if (!model) return invalid("model: " + model.error().message);
  std::string dtype = "bf16";
  PLIANT_TRY(root.read_optional(
      "dtype", [&](const JsonField& field) { return assign(dtype, field.text()); }));
  const auto parsed = parse_dtype(dtype);
  if (!parsed) return invalid("dtype: " + parsed.error().message);
  std::string sizes;
  const auto given = root.get("parallelism");
  if (!given) return given.error();
  PLIANT_TRY(assign(sizes, given->text()));
  const auto parallelism = parse_parallelism(sizes);
  if (!parallelism) return invalid("parallelism: " + parallelism.error().message);
  uint32_t ranks_per_host = 0;
  PLIANT_TRY(root.read_optional("ranks_per_host", [&](const JsonField& field) {
    return assign(ranks_per_host, field.number(1, Mesh::kRanksMax));
  }));
  PLIANT_TRY(assign(document.spec, make_spec(*model, *parallelism, ranks_per_host)));
  return assign(document.collection, make_state(*model, *parsed));
}

}  // namespace

Result<LayoutDocument> parse_layout(std::string_view text) {
  const auto json = parse_json(text, "the layout");
  if (!json) return json.error();
  const JsonField root(*json, "");
  if (!json->is_object()) return root.fault("expected an object with 'format', 'mesh' and 'rules'");
  const auto format = root.get("format");
  if (!format) return format.error();
  if (format->value() != kLayoutFormat)
    return format->fault(fmt::format("expected \"{}\"", kLayoutFormat));
  LayoutDocument document;
  if (root.has("model")) {
    PLIANT_TRY(read_model(root, document));
    return document;
  }
  PLIANT_TRY(root.check_keys({"format", "mesh", "pipeline", "tensors", "rules"}));
  const auto mesh = root.get("mesh");
  if (!mesh) return mesh.error();
  PLIANT_TRY(read_mesh(*mesh, document.spec.mesh));
  PLIANT_TRY(root.read_optional("pipeline", [&](const JsonField& field) {
    return read_pipeline(field, document.spec.pipeline);
  }));
  PLIANT_TRY(root.read_optional(
      "tensors", [&](const JsonField& field) { return read_tensors(field, document.collection); }));
  const auto rules = root.get("rules");
  if (!rules) return rules.error();
  PLIANT_TRY(rules->each(
      [&](const JsonField& rule) { return read_rule(rule, document.spec.rules.emplace_back()); }));
  return document;
}

// ---- Writing ------------------------------------------------------------------------------------

namespace {

Json split_json(const Split& split) {
  if (split.kind == Split::Kind::kSizes) return split.sizes;
  return word_of(kSplits, split.kind);
}

Json shard_json(const DimShard& shard) {
  Json json = {{"dim", shard.dim}, {"axes", shard.axes}};
  if (shard.split.kind != Split::Kind::kEven) json["split"] = split_json(shard.split);
  if (shard.split.unit != 1) json["unit"] = shard.split.unit;
  for (const Block& block : shard.blocks) {
    Json item = Json::object();
    if (!block.name.empty()) item["name"] = block.name;
    item["size"] = block.size;
    if (block.units != 0) item["units"] = block.units;
    json["blocks"].push_back(std::move(item));
  }
  if (shard.repeat != 1) json["repeat"] = shard.repeat;
  if (shard.padded != 0) json["padded"] = shard.padded;
  if (shard.fill != 0) json["fill"] = shard.fill;
  return json;
}

Json flat_json(const Flat& flat) {
  Json json = {{"group", flat.group}, {"axes", flat.axes}};
  if (flat.align != 1) json["align"] = flat.align;
  if (flat.multiple != 1) json["multiple"] = flat.multiple;
  if (flat.fill != 0) json["fill"] = flat.fill;
  return json;
}

Json rule_json(const Rule& rule) {
  Json json = Json::object();
  if (rule.otherwise) json["otherwise"] = true;
  if (rule.match.size() == 1) json["match"] = rule.match[0];
  if (rule.match.size() > 1) json["match"] = rule.match;
  for (const DimShard& shard : rule.shard) json["shard"].push_back(shard_json(shard));
  if (rule.stage) {
    json["stage"] = word_of(kStages, rule.stage->kind);
    if (rule.stage->kind == Stage::Kind::kNumber) json["stage"] = rule.stage->number;
  }
  if (rule.experts) {
    json["experts"] = {{"axes", rule.experts->axes}, {"count", rule.experts->count}};
    if (rule.experts->split != Split{}) json["experts"]["split"] = split_json(rule.experts->split);
  }
  if (rule.flat) json["flat"] = flat_json(*rule.flat);
  for (const StatedPiece& piece : rule.pieces) {
    Json item = {{"ranks", piece.ranks}, {"begin", Json::array()}, {"end", Json::array()}};
    for (uint32_t d = 0; d < piece.box.dims; ++d) {
      item["begin"].push_back(piece.box.begin[d]);
      item["end"].push_back(piece.box.end[d]);
    }
    json["pieces"].push_back(std::move(item));
  }
  if (rule.replicated) json["replicated"] = true;
  return json;
}

Json mesh_json(const Mesh& mesh) {
  Json json = {{"axes", Json::array()}};
  for (const Axis& axis : mesh.axes())
    json["axes"].push_back({{"name", axis.name}, {"size", axis.size}});
  const std::vector<uint32_t>& hosts = mesh.hosts();
  const auto ranks = static_cast<uint32_t>(
      std::ranges::find_if(hosts, [](uint32_t host) { return host != 0; }) - hosts.begin());
  bool is_regular = ranks != 0;
  for (uint32_t rank = 0; rank < mesh.size() && is_regular; ++rank)
    is_regular = hosts[rank] == rank / ranks;
  if (!is_regular) json["hosts"] = hosts;
  if (is_regular && ranks < mesh.size()) json["ranks_per_host"] = ranks;
  return json;
}

Json pipeline_json(const Pipeline& pipeline) {
  Json json = {{"axis", pipeline.axis}, {"layers", pipeline.layers}};
  if (pipeline.interleave != 1) json["interleave"] = pipeline.interleave;
  if (!pipeline.counts.empty()) json["counts"] = pipeline.counts;
  return json;
}

// Names that are no UTF-8 are no reason to fail.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string lines_of(const std::vector<Json>& items) {
  std::string text;
  for (const Json& item : items)
    text += fmt::format("{}\n    {}", text.empty() ? "" : ",", line_of(item));
  return "[" + text + "\n  ]";
}

}  // namespace

std::string to_json(const LayoutDocument& document) {
  std::string text = fmt::format("{{\n  \"format\": \"{}\",\n  \"mesh\": {}", kLayoutFormat,
                                 line_of(mesh_json(document.spec.mesh)));
  if (document.spec.pipeline)
    text += fmt::format(",\n  \"pipeline\": {}", line_of(pipeline_json(*document.spec.pipeline)));
  if (document.collection) {
    std::vector<Json> tensors;
    for (const TensorInfo& tensor : document.collection->tensors())
      tensors.push_back(
          {{"name", tensor.name}, {"dtype", to_string(tensor.dtype)}, {"shape", tensor.shape}});
    text += fmt::format(",\n  \"tensors\": {}", lines_of(tensors));
  }
  std::vector<Json> rules;
  for (const Rule& rule : document.spec.rules) rules.push_back(rule_json(rule));
  return text + fmt::format(",\n  \"rules\": {}\n}}\n", lines_of(rules));
}

}  // namespace pliant::tensor
