#include "train/model_buckets.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <map>
#include <utility>

#include "train/training_error.h"

namespace pliant::train {

ModelBuckets::ModelBuckets(Session& session, const std::vector<NamedTensor>& parameters,
                           size_t bucket_bytes)
    : parameters_(parameters), part_of_(parameters.size()), gradients_(parameters.size()) {
  fill(bucket_bytes);
  for (Part& part : parts_) move_into(session, part);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& gradient = gradients_[i];
    spans_.push_back({.name = parameters_[i].name,
                      .data = gradient.data_ptr(),
                      .count = static_cast<size_t>(gradient.numel()),
                      .dtype = dtype_of(gradient.scalar_type())});
    add_hook(i);
  }
  begin_again();
}

ModelBuckets::~ModelBuckets() {
  for (const Hook& hook : hooks_) hook.node->del_post_hook(hook.key);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor parameter = parameters_[i].tensor;
    parameter.set_data(parameter.detach().clone());
    parameter.mutable_grad() = gradients_[i].clone();
  }
}

// Parameters of one type, from the end of the model on, until a bucket is full.
void ModelBuckets::fill(size_t bucket_bytes) {
  struct Filling {
    size_t part = 0;
    size_t bytes = 0;
  };
  std::map<torch::ScalarType, Filling> filling;
  for (size_t left = parameters_.size(); left > 0; --left) {
    const torch::Tensor& tensor = parameters_[left - 1].tensor;
    const auto found = filling.find(tensor.scalar_type());
    if (found == filling.end() || found->second.bytes >= bucket_bytes) {
      filling[tensor.scalar_type()] = {.part = parts_.size()};
      parts_.emplace_back().name = "model/" + std::to_string(parts_.size() - 1);
    }
    Filling& open = filling[tensor.scalar_type()];
    parts_[open.part].members.push_back(left - 1);
    part_of_[left - 1] = open.part;
    open.bytes += bytes_of(tensor).size();
  }
}

void ModelBuckets::move_into(Session& session, Part& part) {
  std::vector<torch::Tensor> shapes;
  for (const size_t i : part.members) shapes.push_back(parameters_[i].tensor);
  part.values = std::make_unique<RegisteredMemory>(session, shapes);
  part.gradients = std::make_unique<RegisteredMemory>(session, shapes);
  part.flat_gradients = part.gradients->flat();
  for (size_t at = 0; at < part.members.size(); ++at) {
    torch::Tensor parameter = parameters_[part.members[at]].tensor;
    const torch::Tensor& value = part.values->parts()[at];
    value.copy_(parameter.detach());
    parameter.set_data(value);
    gradients_[part.members[at]] = part.gradients->parts()[at];
  }
}

std::vector<Bucket> ModelBuckets::describe() const {
  std::vector<Bucket> buckets;
  for (const Part& part : parts_)
    buckets.push_back({.name = part.name,
                       .parameters = part.values->flat().data_ptr(),
                       .gradients = part.flat_gradients.data_ptr(),
                       .count = static_cast<size_t>(part.flat_gradients.numel()),
                       .dtype = dtype_of(part.flat_gradients.scalar_type())});
  return buckets;
}

void ModelBuckets::add_hook(size_t parameter) {
  using torch::autograd::variable_list;
  Hook hook{.node = torch::autograd::impl::grad_accumulator(parameters_[parameter].tensor)};
  auto call = [this, parameter](const variable_list& outputs, const variable_list&) {
    on_gradient(parameter);
    return outputs;
  };
  hook.key = hook.node->add_post_hook(
      std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(call)));
  hooks_.push_back(std::move(hook));
}

void ModelBuckets::attach() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor parameter = parameters_[i].tensor;
    parameter.mutable_grad() = gradients_[i];
  }
}

void ModelBuckets::clear() {
  for (Part& part : parts_) part.flat_gradients.zero_();
  begin_again();
}

void ModelBuckets::begin_again() {
  for (Part& part : parts_) part.missing = part.members.size();
  announced_ = 0;
  synchroniser_ = nullptr;
  attach();
}

void ModelBuckets::on_gradient(size_t parameter) {
  if (synchroniser_ == nullptr) return;
  Part& part = parts_[part_of_[parameter]];
  if (part.missing > 0) --part.missing;
  while (announced_ < parts_.size() && parts_[announced_].missing == 0) announce(*synchroniser_);
}

void ModelBuckets::announce_rest(Synchroniser& synchroniser) {
  while (announced_ < parts_.size()) announce(synchroniser);
}

void ModelBuckets::announce(Synchroniser& synchroniser) {
  for (const size_t i : parts_[announced_].members) {
    const torch::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradient.defined() || gradient.data_ptr() != gradients_[i].data_ptr())
      throw TrainingError("the gradient of '" + parameters_[i].name +
                          "' is not where it was: leave grad() to the trainer, zero_grad() too");
  }
  check(synchroniser.ready(announced_));
  ++announced_;
}

int ModelBuckets::first_nonfinite() const {
  // A sum costs one pass; it is not finite if any element is not.
  const auto finite = [](const torch::Tensor& tensor) {
    return std::isfinite(tensor.sum(torch::kFloat64).item<double>());
  };
  int first = -1;
  for (const Part& part : parts_) {
    if (finite(part.flat_gradients)) continue;
    for (const size_t i : part.members)
      if (!finite(gradients_[i]) && (first < 0 || static_cast<int>(i) < first))
        first = static_cast<int>(i);
  }
  return first;
}

}  // namespace pliant::train
