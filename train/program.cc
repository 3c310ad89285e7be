#include "train/program.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "pliant/policy/make_policy.h"
#include "pliant/store/safetensors.h"
#include "train/registered_memory.h"
#include "train/training_error.h"

namespace pliant::train {

namespace {

constexpr Synchronisation kWays[] = {Synchronisation::kSynchronous,
                                     Synchronisation::kModelAveraging,
                                     Synchronisation::kPairAveraging};
constexpr auto kSlowness = std::chrono::milliseconds(100);

}  // namespace

void add_options(CLI::App& app, ProgramOptions& options) {
  app.add_option("--steps", options.steps, "steps of the whole training")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000'000}))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "samples of a step, of all workers together")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate, "learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "another one begins elsewhere and has another order")
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "of the model: float32 or float64")
      ->check(CLI::IsMember({"float32", "float64"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "of torch in each worker")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--report", options.report_every, "steps from line to line; 0: no lines")
      ->capture_default_str();
  app.add_option("--log", options.log, "appends a line of JSON for each step to this file");
  std::vector<std::string> ways;
  for (const Synchronisation way : kWays) ways.emplace_back(to_string(way));
  app.add_option("--synchronisation", options.synchronisation,
                 "how models are kept together: " + CLI::detail::join(ways, ", "))
      ->check(CLI::IsMember(ways))
      ->capture_default_str();
  app.add_option("--noise-every", options.noise_every,
                 "takes the gradients' noise scale in every so many steps; 0: never")
      ->capture_default_str();
  app.add_option(
         "--policy", options.policies,
         "decides while it trains, as best_size:min=1,max=4 (docs/POLICIES.md); may be given "
         "several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--slow-until", options.slow_until,
                 "each step takes 0.1 s longer until this file is there, for trials");
  app.add_option("--save", options.save, "writes the model here at the end, as safetensors");
}

TrainerOptions ProgramOptions::trainer_options(uint64_t samples) const {
  TrainerOptions options;
  options.data = {.samples = samples, .global_batch = batch, .seed = seed, .epochs = 0};
  options.monitor.noise_every = noise_every;
  for (const Synchronisation way : kWays)
    if (synchronisation == to_string(way)) options.synchronisation.synchronisation = way;
  for (const std::string& text : policies) {
    options.policies.push_back(take(make_policy(text)));
    // Models that may differ cost newcomers more: only for a policy that makes them.
    if (text.starts_with("synchronisation_by_size")) options.synchronisation.may_switch = true;
  }
  return options;
}

int run_program(CLI::App& app, int count, char** arguments, const std::function<void()>& train) {
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    train();
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
  }
  return 1;
}

void prepare_torch(const ProgramOptions& options) {
  torch::set_num_threads(options.threads);
  torch::manual_seed(options.seed);
}

void train_to_end(ElasticTrainer& trainer, TrainingLog& log, const ProgramOptions& options,
                  const std::function<torch::Tensor(const Step&)>& loss_of) {
  bool slow = !options.slow_until.empty();
  while (trainer.begin()) {
    slow = slow && !std::filesystem::exists(options.slow_until);
    if (slow) std::this_thread::sleep_for(kSlowness);
    if (!trainer.samples().empty()) trainer.backward(loss_of(trainer.open_step()));
    if (!trainer.commit()) continue;
    log.committed(trainer);
    if (trainer.step() >= options.steps) return trainer.finish();
  }
}

void save_model(Session& session, const torch::nn::Module& model, const std::string& path) {
  if (path.empty() || session.rank() != 0) return;
  std::vector<store::TensorInfo> infos;
  std::vector<torch::Tensor> tensors;
  for (const auto& item : model.named_parameters()) {
    const auto sizes = item.value().sizes();
    infos.push_back({.name = item.key(),
                     .dtype = dtype_of(item.value().scalar_type()),
                     .shape = {sizes.begin(), sizes.end()}});
    tensors.push_back(item.value().detach().contiguous());
  }
  // All are of one type, so the order stays.
  const auto writer = take(store::SafetensorsWriter::create(
      path, take(store::plan_safetensors(std::move(infos), {})), store::Existing::kReplace));
  for (size_t i = 0; i < tensors.size(); ++i) check(writer->write(i, 0, bytes_of(tensors[i])));
  check(writer->finish());
}

}  // namespace pliant::train
