// Trains a small GPT on text, with as many workers as there are, whoever comes and goes:
//
//   pliant run -n 2 --max 4 --restart -- gpt docs README.md
//   gpt docs                          alone: the same program, the same result
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "train/elastic_trainer.h"
#include "train/gpt.h"
#include "train/program.h"
#include "train/text.h"
#include "train/training_error.h"
#include "train/training_log.h"

namespace {

using namespace pliant::train;
using pliant::Session;

struct Options {
  ProgramOptions program{.steps = 300, .batch = 16, .learning_rate = 3e-3};
  GptOptions model;
  std::vector<std::string> texts;
};

// A text cut into blocks. Sample i is the i-th, with the tokens that follow its own as targets.
class Blocks final {
 public:
  Blocks(const std::vector<uint8_t>& text, int64_t block) : block_(block) {
    const int64_t count = (static_cast<int64_t>(text.size()) - 1) / block;
    if (text.empty() || count < 1)
      throw TrainingError("the text has " + std::to_string(text.size()) +
                          " bytes, too few for one block of " + std::to_string(block));
    tokens_ = torch::empty({count * block + 1}, torch::kInt64);
    int64_t* const to = tokens_.data_ptr<int64_t>();
    for (int64_t i = 0; i < tokens_.numel(); ++i) to[i] = text[static_cast<size_t>(i)];
  }

  uint64_t samples() const { return static_cast<uint64_t>((tokens_.numel() - 1) / block_); }

  // Of these samples, the tokens, or those `ahead` of them.
  torch::Tensor rows(std::span<const uint64_t> samples, int64_t ahead) const {
    std::vector<torch::Tensor> rows;
    for (const uint64_t sample : samples)
      rows.push_back(tokens_.narrow(0, static_cast<int64_t>(sample) * block_ + ahead, block_));
    return torch::stack(rows);
  }

 private:
  const int64_t block_;
  torch::Tensor tokens_;
};

void add_model_options(CLI::App& app, Options& options) {
  app.add_option("text", options.texts, "files, and folders of .md, .txt and .rst files")
      ->required();
  const CLI::Range positive(int64_t{1}, int64_t{1} << 20);
  app.add_option("--layers", options.model.layers, "transformer blocks")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--heads", options.model.heads, "of attention")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--width", options.model.width, "of the residual stream; a multiple of the heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--block", options.model.block, "bytes of context")
      ->check(positive)
      ->capture_default_str();
}

void train(const Options& options) {
  if (options.model.width % options.model.heads != 0)
    throw TrainingError("--width " + std::to_string(options.model.width) +
                        " is no multiple of --heads " + std::to_string(options.model.heads));
  prepare_torch(options.program);
  const Blocks blocks(read_text(options.texts), options.model.block);
  Gpt model(options.model);
  model->to(options.program.type());

  const auto session = take(Session::open());
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(options.program.learning_rate)
                                    .betas({0.9, 0.95})
                                    .weight_decay(0.01));
  const double full_rate = options.program.learning_rate;
  const double warm_up = std::max(1.0, static_cast<double>(options.program.steps) / 20);
  ElasticTrainer trainer(*session, *model, optimizer,
                         {.data = {.samples = blocks.samples(),
                                   .global_batch = options.program.batch,
                                   .seed = options.program.seed,
                                   .epochs = 0},
                          .clip_norm = 1,
                          .learning_rate = [=](uint64_t step) {
                            return full_rate * std::min(1.0, static_cast<double>(step) / warm_up);
                          }});
  TrainingLog log({.file = options.program.log,
                   .report_every = options.program.report_every,
                   .units_per_sample = static_cast<uint64_t>(options.model.block),
                   .unit = "tokens"});
  train_to_end(trainer, log, options.program, [&](std::span<const uint64_t> samples) {
    return model->loss(blocks.rows(samples, 0), blocks.rows(samples, 1));
  });
  save_model(*session, *model, options.program.save);
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App app("Trains a small GPT on text, with as many workers as there are.", "gpt");
  add_options(app, options.program);
  add_model_options(app, options);
  return run_program(app, count, arguments, [&] { train(options); });
}
