// Trains a perceptron to read digits (examples/digits_data.h), with as many workers as there are,
// whoever comes and goes:
//
//   pliant run -n 2 --max 4 --restart -- digits
//   digits                            alone: the same program, the same result
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "examples/digits_data.h"
#include "train/elastic_trainer.h"
#include "train/program.h"
#include "train/training_error.h"
#include "train/training_log.h"

namespace {

using namespace pliant::train;
using pliant::Session;

struct Options {
  ProgramOptions program{.steps = 300, .batch = 64, .learning_rate = 0.05};
  uint64_t samples = 6000;
  int64_t hidden = 96;
  std::string optimizer = "sgd";
};

class Pictures final {
 public:
  Pictures(const std::vector<digits::Sample>& samples, torch::ScalarType type) {
    const auto count = static_cast<int64_t>(samples.size());
    pixels_ = torch::empty({count, digits::kPixels});
    labels_ = torch::empty({count}, torch::kInt64);
    float* to = pixels_.data_ptr<float>();
    for (size_t i = 0; i < samples.size(); ++i) {
      to = std::copy(samples[i].picture.begin(), samples[i].picture.end(), to);
      labels_.data_ptr<int64_t>()[i] = samples[i].label;
    }
    pixels_ = pixels_.to(type);
  }

  torch::Tensor loss(torch::nn::Sequential& model, std::span<const uint64_t> samples) const {
    const std::vector<int64_t> rows(samples.begin(), samples.end());
    const torch::Tensor index = torch::tensor(rows, torch::kInt64);
    return torch::nn::functional::cross_entropy(model->forward(pixels_.index_select(0, index)),
                                                labels_.index_select(0, index));
  }
  double accuracy(torch::nn::Sequential& model) const {
    const torch::NoGradGuard no_gradients;
    return model->forward(pixels_).argmax(1).eq(labels_).to(torch::kFloat64).mean().item<double>();
  }

 private:
  torch::Tensor pixels_;
  torch::Tensor labels_;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options,
                                                        const torch::nn::Sequential& model) {
  const double rate = options.program.learning_rate;
  if (options.optimizer == "sgd")
    return std::make_unique<torch::optim::SGD>(
        model->parameters(), torch::optim::SGDOptions(rate).momentum(0.9).dampening(0.1));
  if (options.optimizer == "adam")
    return std::make_unique<torch::optim::Adam>(model->parameters(),
                                                torch::optim::AdamOptions(rate));
  return std::make_unique<torch::optim::AdamW>(model->parameters(),
                                               torch::optim::AdamWOptions(rate));
}

void train(const Options& options) {
  prepare_torch(options.program);
  const uint64_t seed = options.program.seed;
  const Pictures training(digits::draw_samples(options.samples, seed * 2 + 1000),
                          options.program.type());
  torch::nn::Sequential model(torch::nn::Linear(digits::kPixels, options.hidden), torch::nn::Tanh(),
                              torch::nn::Linear(options.hidden, digits::kClasses));
  model->to(options.program.type());

  const auto session = take(Session::open());
  const auto optimizer = make_optimizer(options, model);
  TrainerOptions trainer_options = options.program.trainer_options(options.samples);
  trainer_options.bucket_bytes = 1 << 16;
  ElasticTrainer trainer(*session, *model, *optimizer, std::move(trainer_options));
  TrainingLog log({.file = options.program.log, .report_every = options.program.report_every});
  train_to_end(trainer, log, options.program,
               [&](const pliant::Step& step) { return training.loss(model, step.samples()); });
  if (session->rank() == 0) {
    const Pictures test(digits::draw_samples(1000, seed * 2 + 1001), options.program.type());
    std::printf("reads %.1f %% of 1000 new pictures right\n", 100 * test.accuracy(model));
  }
  save_model(*session, *model, options.program.save);
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  CLI::App app("Trains a perceptron to read digits, with as many workers as there are.", "digits");
  add_options(app, options.program);
  app.add_option("--samples", options.samples, "pictures to learn from")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "units of the hidden layer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer, "sgd, adam or adamw")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}))
      ->capture_default_str();
  return run_program(app, count, arguments, [&] { train(options); });
}
