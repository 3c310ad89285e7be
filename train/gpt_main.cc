// Trains a small GPT on text, with as many workers as there are, whoever comes and goes:
//
//   pliant run -n 2 --max 4 --restart -- gpt docs README.md
//   gpt docs                          alone: the same program, the same result
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "pliant/data/token_file.h"
#include "pliant/training/step_loader.h"
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
  std::string tokens;  // the type of ids in files of tokens; empty: texts are bytes
  int readers = 1;     // threads that read ahead
};

std::unique_ptr<const pliant::Dataset> open_data(const Options& options) {
  const auto block = static_cast<uint64_t>(options.model.block);
  if (options.tokens.empty()) return std::make_unique<TextBlocks>(read_text(options.texts), block);
  return take(pliant::TokenFiles::open(
      options.texts, {.dtype = take(pliant::parse_dtype(options.tokens)),
                      .block = block,
                      .vocabulary = static_cast<uint64_t>(options.model.tokens)}));
}

void add_model_options(CLI::App& app, Options& options) {
  app.add_option("text", options.texts, "files, and folders of .md, .txt and .rst files")
      ->required();
  app.add_option("--tokens", options.tokens,
                 "the files are token ids, of type u16 or u32 (docs/DATA.md)")
      ->check(CLI::IsMember({"u16", "u32"}));
  const CLI::Range positive(int64_t{1}, int64_t{1} << 20);
  app.add_option("--vocabulary", options.model.tokens, "with --tokens: how many ids there are")
      ->check(positive)
      ->needs("--tokens")
      ->capture_default_str();
  app.add_option("--readers", options.readers, "threads that read the next samples ahead")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--layers", options.model.layers, "transformer blocks")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--heads", options.model.heads, "of attention")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--width", options.model.width, "of the residual stream; a multiple of the heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--block", options.model.block, "tokens of context")
      ->check(positive)
      ->capture_default_str();
}

// The mean over the samples of a batch, of which each has its targets one place further on.
torch::Tensor loss_of(Gpt& model, const pliant::LoadedBatch& batch, int64_t block) {
  // Copied, because torch knows no memory that may only be read.
  const torch::Tensor windows =
      torch::empty({static_cast<int64_t>(batch.size()), block + 1}, torch::kInt64);
  std::memcpy(windows.data_ptr(), batch.bytes().data(), batch.bytes().size());
  return model->loss(windows.narrow(1, 0, block), windows.narrow(1, 1, block));
}

TrainerOptions trainer_options(const Options& options, uint64_t samples) {
  TrainerOptions made = options.program.trainer_options(samples);
  made.clip_norm = 1;
  const double rate = options.program.learning_rate;
  const double warm_up = std::max(1.0, static_cast<double>(options.program.steps) / 20);
  made.learning_rate = [=](uint64_t step) {
    return rate * std::min(1.0, static_cast<double>(step) / warm_up);
  };
  return made;
}

void train(const Options& options) {
  if (options.model.width % options.model.heads != 0)
    throw TrainingError("--width " + std::to_string(options.model.width) +
                        " is no multiple of --heads " + std::to_string(options.model.heads));
  prepare_torch(options.program);
  const auto data = open_data(options);
  Gpt model(options.model);
  model->to(options.program.type());

  const auto session = take(Session::open());
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(options.program.learning_rate)
                                    .betas({0.9, 0.95})
                                    .weight_decay(0.01));
  ElasticTrainer trainer(*session, *model, optimizer, trainer_options(options, data->size()));
  pliant::StepLoader loader(*session, *data,
                            {.threads = options.readers, .seed = options.program.seed});
  TrainingLog log({.file = options.program.log,
                   .report_every = options.program.report_every,
                   .units_per_sample = static_cast<uint64_t>(options.model.block),
                   .unit = "tokens"});
  train_to_end(trainer, log, options.program, [&](const pliant::Step& step) {
    return loss_of(model, *take(loader.load(step)), options.model.block);
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
