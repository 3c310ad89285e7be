// Gradients of a model in a few pieces of registered memory, which are handed to a step one by one
// while the backward pass makes the next.
//
// A parameter's grad() is a view of its bucket, so the backward pass adds to what is there: samples
// that a step gets later, in place of lost members, are added to those that it has. Buckets are
// filled from the end of the model, where a backward pass begins. They are handed in in one order
// by everybody, and a parameter that gets no gradient counts as zeros.
//
// Owned by an ElasticTrainer; called by the thread that trains, inside backward() as well.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "pliant/runtime/session.h"
#include "train/optimizer_state.h"
#include "train/registered_memory.h"

namespace pliant::train {

class GradientBuckets final {
 public:
  GradientBuckets(Session& session, const std::vector<NamedTensor>& parameters,
                  size_t bucket_bytes);
  ~GradientBuckets();  // the gradients stay as copies
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Zeros, for a new step.
  void clear();
  // From now on each bucket is handed to the step as soon as it is complete; `extra` travels with
  // the first of them, as a sum over the members that is divided as gradients are.
  void hand_in_when_ready(Step& step);
  // Those that have not been handed in yet.
  void hand_in_rest(Step& step);
  // The step has got more samples: everything is to be handed in again.
  void begin_again();

  // Before it is handed in, what this member adds; after the commit, what all have.
  torch::Tensor extra() const { return extra_; }
  size_t count() const { return buckets_.size(); }
  // Whether all gradients are finite, and if not, which is the first that is not, or -1.
  int64_t first_nonfinite() const;

 private:
  struct Bucket {
    std::string name;
    std::vector<size_t> parameters;
    std::unique_ptr<RegisteredMemory> memory;
    torch::Tensor flat;
    size_t missing = 0;  // gradients of the pass that runs
  };
  struct Hook {
    std::shared_ptr<torch::autograd::Node>
        node;  // would be made anew, without it, if nobody kept it
    uintptr_t key = 0;
  };

  void make_buckets(Session& session, size_t bucket_bytes);
  void add_hook(size_t parameter);
  void ready(size_t parameter);
  void attach();
  void hand_in(Step& step, Bucket& bucket);

  const std::vector<NamedTensor> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<torch::Tensor> views_;  // of each parameter
  torch::Tensor extra_;
  std::vector<Hook> hooks_;
  Step* step_ = nullptr;  // that complete buckets go to
  size_t handed_in_ = 0;
};

}  // namespace pliant::train
