// What the training programs have in common: options, their end, and the model as a file. Called
// once, by main().
#pragma once

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/elastic_trainer.h"
#include "train/training_log.h"

namespace pliant::train {

struct ProgramOptions {
  uint64_t steps = 200;
  uint64_t batch = 16;  // samples of a step, of all members together
  double learning_rate = 1e-3;
  uint64_t seed = 1;
  std::string dtype = "float32";
  int threads = 1;
  uint64_t report_every = 10;
  std::string log = {};
  std::string save = {};
  std::string slow_until = {};

  std::string synchronisation = "synchronous";
  uint64_t noise_every = 0;
  std::vector<std::string> policies = {};  // as make_policy() takes them

  // Of a dataset with so many samples. Throws TrainingError for a policy that there is not.
  TrainerOptions trainer_options(uint64_t samples) const;
  torch::ScalarType type() const { return dtype == "float64" ? torch::kFloat64 : torch::kFloat32; }
};

// With the defaults that `options` has.
void add_options(CLI::App& app, ProgramOptions& options);

// Reads the command line and trains; the exit code. What is thrown is one line on standard error.
int run_program(CLI::App& app, int count, char** arguments, const std::function<void()>& train);

// Seeds torch alike on all members and sets its threads.
void prepare_torch(const ProgramOptions& options);

// Trains until the last step is committed. `loss_of` gives the mean over the step's samples().
void train_to_end(ElasticTrainer& trainer, TrainingLog& log, const ProgramOptions& options,
                  const std::function<torch::Tensor(const Step&)>& loss_of);

// All parameters as a safetensors file, written by the first member.
void save_model(Session& session, const torch::nn::Module& model, const std::string& path);

}  // namespace pliant::train
