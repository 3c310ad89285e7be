// The trained parameters of a model and their gradients in a few pieces of registered memory, the
// buckets of a Synchroniser, which are announced one by one while the backward pass makes the next.
//
// A parameter's grad() is a view of its bucket, so the backward pass adds to what is there: samples
// that a step gets later, in place of lost members, are added to those that it has. Buckets are
// filled from the end of the model, where a backward pass begins. They are announced in one order
// by everybody, and a parameter that gets no gradient counts as zeros.
//
// Owned by an ElasticTrainer; called by the thread that trains, inside backward() as well. Throws
// TrainingError.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pliant/runtime/session.h"
#include "pliant/training/monitor.h"
#include "pliant/training/synchroniser.h"
#include "train/registered_memory.h"

namespace pliant::train {

class ModelBuckets final {
 public:
  // Moves the parameters there.
  ModelBuckets(Session& session, const std::vector<NamedTensor>& parameters, size_t bucket_bytes);
  ~ModelBuckets();  // parameters and gradients get memory of their own again
  ModelBuckets(const ModelBuckets&) = delete;
  ModelBuckets& operator=(const ModelBuckets&) = delete;

  // For Synchroniser::make(): they come first, in this order.
  std::vector<Bucket> describe() const;

  // Zeroes the gradients, for a new step.
  void clear();
  // From now on each bucket is announced as soon as the backward pass has completed it.
  void announce_to(Synchroniser& synchroniser) { synchroniser_ = &synchroniser; }
  // Those that have not been announced yet.
  void announce_rest(Synchroniser& synchroniser);
  // The step has got more samples: everything is to be announced again.
  void begin_again();

  // Of each parameter, in the order given; before the commit this member's own.
  std::span<const GradientSpan> gradients() const { return spans_; }
  // The number of the first parameter whose gradient is not finite, or -1.
  int first_nonfinite() const;

 private:
  struct Part {
    std::string name;
    std::vector<size_t> members;  // numbers of parameters
    std::unique_ptr<RegisteredMemory> values;
    std::unique_ptr<RegisteredMemory> gradients;
    torch::Tensor flat_gradients;
    size_t missing = 0;  // gradients of the pass that runs
  };
  struct Hook {
    // Kept, because it would be made anew without the hook if nobody did.
    std::shared_ptr<torch::autograd::Node> node;
    uintptr_t key = 0;
  };

  void fill(size_t bucket_bytes);
  void move_into(Session& session, Part& part);
  void add_hook(size_t parameter);
  void on_gradient(size_t parameter);
  void announce(Synchroniser& synchroniser);
  void attach();

  const std::vector<NamedTensor> parameters_;
  std::vector<Part> parts_;
  std::vector<size_t> part_of_;           // each parameter
  std::vector<torch::Tensor> gradients_;  // of each parameter
  std::vector<GradientSpan> spans_;
  std::vector<Hook> hooks_;
  Synchroniser* synchroniser_ = nullptr;  // that complete buckets are announced to
  size_t announced_ = 0;
};

}  // namespace pliant::train
