#include "train/elastic_trainer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "train/training_error.h"

namespace pliant::train {

namespace {

constexpr int64_t kNobody = std::numeric_limits<int64_t>::max();

// The name with the shape: members whose models differ are told where.
std::string described(const NamedTensor& named) {
  std::string shape;
  for (const int64_t size : named.tensor.sizes())
    shape += (shape.empty() ? "" : "x") + std::to_string(size);
  return named.name + " (" + (shape.empty() ? "1" : shape) + ")";
}

// Tensors that stand under several names come once.
template <typename Items>
std::vector<NamedTensor> named_of(const Items& items) {
  std::vector<NamedTensor> found;
  for (const auto& item : items) {
    const auto same = [&](const NamedTensor& one) { return one.tensor.is_same(item.value()); };
    if (std::none_of(found.begin(), found.end(), same)) found.push_back({item.key(), item.value()});
  }
  return found;
}

std::vector<NamedTensor> trained_of(const std::vector<NamedTensor>& parameters,
                                    const torch::optim::Optimizer& optimizer) {
  std::vector<NamedTensor> found;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) {
      const auto named =
          std::find_if(parameters.begin(), parameters.end(),
                       [&](const NamedTensor& one) { return one.tensor.is_same(tensor); });
      if (named == parameters.end())
        throw TrainingError("the optimizer has a parameter that is not of the model");
      if (tensor.requires_grad()) found.push_back(*named);
    }
  }
  if (found.empty()) throw TrainingError("the optimizer has no parameter that needs a gradient");
  return found;
}

}  // namespace

ElasticTrainer::ElasticTrainer(Session& session, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer, TrainerOptions options)
    : session_(session), optimizer_(optimizer), options_(std::move(options)) {
  SamplerOptions data = options_.data;
  data.constant_batch = true;
  if (data.global_batch > data.samples)
    throw TrainingError("the dataset has " + std::to_string(data.samples) +
                        " samples, fewer than one batch of " + std::to_string(data.global_batch));
  check(session.use_sampler(data));
  register_model(model);
  trained_ = trained_of(parameters_, optimizer);
  optimizer_state_ = std::make_unique<OptimizerState>(session, optimizer, trained_);
  gradients_ = std::make_unique<GradientBuckets>(session, trained_, options_.bucket_bytes);
  register_buffers(model);
  nonfinite_ = take(session.allocate_array<int64_t>(1));
}

ElasticTrainer::~ElasticTrainer() {
  gradients_.reset();
  optimizer_state_.reset();
  for (NamedTensor& named : parameters_) named.tensor.set_data(named.tensor.detach().clone());
  memory_.reset();
  session_.release(std::as_writable_bytes(nonfinite_));
}

void ElasticTrainer::register_model(torch::nn::Module& model) {
  parameters_ = named_of(model.named_parameters());
  std::vector<torch::Tensor> shapes;
  for (const NamedTensor& named : parameters_) shapes.push_back(named.tensor);
  memory_ = std::make_unique<RegisteredMemory>(session_, shapes);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& part = memory_->parts()[i];
    part.copy_(parameters_[i].tensor.detach());
    parameters_[i].tensor.set_data(part);
    if (part.numel() > 0)
      check(session_.register_state(described(parameters_[i]), bytes_of(part),
                                    dtype_of(part.scalar_type())));
  }
}

void ElasticTrainer::register_buffers(torch::nn::Module& model) {
  for (NamedTensor& named : named_of(model.named_buffers())) {
    if (named.tensor.numel() == 0) continue;
    if (!named.tensor.is_contiguous())
      throw TrainingError("the buffer '" + named.name + "' is not contiguous");
    check(session_.register_state("buffer " + described(named), bytes_of(named.tensor),
                                  dtype_of(named.tensor.scalar_type())));
    auto reduced =
        std::make_unique<RegisteredMemory>(session_, std::vector<torch::Tensor>{named.tensor});
    buffers_.push_back({std::move(named), std::move(reduced)});
  }
}

bool ElasticTrainer::begin() {
  seen_ = 0;
  if (std::exchange(more_, false)) return true;
  optimizer_state_->store();
  step_ = session_.begin_step();
  if (!step_) {
    check(session_.status());
    return false;
  }
  optimizer_state_->adopt();
  step_number_ = step_.number();
  earlier_samples_ = 0;
  gradients_->clear();
  nonfinite_[0] = kNobody;
  return true;
}

void ElasticTrainer::backward(const torch::Tensor& loss, size_t count) {
  if (!step_) throw TrainingError("backward() outside of a step: call begin() first");
  if (count > samples().size() - seen_)
    throw TrainingError("step " + std::to_string(step_number_) + ": backward() of " +
                        std::to_string(count) + " samples; there are " +
                        std::to_string(samples().size() - seen_) + " left");
  if (count == 0) return;
  if (loss.numel() != 1)
    throw TrainingError("the loss has " + std::to_string(loss.numel()) +
                        " elements; it is one number, the mean over the samples");
  seen_ += count;
  const torch::Tensor sum = loss * static_cast<double>(count);
  {
    const torch::NoGradGuard no_gradients;
    gradients_->extra().add_(sum.detach().reshape({1}));
  }
  if (seen_ == samples().size()) gradients_->hand_in_when_ready(step_);
  sum.backward();
}

bool ElasticTrainer::commit() {
  if (!step_) throw TrainingError("commit() outside of a step: call begin() first");
  if (seen_ != samples().size())
    throw TrainingError("step " + std::to_string(step_number_) + ": backward() was given " +
                        std::to_string(seen_) + " of " + std::to_string(samples().size()) +
                        " samples");
  gradients_->hand_in_rest(step_);
  hand_in_buffers();
  // While they are being reduced: what was handed in stays as it is until the commit.
  if (const int64_t first = gradients_->first_nonfinite(); first >= 0)
    nonfinite_[0] = std::min(nonfinite_[0], int64_t{session_.rank()} << 32 | first);
  check(step_.all_reduce("pliant/nonfinite", nonfinite_.data(), 1, DType::kI64, Op::kMin,
                         nonfinite_.data()));
  const Status status = step_.commit();
  if (!status.ok()) {
    step_ = {};
    if (status.code() == Code::kCancelled) return false;
    check(status);
  }
  if (step_.more()) {
    more_ = true;
    earlier_samples_ += seen_;
    gradients_->begin_again();
    return false;
  }
  loss_ = gradients_->extra().item<double>();
  members_ = session_.size();
  samples_in_step_ = step_.contributed_samples();
  members_changed_ = session_.view().epoch != epoch_;
  epoch_ = session_.view().epoch;
  take_buffers();
  if (!is_finite()) return false;
  apply();
  return true;
}

void ElasticTrainer::apply() {
  const torch::NoGradGuard no_gradients;
  if (options_.clip_norm > 0) {
    std::vector<torch::Tensor> tensors;
    for (const NamedTensor& named : trained_) tensors.push_back(named.tensor);
    torch::nn::utils::clip_grad_norm_(tensors, options_.clip_norm);
  }
  if (options_.learning_rate) {
    for (auto& group : optimizer_.param_groups())
      group.options().set_lr(options_.learning_rate(step_number_));
  }
  optimizer_.step();
}

bool ElasticTrainer::is_finite() {
  if (nonfinite_[0] == kNobody) return true;
  const auto tensor = static_cast<size_t>(nonfinite_[0] & 0xffffffff);
  const NonFinite found{.step = step_number_,
                        .rank = static_cast<Rank>(nonfinite_[0] >> 32),
                        .tensor = trained_.at(tensor).name};
  const OnNonFinite decision =
      options_.on_nonfinite ? options_.on_nonfinite(found) : OnNonFinite::kStop;
  if (decision == OnNonFinite::kStop)
    throw TrainingError("step " + std::to_string(found.step) + ": the gradient of '" +
                        found.tensor + "' on rank " + std::to_string(found.rank) +
                        " is not finite; nothing was applied");
  return decision == OnNonFinite::kApply;
}

// Running means are weighed by the samples that they have seen; counters are the largest.
void ElasticTrainer::hand_in_buffers() {
  const torch::NoGradGuard no_gradients;
  const auto weight = static_cast<double>(earlier_samples_ + seen_);
  for (Buffer& buffer : buffers_) {
    const torch::Tensor& part = buffer.reduced->parts()[0];
    if (part.scalar_type() == torch::kBool) continue;
    part.copy_(buffer.named.tensor);
    if (part.is_floating_point()) part.mul_(weight);
    check(step_.all_reduce("pliant/buffer/" + buffer.named.name, part.data_ptr(),
                           static_cast<size_t>(part.numel()), dtype_of(part.scalar_type()),
                           part.is_floating_point() ? Op::kMean : Op::kMax, part.data_ptr()));
  }
}

void ElasticTrainer::take_buffers() {
  const torch::NoGradGuard no_gradients;
  for (Buffer& buffer : buffers_) {
    const torch::Tensor& part = buffer.reduced->parts()[0];
    if (part.scalar_type() != torch::kBool) buffer.named.tensor.copy_(part);
  }
}

}  // namespace pliant::train
