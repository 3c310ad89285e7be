#include "pliant/tensor/presets.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "pliant/base/text.h"

namespace pliant::tensor {
namespace {

constexpr uint64_t kGptVocabulary = 50257;

Model gpt(std::string name, uint32_t layers, uint64_t hidden, uint32_t heads) {
  return {.name = std::move(name),
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .head_size = hidden / heads,
          .inner = 4 * hidden,
          .vocabulary = kGptVocabulary,
          .positions = 2048,
          .tied_head = true};
}

struct Heads {
  uint32_t query = 0;
  uint32_t key_value = 0;
  uint64_t size = 128;
};

Model llama(std::string name, uint32_t layers, uint64_t hidden, Heads heads, uint64_t inner,
            uint64_t vocabulary) {
  return {.name = std::move(name),
          .family = Model::Family::kLlama,
          .layers = layers,
          .hidden = hidden,
          .heads = heads.query,
          .kv_heads = heads.key_value,
          .head_size = heads.size,
          .inner = inner,
          .vocabulary = vocabulary};
}

Model with_experts(Model model, uint32_t experts) {
  model.experts = experts;
  return model;
}

Model qwen2(Model model) {
  model.qkv_bias = true;
  return model;
}

Model qwen3(Model model) {
  model.head_norms = true;
  return model;
}

std::vector<Model> all_models() {
  Model gpt_tiny = gpt("gpt-tiny", 4, 32, 8);
  gpt_tiny.vocabulary = 100;
  gpt_tiny.positions = 8;
  return {
      gpt_tiny,
      gpt("gpt3-125m", 12, 768, 12),
      gpt("gpt3-350m", 24, 1024, 16),
      gpt("gpt3-760m", 24, 1536, 16),
      gpt("gpt3-xl", 24, 2048, 16),
      gpt("gpt3-2.7b", 32, 2560, 32),
      gpt("gpt3-6.7b", 32, 4096, 32),
      gpt("gpt3-13b", 40, 5120, 40),
      gpt("gpt3-175b", 96, 12288, 96),
      llama("llama-tiny", 4, 32, {8, 2, 4}, 48, 100),
      llama("llama2-7b", 32, 4096, {32, 32}, 11008, 32000),
      llama("llama2-13b", 40, 5120, {40, 40}, 13824, 32000),
      llama("llama2-70b", 80, 8192, {64, 8}, 28672, 32000),
      llama("llama3-8b", 32, 4096, {32, 8}, 14336, 128256),
      llama("llama3-70b", 80, 8192, {64, 8}, 28672, 128256),
      llama("llama3-405b", 126, 16384, {128, 8}, 53248, 128256),
      qwen2(llama("qwen2.5-7b", 28, 3584, {28, 4}, 18944, 152064)),
      qwen2(llama("qwen2.5-72b", 80, 8192, {64, 8}, 29568, 152064)),
      qwen3(llama("qwen3-8b", 36, 4096, {32, 8}, 12288, 151936)),
      with_experts(llama("moe-tiny", 4, 32, {8, 2, 4}, 16, 100), 8),
      with_experts(llama("mixtral-8x7b", 32, 4096, {32, 8}, 14336, 32000), 8),
      with_experts(qwen3(llama("qwen3-30b-a3b", 48, 2048, {32, 4}, 768, 151936)), 128),
      with_experts(qwen3(llama("qwen3-235b-a22b", 94, 4096, {64, 4}, 1536, 151936)), 128),
  };
}

// ---- The parameters of a model ------------------------------------------------------------------

// Parameters of one kind: one, or one for each layer, or one for each expert of each layer.
struct Kind {
  std::string pattern;  // also the name, with numbers in the place of {layer} and {expert}
  std::vector<uint64_t> shape;
  Rule rule = {};  // without patterns

  bool has(std::string_view mark) const { return pattern.find(mark) != std::string::npos; }
};

DimShard over_tp(uint32_t dim) { return {.dim = dim, .axes = {"tp"}}; }

DimShard in_units(uint32_t dim, uint64_t unit) {
  DimShard shard = over_tp(dim);
  shard.split.unit = unit;
  return shard;
}

DimShard in_blocks(std::vector<Block> blocks) {
  DimShard shard = over_tp(0);
  shard.blocks = std::move(blocks);
  return shard;
}

// Megatron makes a vocabulary divisible by 128 times the number of ranks that share it; others by
// this number alone.
DimShard of_vocabulary(const Model& model, uint32_t tp) {
  const uint64_t multiple = (model.family == Model::Family::kGpt ? 128 : 1) * uint64_t{tp};
  const uint64_t padded = (model.vocabulary + multiple - 1) / multiple * multiple;
  DimShard shard = over_tp(0);
  if (padded != model.vocabulary) shard.padded = padded;
  return shard;
}

class Kinds {
 public:
  Kinds(const Model& model, uint32_t tp) : model_(model), tp_(tp) {
    if (model.family == Model::Family::kGpt) {
      add_gpt();
    } else {
      add_llama();
    }
  }

  std::vector<Kind> take() { return std::move(kinds_); }

 private:
  void add(std::string pattern, std::vector<uint64_t> shape, Stage::Kind stage,
           std::vector<DimShard> shard = {}) {
    Kind kind{std::move(pattern), std::move(shape)};
    kind.rule.stage = Stage{.kind = stage};
    kind.rule.shard = std::move(shard);
    kinds_.push_back(std::move(kind));
  }

  void add_to_layer(const std::string& name, std::vector<uint64_t> shape,
                    std::vector<DimShard> shard = {}) {
    add(layer_ + name, std::move(shape), Stage::Kind::kLayer, std::move(shard));
  }

  void add_gpt() {
    const uint64_t hidden = model_.hidden;
    const uint64_t inner = model_.inner;
    layer_ = "decoder.layers.{layer}.";
    add("embedding.word_embeddings.weight", {model_.vocabulary, hidden}, Stage::Kind::kFirstAndLast,
        {of_vocabulary(model_, tp_)});
    add("embedding.position_embeddings.weight", {model_.positions, hidden}, Stage::Kind::kFirst);
    for (const char* name : {"input_layernorm.weight", "input_layernorm.bias"})
      add_to_layer(name, {hidden});
    // Query, key and value of a head stand together, head after head.
    const uint64_t head = 3 * model_.head_size;
    add_to_layer("self_attention.linear_qkv.weight", {3 * hidden, hidden}, {in_units(0, head)});
    add_to_layer("self_attention.linear_qkv.bias", {3 * hidden}, {in_units(0, head)});
    add_to_layer("self_attention.linear_proj.weight", {hidden, hidden},
                 {in_units(1, model_.head_size)});
    add_to_layer("self_attention.linear_proj.bias", {hidden});
    for (const char* name : {"pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias"})
      add_to_layer(name, {hidden});
    add_to_layer("mlp.linear_fc1.weight", {inner, hidden}, {over_tp(0)});
    add_to_layer("mlp.linear_fc1.bias", {inner}, {over_tp(0)});
    add_to_layer("mlp.linear_fc2.weight", {hidden, inner}, {over_tp(1)});
    add_to_layer("mlp.linear_fc2.bias", {hidden});
    for (const char* name : {"decoder.final_layernorm.weight", "decoder.final_layernorm.bias"})
      add(name, {hidden}, Stage::Kind::kLast);
  }

  void add_llama() {
    const uint64_t hidden = model_.hidden;
    layer_ = "model.layers.{layer}.";
    add("model.embed_tokens.weight", {model_.vocabulary, hidden},
        model_.tied_head ? Stage::Kind::kFirstAndLast : Stage::Kind::kFirst,
        {of_vocabulary(model_, tp_)});
    add_to_layer("input_layernorm.weight", {hidden});
    const uint64_t query = model_.heads * model_.head_size;
    const uint64_t key = model_.kv_heads * model_.head_size;
    const std::vector<Block> blocks = {{"query", query, model_.heads},
                                       {"key", key, model_.kv_heads},
                                       {"value", key, model_.kv_heads}};
    add_to_layer("self_attn.qkv_proj.weight", {query + 2 * key, hidden}, {in_blocks(blocks)});
    if (model_.qkv_bias)
      add_to_layer("self_attn.qkv_proj.bias", {query + 2 * key}, {in_blocks(blocks)});
    if (model_.head_norms) {
      add_to_layer("self_attn.q_norm.weight", {model_.head_size});
      add_to_layer("self_attn.k_norm.weight", {model_.head_size});
    }
    add_to_layer("self_attn.o_proj.weight", {hidden, query}, {in_units(1, model_.head_size)});
    add_to_layer("post_attention_layernorm.weight", {hidden});
    add_mlp();
    add("model.norm.weight", {hidden}, Stage::Kind::kLast);
    if (!model_.tied_head)
      add("lm_head.weight", {model_.vocabulary, hidden}, Stage::Kind::kLast,
          {of_vocabulary(model_, tp_)});
  }

  void add_mlp() {
    const uint64_t hidden = model_.hidden;
    const std::vector<Block> blocks = {{"gate", model_.inner}, {"up", model_.inner}};
    const bool has_experts = model_.experts != 0;
    if (has_experts) add_to_layer("mlp.gate.weight", {model_.experts, hidden});
    const std::string mlp = has_experts ? "mlp.experts.{expert}." : "mlp.";
    add_to_layer(mlp + "gate_up_proj.weight", {2 * model_.inner, hidden}, {in_blocks(blocks)});
    if (has_experts) kinds_.back().rule.experts = Experts{{"ep"}, model_.experts};
    add_to_layer(mlp + "down_proj.weight", {hidden, model_.inner}, {over_tp(1)});
    if (has_experts) kinds_.back().rule.experts = Experts{{"ep"}, model_.experts};
  }

  const Model& model_;
  const uint32_t tp_;
  std::string layer_;
  std::vector<Kind> kinds_;
};

// ---- What belongs to each parameter -------------------------------------------------------------

struct Part {
  const char* prefix;  // of the parameter's name
  const char* group;   // of its flat ranges
};
constexpr Part kParameters = {"", "parameters"};
constexpr std::array<Part, 3> kOptimizer = {{{"optimizer.exp_avg.", "exp_avg"},
                                             {"optimizer.exp_avg_sq.", "exp_avg_sq"},
                                             {"optimizer.master.", "master"}}};
constexpr std::array<std::pair<const char*, DType>, 3> kScalars = {
    {{"step", DType::kI64}, {"learning_rate", DType::kF64}, {"random.seed", DType::kU64}}};
// As large as the ranges of communication buckets are made divisible by elsewhere.
constexpr uint64_t kRangeMultiple = 128;

std::string with_number(std::string pattern, std::string_view mark, uint32_t number) {
  if (const size_t place = pattern.find(mark); place != std::string::npos)
    pattern.replace(place, mark.size(), std::to_string(number));
  return pattern;
}

// All parameters, in the order of the model: what is before the layers, the layers, the rest.
std::vector<TensorInfo> parameters_of(const Model& model, DType dtype) {
  const std::vector<Kind> kinds = Kinds(model, 1).take();
  std::vector<TensorInfo> list;
  size_t first = 0;
  while (first < kinds.size()) {
    size_t last = first + 1;
    if (!kinds[first].has("{layer}")) {
      list.push_back({kinds[first].pattern, dtype, kinds[first].shape});
      first = last;
      continue;
    }
    while (last < kinds.size() && kinds[last].has("{layer}")) ++last;
    for (uint32_t layer = 0; layer < model.layers; ++layer) {
      for (size_t i = first; i < last; ++i) {
        const std::string name = with_number(kinds[i].pattern, "{layer}", layer);
        const uint32_t experts = kinds[i].has("{expert}") ? model.experts : 1;
        for (uint32_t expert = 0; expert < experts; ++expert)
          list.push_back({with_number(name, "{expert}", expert), dtype, kinds[i].shape});
      }
    }
    first = last;
  }
  return list;
}

// The rule of one part of one kind of parameters, in flat ranges.
Rule flat_rule(const Kind& kind, const Part& part) {
  Rule rule = kind.rule;
  rule.match = {part.prefix + kind.pattern};
  Flat flat;
  flat.multiple = kRangeMultiple;
  flat.group = part.group;
  flat.axes = {"dp", "ep", "cp"};
  // Parameters are gathered layer by layer when they are used.
  if (part.group == kParameters.group) flat.group += kind.has("{layer}") ? ".{layer}" : ".rest";
  if (kind.has("{expert}")) {
    flat.group += ".experts";
    flat.axes = {"dp", "cp"};
  }
  rule.flat = std::move(flat);
  return rule;
}

Pipeline pipeline_of(const Model& model, const Parallelism& parallelism) {
  Pipeline pipeline{.axis = "pp", .layers = model.layers, .interleave = parallelism.interleave};
  const uint32_t runs = parallelism.pp * parallelism.interleave;
  if (model.layers % runs != 0)
    for (uint32_t run = 0; run < runs; ++run)
      pipeline.counts.push_back(model.layers / runs + (run < model.layers % runs ? 1 : 0));
  return pipeline;
}

Status check(const Model& model, const Parallelism& parallelism) {
  if (parallelism.zero > 3) return invalid("zero is 0, 1, 2 or 3");
  if (parallelism.ep > 1 && model.experts == 0)
    return invalid(fmt::format("{} has no experts; leave ep out", model.name));
  if (parallelism.dp % parallelism.ep != 0)
    return invalid(
        fmt::format("ep={} must divide dp={}: experts are spread over data-parallel "
                    "ranks",
                    parallelism.ep, parallelism.dp));
  if (uint64_t{parallelism.pp} * parallelism.interleave > model.layers)
    return invalid(fmt::format("{} has {} layers; that is less than pp times interleave, {}",
                               model.name, model.layers,
                               uint64_t{parallelism.pp} * parallelism.interleave));
  return {};
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Model& model : all_models()) names.push_back(model.name);
  return names;
}

Result<Model> find_model(std::string_view name) {
  for (Model& model : all_models())
    if (model.name == name) return std::move(model);
  return invalid(fmt::format("there is no model '{}'; there are {}", name.substr(0, 80),
                             fmt::join(model_names(), ", ")));
}

Result<Parallelism> parse_parallelism(std::string_view text) {
  Parallelism parallelism;
  const std::array<std::pair<std::string_view, uint32_t*>, 7> fields = {
      {{"dp", &parallelism.dp},
       {"tp", &parallelism.tp},
       {"pp", &parallelism.pp},
       {"ep", &parallelism.ep},
       {"cp", &parallelism.cp},
       {"zero", &parallelism.zero},
       {"interleave", &parallelism.interleave}}};
  std::array<bool, 7> is_given = {};
  for (const std::string& item : comma_separated(text)) {
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    size_t field = 0;
    while (field < fields.size() && fields[field].first != name) ++field;
    if (equals == std::string::npos || field == fields.size())
      return invalid(
          fmt::format("'{}' is no size of an axis; write dp, tp, pp, ep, cp, zero or "
                      "interleave, as in dp=8,tp=4",
                      item.substr(0, 40)));
    if (std::exchange(is_given[field], true))
      return invalid(fmt::format("{} is given twice", name));
    const char* const begin = item.data() + equals + 1;
    const char* const end = item.data() + item.size();
    const auto [stop, error] = std::from_chars(begin, end, *fields[field].second);
    const uint32_t least = name == "zero" ? 0 : 1;
    if (error != std::errc{} || stop != end || *fields[field].second < least ||
        *fields[field].second > Mesh::kRanksMax)
      return invalid(fmt::format("'{}': give a number from {} to {}", item.substr(0, 40), least,
                                 Mesh::kRanksMax));
  }
  return parallelism;
}

std::string to_string(const Parallelism& p) {
  std::string text = fmt::format("dp={},tp={},pp={}", p.dp, p.tp, p.pp);
  if (p.ep != 1) text += fmt::format(",ep={}", p.ep);
  if (p.cp != 1) text += fmt::format(",cp={}", p.cp);
  if (p.zero != 0) text += fmt::format(",zero={}", p.zero);
  if (p.interleave != 1) text += fmt::format(",interleave={}", p.interleave);
  return text;
}

Result<Collection> make_state(const Model& model, DType parameters) {
  if (parameters != DType::kF32 && parameters != DType::kBF16 && parameters != DType::kF16)
    return invalid(fmt::format("parameters are f32, bf16 or f16, not {}", to_string(parameters)));
  std::vector<TensorInfo> tensors = parameters_of(model, parameters);
  const size_t count = tensors.size();
  for (const Part& part : kOptimizer) {
    if (parameters == DType::kF32 && part.group == kOptimizer[2].group) continue;
    for (size_t i = 0; i < count; ++i)
      tensors.push_back({part.prefix + tensors[i].name, DType::kF32, tensors[i].shape});
  }
  for (const auto& [name, dtype] : kScalars) tensors.push_back({name, dtype});
  return Collection::make(std::move(tensors));
}

Result<LayoutSpec> make_spec(const Model& model, const Parallelism& parallelism,
                             uint32_t ranks_per_host) {
  PLIANT_TRY(check(model, parallelism));
  auto mesh = Mesh::make({{"pp", parallelism.pp},
                          {"dp", parallelism.dp / parallelism.ep},
                          {"ep", parallelism.ep},
                          {"cp", parallelism.cp},
                          {"tp", parallelism.tp}},
                         ranks_per_host);
  if (!mesh) return mesh.error();
  LayoutSpec spec{.mesh = std::move(*mesh), .pipeline = pipeline_of(model, parallelism)};
  for (const Kind& kind : Kinds(model, parallelism.tp).take()) {
    Rule plain = kind.rule;
    if (parallelism.zero == 3) {
      spec.rules.push_back(flat_rule(kind, kParameters));
    } else {
      plain.match.push_back(kind.pattern);
    }
    for (const Part& part : kOptimizer) {
      if (parallelism.zero == 0) {
        plain.match.push_back(part.prefix + kind.pattern);
      } else {
        spec.rules.push_back(flat_rule(kind, part));
      }
    }
    if (!plain.match.empty()) spec.rules.push_back(std::move(plain));
  }
  Rule scalars;
  for (const auto& [name, dtype] : kScalars) scalars.match.push_back(name);
  scalars.replicated = true;
  spec.rules.push_back(std::move(scalars));
  return spec;
}

}  // namespace pliant::tensor
