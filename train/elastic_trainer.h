// ElasticTrainer: a torch model and its optimizer, trained by the members of an elastic job. In the
// synchronous way, which is the default, the result is that of one process with the whole batch,
// whoever joins, leaves or dies meanwhile.
//
//   ElasticTrainer trainer(session, *model, optimizer, {.data = {.samples = n, .global_batch =
//   64}}); while (trainer.begin()) {
//     trainer.backward(loss_of(trainer.samples()));      // the mean over these samples
//     if (trainer.commit()) std::printf("%f\n", trainer.loss());
//   }
//
// Parameters, gradients and the optimizer's state lie in registered memory, and newcomers get what
// the members have. Gradients are reduced in buckets while the backward pass runs. What a member
// was to compute that is lost in a step comes back to the others in the same step, as a further
// turn of the loop, so that the step has its global batch. training/synchroniser.h keeps the models
// together, training/monitor.h gathers signals, training/adaptation.h carries policies out.
//
// Owned by the program; the session, the model and the optimizer outlive it. One thread, the one
// that trains. Throws TrainingError: one sentence that names what is wrong.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pliant/policy/policy.h"
#include "pliant/runtime/session.h"
#include "pliant/training/adaptation.h"
#include "pliant/training/monitor.h"
#include "pliant/training/synchroniser.h"
#include "train/model_buckets.h"
#include "train/optimizer_state.h"
#include "train/registered_memory.h"

namespace pliant::train {

// A loss or gradient that is not finite: the first tensor of the first rank that has one. All
// members are told of the same.
struct NonFinite {
  uint64_t step = 0;
  Rank rank = 0;
  std::string tensor;  // empty: the loss
};
enum class OnNonFinite { kStop, kSkip, kApply };

struct TrainerOptions {
  // The dataset and the batch of all members together. Every step but the last of an epoch has
  // exactly that batch.
  SamplerOptions data = {};
  size_t bucket_bytes = 1 << 20;  // of gradients that are reduced together, about
  Synchroniser::Options synchronisation = {};
  MonitorOptions monitor = {.noise_every = 0};
  Adaptation::Policies policies = {};  // the same on all members
  double clip_norm = 0;                // the largest norm of all gradients together; 0: any
  // Of a step, from 1 on; without it, as the optimizer has it. Policies multiply it.
  std::function<double(uint64_t step)> learning_rate = {};
  // What becomes of a step whose gradients are not all finite; without it, the training stops.
  std::function<OnNonFinite(const NonFinite&)> on_nonfinite = {};
};

class ElasticTrainer final {
 public:
  // Before the first step; the same model, optimizer and options on all members. Whoever differs is
  // told which tensor it is, and cannot join.
  ElasticTrainer(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                 TrainerOptions options);
  ~ElasticTrainer();  // the model keeps its parameters, in memory of their own
  ElasticTrainer(const ElasticTrainer&) = delete;
  ElasticTrainer& operator=(const ElasticTrainer&) = delete;

  // Opens the next step, or the rest of one that lost members have left. False: there is none for
  // this member, as the training is complete or it was asked to leave.
  bool begin();
  uint64_t step() const { return step_number_; }
  const Step& open_step() const { return step_; }  // for a StepLoader
  // The samples that this member is to compute now; none, if there are more members than samples.
  std::span<const uint64_t> samples() const { return step_.samples(); }
  // Adds the gradients of a loss that is the mean over all samples(); undefined if there are none.
  void backward(const torch::Tensor& loss) { backward(loss, samples().size()); }
  // The same by parts: of a loss that is the mean over the next `count` of samples().
  void backward(const torch::Tensor& loss, size_t count);
  // Completes the step and applies it: on every member that is left, or on none. False: it has got
  // more samples, its gradients were not finite, or this member is out; begin() tells.
  bool commit();

  // For a program that leaves the loop by a decision of its own, on all members after the same
  // step: returns when all have committed it.
  void finish();

  // Of the last committed step: what all members know alike.
  const Signals& signals() const { return monitor_->signals(); }
  double loss() const { return signals().loss; }  // the mean over all samples of all members
  int members() const { return signals().members; }
  // Whether the members were others than in the step before, and what the change cost this one.
  bool members_changed() const { return members_changed_; }
  const StepTimes& change() const { return session_.last_change(); }

  Session& session() { return session_; }
  const Synchroniser& synchroniser() const { return *synchroniser_; }

 private:
  struct Buffer {
    NamedTensor named;
    std::unique_ptr<RegisteredMemory> reduced;
  };

  void register_rest(torch::nn::Module& model);
  void make_training_layer();
  void hand_in_buffers();
  void take_buffers();
  bool is_synchronous() const;
  // Whether the step is to be applied.
  bool is_accepted() const;
  void set_learning_rates();
  void apply();
  void adapt();

  Session& session_;
  torch::optim::Optimizer& optimizer_;
  TrainerOptions options_;
  std::vector<NamedTensor> trained_;  // the parameters that the optimizer has
  std::vector<Buffer> buffers_;
  std::unique_ptr<OptimizerState> optimizer_state_;
  std::unique_ptr<ModelBuckets> model_;
  std::unique_ptr<Synchroniser> synchroniser_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<Adaptation> adaptation_;  // if there are policies
  std::vector<double> first_rates_;         // of the optimizer's groups

  Step step_;
  uint64_t step_number_ = 0;
  bool more_ = false;             // the open step has got more samples
  size_t seen_ = 0;               // of samples()
  uint64_t earlier_samples_ = 0;  // of this member in the open step, before it got more
  Epoch epoch_ = Epoch{};
  bool members_changed_ = false;
};

}  // namespace pliant::train
