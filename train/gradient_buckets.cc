#include "train/gradient_buckets.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "train/training_error.h"

namespace pliant::train {

GradientBuckets::GradientBuckets(Session& session, const std::vector<NamedTensor>& parameters,
                                 size_t bucket_bytes)
    : parameters_(parameters), bucket_of_(parameters.size()), views_(parameters.size()) {
  make_buckets(session, bucket_bytes);
  attach();
  for (size_t i = 0; i < parameters_.size(); ++i) add_hook(i);
}

GradientBuckets::~GradientBuckets() {
  for (Hook& hook : hooks_) hook.node->del_post_hook(hook.key);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor parameter = parameters_[i].tensor;
    parameter.mutable_grad() = views_[i].clone();
  }
  extra_.reset();
  views_.clear();
}

void GradientBuckets::make_buckets(Session& session, size_t bucket_bytes) {
  std::vector<std::vector<size_t>> members;
  std::map<torch::ScalarType, std::pair<size_t, size_t>> filling;  // bucket and bytes, by type
  for (size_t left = parameters_.size(); left > 0; --left) {
    const torch::Tensor& tensor = parameters_[left - 1].tensor;
    const auto found = filling.find(tensor.scalar_type());
    if (found == filling.end() || found->second.second >= bucket_bytes) {
      filling[tensor.scalar_type()] = {members.size(), 0};
      members.emplace_back();
    }
    auto& [bucket, bytes] = filling[tensor.scalar_type()];
    members[bucket].push_back(left - 1);
    bytes += bytes_of(tensor).size();
  }
  for (size_t number = 0; number < members.size(); ++number) {
    Bucket bucket{.name = "pliant/gradients/" + std::to_string(number),
                  .parameters = std::move(members[number]),
                  .memory = nullptr,
                  .flat = {}};
    std::vector<torch::Tensor> shapes;
    for (const size_t i : bucket.parameters) shapes.push_back(parameters_[i].tensor);
    bucket.memory = std::make_unique<RegisteredMemory>(session, shapes, number == 0 ? 1 : 0);
    bucket.flat = bucket.memory->flat();
    bucket.missing = bucket.parameters.size();
    for (size_t part = 0; part < bucket.parameters.size(); ++part) {
      bucket_of_[bucket.parameters[part]] = number;
      views_[bucket.parameters[part]] = bucket.memory->parts()[part];
    }
    buckets_.push_back(std::move(bucket));
  }
  const torch::Tensor& first = buckets_.at(0).flat;
  extra_ = first.narrow(0, first.numel() - 1, 1);
}

void GradientBuckets::add_hook(size_t parameter) {
  using torch::autograd::variable_list;
  Hook hook{.node = torch::autograd::impl::grad_accumulator(parameters_[parameter].tensor)};
  auto call = [this, parameter](const variable_list& outputs, const variable_list&) {
    ready(parameter);
    return outputs;
  };
  hook.key = hook.node->add_post_hook(
      std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(call)));
  hooks_.push_back(std::move(hook));
}

void GradientBuckets::attach() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor parameter = parameters_[i].tensor;
    parameter.mutable_grad() = views_[i];
  }
}

void GradientBuckets::clear() {
  for (Bucket& bucket : buckets_) bucket.flat.zero_();
  begin_again();
}

void GradientBuckets::begin_again() {
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters.size();
  handed_in_ = 0;
  step_ = nullptr;
  attach();
}

void GradientBuckets::hand_in_when_ready(Step& step) { step_ = &step; }

void GradientBuckets::ready(size_t parameter) {
  if (step_ == nullptr) return;
  Bucket& bucket = buckets_[bucket_of_[parameter]];
  if (bucket.missing > 0) --bucket.missing;
  while (handed_in_ < buckets_.size() && buckets_[handed_in_].missing == 0)
    hand_in(*step_, buckets_[handed_in_]);
}

void GradientBuckets::hand_in_rest(Step& step) {
  while (handed_in_ < buckets_.size()) hand_in(step, buckets_[handed_in_]);
}

void GradientBuckets::hand_in(Step& step, Bucket& bucket) {
  for (const size_t i : bucket.parameters) {
    if (parameters_[i].tensor.grad().defined() &&
        parameters_[i].tensor.grad().data_ptr() == views_[i].data_ptr())
      continue;
    throw TrainingError("the gradient of '" + parameters_[i].name +
                        "' is not where it was: leave grad() to the trainer, zero_grad() too");
  }
  const torch::Tensor& flat = bucket.flat;
  check(step.all_reduce(bucket.name, flat.data_ptr(), static_cast<size_t>(flat.numel()),
                        dtype_of(flat.scalar_type()), Op::kMean, flat.data_ptr()));
  ++handed_in_;
}

int64_t GradientBuckets::first_nonfinite() const {
  // A sum costs one pass; it is not finite if any element is not.
  const auto finite = [](const torch::Tensor& tensor) {
    return std::isfinite(tensor.sum(torch::kFloat64).item<double>());
  };
  int64_t first = -1;
  for (const Bucket& bucket : buckets_) {
    if (finite(bucket.flat)) continue;
    for (const size_t i : bucket.parameters)
      if (!finite(views_[i]) && (first < 0 || static_cast<int64_t>(i) < first))
        first = static_cast<int64_t>(i);
  }
  return first;
}

}  // namespace pliant::train
