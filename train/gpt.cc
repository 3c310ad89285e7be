#include "train/gpt.h"

#include <cmath>
#include <limits>
#include <string>

namespace pliant::train {

namespace nn = torch::nn;

GptBlockImpl::GptBlockImpl(const GptOptions& options) : heads_(options.heads) {
  const int64_t width = options.width;
  before_attention_ =
      register_module("before_attention", nn::LayerNorm(nn::LayerNormOptions({width})));
  query_key_value_ = register_module("query_key_value", nn::Linear(width, 3 * width));
  attention_out_ = register_module("attention_out", nn::Linear(width, width));
  before_mlp_ = register_module("before_mlp", nn::LayerNorm(nn::LayerNormOptions({width})));
  widen_ = register_module("widen", nn::Linear(width, 4 * width));
  narrow_ = register_module("narrow", nn::Linear(4 * width, width));
}

torch::Tensor GptBlockImpl::attend(const torch::Tensor& x, const torch::Tensor& mask) {
  const int64_t batch = x.size(0);
  const int64_t length = x.size(1);
  const int64_t width = x.size(2);
  // [3, batch, heads, length, width of a head]
  const torch::Tensor parts =
      query_key_value_(x).view({batch, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const double scale = 1 / std::sqrt(static_cast<double>(width / heads_));
  const torch::Tensor scores = torch::matmul(parts[0] * scale, parts[1].transpose(-2, -1)) + mask;
  const torch::Tensor seen = torch::matmul(torch::softmax(scores, -1), parts[2]);
  return attention_out_(seen.transpose(1, 2).reshape({batch, length, width}));
}

torch::Tensor GptBlockImpl::forward(const torch::Tensor& x, const torch::Tensor& mask) {
  const torch::Tensor attended = x + attend(before_attention_(x), mask);
  return attended + narrow_(torch::gelu(widen_(before_mlp_(attended))));
}

GptImpl::GptImpl(const GptOptions& options) {
  token_ = register_module("token", nn::Embedding(options.tokens, options.width));
  position_ = register_module("position", nn::Embedding(options.block, options.width));
  blocks_ = register_module("blocks", nn::ModuleList());
  for (int64_t i = 0; i < options.layers; ++i) blocks_->push_back(GptBlock(options));
  last_ = register_module("last", nn::LayerNorm(nn::LayerNormOptions({options.width})));
  out_ = register_module("out",
                         nn::Linear(nn::LinearOptions(options.width, options.tokens).bias(false)));
  initialize(options.layers);
}

// As GPT-2: what adds to the residual stream is the smaller the more layers add to it.
void GptImpl::initialize(int64_t layers) {
  const torch::NoGradGuard no_gradients;
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    torch::Tensor& tensor = item.value();
    if (tensor.dim() < 2) continue;  // biases and norms stay as torch makes them, but for zeros
    const bool residual =
        name.find("attention_out") != std::string::npos || name.find("narrow") != std::string::npos;
    const double deviation = residual ? 0.02 / std::sqrt(2 * static_cast<double>(layers)) : 0.02;
    tensor.normal_(0, deviation);
  }
  for (auto& module : modules(false))
    if (auto* linear = module->as<nn::Linear>(); linear != nullptr && linear->bias.defined())
      linear->bias.zero_();
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  const int64_t length = tokens.size(1);
  torch::Tensor x = token_(tokens) + position_->weight.narrow(0, 0, length);
  // No place sees a later one.
  const torch::Tensor mask =
      torch::full({length, length}, -std::numeric_limits<double>::infinity(), x.options()).triu(1);
  for (const auto& block : *blocks_) x = block->as<GptBlock>()->forward(x, mask);
  return out_(last_(x));
}

torch::Tensor GptImpl::loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
  const torch::Tensor logits = forward(tokens);
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                              targets.reshape({-1}));
}

int64_t GptImpl::parameter_count() const {
  int64_t count = 0;
  for (const torch::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

}  // namespace pliant::train
