// A small GPT over bytes: the usual pre-norm transformer with learnt positions. Attention is
// written out, as the oldest libtorch that we build with has no call for it. A torch module: shared
// by its holder, called by the thread that trains.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace pliant::train {

struct GptOptions {
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t width = 64;    // a multiple of the heads
  int64_t block = 64;    // the longest context, in tokens
  int64_t tokens = 256;  // in the vocabulary: one a byte
};

class GptBlockImpl final : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask);

 private:
  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& mask);

  const int64_t heads_;
  torch::nn::LayerNorm before_attention_{nullptr};
  torch::nn::Linear query_key_value_{nullptr};
  torch::nn::Linear attention_out_{nullptr};
  torch::nn::LayerNorm before_mlp_{nullptr};
  torch::nn::Linear widen_{nullptr};
  torch::nn::Linear narrow_{nullptr};
};
TORCH_MODULE(GptBlock);

class GptImpl final : public torch::nn::Module {
 public:
  // Drawn from torch's generator: seed it alike on all members.
  explicit GptImpl(const GptOptions& options);

  // Tokens [batch, length] as int64; gives logits [batch, length, tokens].
  torch::Tensor forward(const torch::Tensor& tokens);
  // Of the next token at each place, the mean over all places. The targets are shaped as the
  // tokens.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets);

  int64_t parameter_count() const;

 private:
  void initialize(int64_t layers);

  torch::nn::Embedding token_{nullptr};
  torch::nn::Embedding position_{nullptr};
  torch::nn::ModuleList blocks_{nullptr};
  torch::nn::LayerNorm last_{nullptr};
  torch::nn::Linear out_{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace pliant::train
