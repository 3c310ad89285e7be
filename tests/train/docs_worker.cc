#include "train/elastic_trainer.h"
#include "train/training_error.h"

using pliant::train::ElasticTrainer;

int main() try {
  torch::set_num_threads(1);
  torch::manual_seed(1);  // any data that all workers can read, and a model
  const auto inputs = torch::randn({1024, 8});
  const auto targets = inputs.sum(1, true);
  namespace nn = torch::nn;
  nn::Sequential model(nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 1));
  torch::optim::AdamW optimizer(model->parameters(), 0.01);

  // Alone if nothing launched us: the same program runs on a laptop.
  const auto session = pliant::train::take(pliant::Session::open());
  ElasticTrainer trainer(*session, *model, optimizer,
                         {.data = {.samples = 1024, .global_batch = 64, .seed = 1, .epochs = 8}});
  while (trainer.begin()) {  // members may have come or gone since the last one
    const auto part = trainer.samples();
    const auto rows = torch::tensor(std::vector<int64_t>(part.begin(), part.end()), torch::kInt64);
    trainer.backward(torch::mse_loss(model->forward(inputs.index_select(0, rows)),
                                     targets.index_select(0, rows)));
    const bool applied = trainer.commit();  // by every member that is left, or by none
    if (applied && session->rank() == 0)
      std::printf("loss %.4f, %d workers\n", trainer.loss(), trainer.members());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());  // names what is wrong, and where
  return 1;
}
