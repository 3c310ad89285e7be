// A worker for cases_test.py: ElasticTrainer with one thing that is not as usual, which its first
// argument names. Prints what the test looks at.
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "train/elastic_trainer.h"
#include "train/training_error.h"

namespace {

using namespace pliant::train;
using pliant::Session;

constexpr int64_t kSamples = 96;

// What a test asks for.
struct Case {
  uint64_t batch = 12;
  bool nan_on_last_rank = false;     // in the gradient of the first layer, in step 3
  bool skips = false;                // steps with it
  bool unused_on_last_rank = false;  // the second layer has no gradient there
  bool by_parts = false;             // backward() sample by sample
  bool normalised = false;           // a model with running means
  bool frozen = false;               // the first layer is not trained
  bool forgets_samples = false;
  pliant::Synchronisation way = pliant::Synchronisation::kSynchronous;
};

Case case_of(const std::string& name) {
  const std::map<std::string, Case> cases = {
      {"plain", {}},
      {"few", {.batch = 2}},
      {"nan", {.nan_on_last_rank = true}},
      {"skip", {.nan_on_last_rank = true, .skips = true}},
      {"unused", {.unused_on_last_rank = true}},
      {"parts", {.by_parts = true}},
      {"normalised", {.normalised = true}},
      {"frozen", {.frozen = true}},
      {"forgets", {.forgets_samples = true}},
      {"model_averaging", {.way = pliant::Synchronisation::kModelAveraging}},
      {"pair_averaging", {.way = pliant::Synchronisation::kPairAveraging}},
  };
  const auto found = cases.find(name);
  if (found == cases.end()) throw TrainingError("there is no case '" + name + "'");
  return found->second;
}

struct TwoLayers final : torch::nn::Module {
  explicit TwoLayers(bool normalised) {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 1));
    if (normalised) norm = register_module("norm", torch::nn::BatchNorm1d(6));
  }
  torch::Tensor forward(const torch::Tensor& x, bool without_second) {
    torch::Tensor hidden = torch::tanh(first(x));
    if (norm) hidden = norm(hidden);
    return without_second ? hidden.mean(1, true) : second(hidden);
  }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

class Worker final {
 public:
  Worker(Session& session, const Case& what)
      : session_(session), what_(what), model_(what.normalised) {
    torch::manual_seed(7);
    model_ = TwoLayers(what.normalised);
    model_.to(torch::kFloat64);
    if (what.frozen)
      for (torch::Tensor& tensor : model_.first->parameters()) tensor.set_requires_grad(false);
    inputs_ = torch::randn({kSamples, 4}, torch::kFloat64);
    targets_ = inputs_.sum(1, true);
  }

  void train() {
    std::vector<torch::Tensor> trained;
    for (const torch::Tensor& tensor : model_.parameters())
      if (tensor.requires_grad()) trained.push_back(tensor);
    torch::optim::Adam optimizer(trained, 0.02);
    TrainerOptions options{.data = {.samples = kSamples, .global_batch = what_.batch, .epochs = 3},
                           .bucket_bytes = 1,
                           .synchronisation = {.synchronisation = what_.way}};
    if (what_.skips)
      options.on_nonfinite = [this](const NonFinite& found) {
        std::printf("skips step %llu of rank %d\n", static_cast<unsigned long long>(found.step),
                    found.rank);
        ++skipped_;
        return OnNonFinite::kSkip;
      };
    ElasticTrainer trainer(session_, model_, optimizer, std::move(options));
    while (trainer.begin()) step(trainer);
    report(trainer);
  }

 private:
  bool is_last() const { return session_.rank() == session_.size() - 1; }

  torch::Tensor loss_of(std::span<const uint64_t> samples, uint64_t step) {
    const std::vector<int64_t> rows(samples.begin(), samples.end());
    const torch::Tensor index = torch::tensor(rows, torch::kInt64);
    torch::Tensor loss = torch::mse_loss(
        model_.forward(inputs_.index_select(0, index), what_.unused_on_last_rank && is_last()),
        targets_.index_select(0, index));
    if (what_.nan_on_last_rank && is_last() && step == 3)
      // The loss itself is finite: the root of zero has no slope.
      loss = loss + torch::sqrt((model_.first->weight * 0).sum()) * 0;
    return loss;
  }

  void step(ElasticTrainer& trainer) {
    const std::span<const uint64_t> samples = trainer.samples();
    if (what_.by_parts) {
      for (size_t i = 0; i < samples.size(); ++i)
        trainer.backward(loss_of(samples.subspan(i, 1), trainer.step()), 1);
    } else if (!what_.forgets_samples) {
      trainer.backward(loss_of(samples, trainer.step()));
    }
    applied_ += trainer.commit() ? 1 : 0;
  }

  void report(ElasticTrainer& trainer) {
    double sum = 0;
    for (const torch::Tensor& tensor : model_.parameters()) sum += tensor.sum().item<double>();
    for (const torch::Tensor& tensor : model_.buffers())
      sum += tensor.to(torch::kFloat64).sum().item<double>();
    std::printf("applied %d, skipped %d, loss %.12f, sum %.12f\n", applied_, skipped_,
                trainer.loss(), sum);
  }

  Session& session_;
  const Case what_;
  TwoLayers model_;
  torch::Tensor inputs_;
  torch::Tensor targets_;
  int applied_ = 0;
  int skipped_ = 0;
};

}  // namespace

int main(int count, char** arguments) try {
  torch::set_num_threads(1);
  const Case what = case_of(count > 1 ? arguments[1] : "plain");
  const auto session = take(Session::open());
  Worker(*session, what).train();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "trainer_worker: %s\n", error.what());
  return 1;
}
