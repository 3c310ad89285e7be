// The state of a torch optimizer as elastic state of a session: newcomers get it, bit for bit.
//
// torch makes up most of it in the first step, and not always from zeros. So memory of its shape is
// registered beforehand; what the optimizer makes is moved there before the next step begins; and
// whoever joins finds the optimizer as if it had made the steps itself. Knows SGD, Adam, AdamW,
// RMSprop and Adagrad.
//
// Owned by an ElasticTrainer; called by the thread that trains. Throws TrainingError.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pliant/runtime/session.h"
#include "pliant/training/synchroniser.h"
#include "train/registered_memory.h"

namespace pliant::train {

class OptimizerState final {
 public:
  // Makes room for all that the optimizer remembers of these parameters, which are its own, and
  // registers its numbers: one state for each parameter, under its name and shape.
  OptimizerState(Session& session, torch::optim::Optimizer& optimizer,
                 const std::vector<NamedTensor>& parameters);
  ~OptimizerState();  // what was moved gets memory of its own again
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;

  // The tensors, for Synchroniser::make(): they go with the model.
  std::vector<Bucket> describe() const;

  // Before begin_step(): what the last step has made or changed goes to where it is registered.
  void store();
  // After begin_step(): takes over what the members have, if this one has just joined them.
  void adopt();

 private:
  // A kind of tensor that the optimizer has of parameters of one type.
  struct Kind {
    std::string name;
    size_t which = 0;  // among the tensors of a parameter's state
    torch::ScalarType type = torch::kFloat32;
    std::vector<size_t> members = {};  // numbers of parameters
    std::unique_ptr<RegisteredMemory> memory = {};
  };

  void find_kinds(const std::vector<NamedTensor>& parameters);
  torch::optim::OptimizerParamState* state_of(size_t parameter) const;

  Session& session_;
  torch::optim::Optimizer& optimizer_;
  std::vector<torch::Tensor> parameters_;
  std::vector<Kind> kinds_;
  // Of each parameter how many steps it has seen, or -1: it has no state yet. Behind them the
  // learning rate of each group, bit by bit.
  std::span<int64_t> numbers_;
  std::vector<int64_t> stored_;  // what the numbers were before begin_step()
};

}  // namespace pliant::train
