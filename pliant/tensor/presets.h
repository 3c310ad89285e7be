// Ready layouts: the training states of well-known models (Megatron's GPT, Llama, Qwen, Mixtral)
// with AdamW, over data, tensor, pipeline, expert and context parallelism and ZeRO. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/dtype.h"
#include "pliant/base/result.h"
#include "pliant/tensor/collection.h"
#include "pliant/tensor/rules.h"

namespace pliant::tensor {

struct Model {
  std::string name = {};
  enum class Family : uint8_t { kGpt, kLlama } family = Family::kGpt;
  uint32_t layers = 0;
  uint64_t hidden = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint64_t head_size = 0;
  uint64_t inner = 0;  // of the MLP, or of one expert
  uint64_t vocabulary = 0;
  uint64_t positions = 0;   // of learned embeddings; 0: none
  uint32_t experts = 0;     // 0: a dense model
  bool qkv_bias = false;    // Qwen2
  bool head_norms = false;  // Qwen3
  bool tied_head = false;   // the head is the embedding
};

// The names of all models, for messages and completion.
std::vector<std::string> model_names();
Result<Model> find_model(std::string_view name);

// Sizes of axes. Experts are spread over `ep` of the `dp` data-parallel ranks, so ep divides dp and
// adds no ranks.
struct Parallelism {
  uint32_t dp = 1;
  uint32_t tp = 1;
  uint32_t pp = 1;
  uint32_t ep = 1;
  uint32_t cp = 1;
  uint32_t zero = 0;        // 1, 2: the optimizer's state is in flat ranges; 3: parameters too
  uint32_t interleave = 1;  // runs of layers on each stage

  bool operator==(const Parallelism&) const = default;
  uint64_t ranks() const { return uint64_t{dp} * tp * pp * cp; }
};

// Reads "dp=8,tp=4,zero=1".
Result<Parallelism> parse_parallelism(std::string_view text);
std::string to_string(const Parallelism& parallelism);

// Parameters, the moments of AdamW in f32, master copies in f32 if the parameters are shorter, and
// the scalars: step, learning rate, seed of random numbers.
Result<Collection> make_state(const Model& model, DType parameters);

// The layout of such a state; `ranks_per_host` 0: all on one host.
Result<LayoutSpec> make_spec(const Model& model, const Parallelism& parallelism,
                             uint32_t ranks_per_host);

}  // namespace pliant::tensor
