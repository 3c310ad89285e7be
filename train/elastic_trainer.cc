#include "train/elastic_trainer.h"

#include <algorithm>
#include <utility>

#include "train/training_error.h"

namespace pliant::train {

namespace {

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

bool contains(const std::vector<NamedTensor>& all, const torch::Tensor& tensor) {
  return std::any_of(all.begin(), all.end(),
                     [&](const NamedTensor& one) { return one.tensor.is_same(tensor); });
}

// In the order of the model, in which the backward pass is run backwards.
std::vector<NamedTensor> trained_of(const torch::nn::Module& model,
                                    const torch::optim::Optimizer& optimizer) {
  const std::vector<NamedTensor> parameters = named_of(model.named_parameters());
  std::vector<NamedTensor> optimized;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) {
      if (!contains(parameters, tensor))
        throw TrainingError("the optimizer has a parameter that is not of the model");
      optimized.push_back({"", tensor});
    }
  }
  std::vector<NamedTensor> found;
  for (const NamedTensor& named : parameters)
    if (named.tensor.requires_grad() && named.tensor.numel() > 0 &&
        contains(optimized, named.tensor))
      found.push_back(named);
  if (found.empty()) throw TrainingError("the optimizer has no parameter that needs a gradient");
  return found;
}

}  // namespace

ElasticTrainer::ElasticTrainer(Session& session, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer, TrainerOptions options)
    : session_(session), optimizer_(optimizer), options_(std::move(options)) {
  SamplerOptions& data = options_.data;
  data.constant_batch = true;
  if (data.global_batch > data.samples)
    throw TrainingError("the dataset has " + std::to_string(data.samples) +
                        " samples, fewer than one batch of " + std::to_string(data.global_batch));
  check(session.use_sampler(data));
  for (const auto& group : optimizer.param_groups())
    first_rates_.push_back(group.options().get_lr());
  trained_ = trained_of(model, optimizer);
  // The parameters by name first, so that whoever has another model is told of one of them.
  optimizer_state_ = std::make_unique<OptimizerState>(session, optimizer, trained_);
  register_rest(model);
  model_ = std::make_unique<ModelBuckets>(session, trained_, options_.bucket_bytes);
  make_training_layer();
}

ElasticTrainer::~ElasticTrainer() = default;

// What is not trained: frozen parameters, and buffers, which the members make equal.
void ElasticTrainer::register_rest(torch::nn::Module& model) {
  for (const NamedTensor& named : named_of(model.named_parameters())) {
    if (contains(trained_, named.tensor) || named.tensor.numel() == 0) continue;
    if (!named.tensor.is_contiguous())
      throw TrainingError("the parameter '" + named.name + "' is not contiguous");
    check(session_.register_state("frozen " + described(named), bytes_of(named.tensor),
                                  dtype_of(named.tensor.scalar_type())));
  }
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

void ElasticTrainer::make_training_layer() {
  std::vector<Bucket> buckets = model_->describe();
  for (Bucket& bucket : optimizer_state_->describe()) buckets.push_back(std::move(bucket));
  synchroniser_ = take(Synchroniser::make(session_, std::move(buckets), options_.synchronisation));
  monitor_ = take(Monitor::make(session_, options_.monitor));
  if (!options_.policies.empty())
    adaptation_ = take(Adaptation::make(session_, *monitor_, std::move(options_.policies)));
}

bool ElasticTrainer::is_synchronous() const {
  return synchroniser_->synchronisation() == Synchronisation::kSynchronous;
}

bool ElasticTrainer::begin() {
  seen_ = 0;
  if (std::exchange(more_, false)) return true;
  if (adaptation_ && adaptation_->stopped()) {
    adaptation_->finish();  // and meets the others
    return false;
  }
  optimizer_state_->store();
  step_ = session_.begin_step();
  if (!step_) {
    check(session_.status());
    if (adaptation_) adaptation_->finish();
    return false;
  }
  optimizer_state_->adopt();
  step_number_ = step_.number();
  earlier_samples_ = 0;
  model_->clear();
  monitor_->synchronisation(synchroniser_->synchronisation());
  monitor_->begin(step_);
  if (adaptation_) check(adaptation_->begin(step_));
  check(synchroniser_->begin(step_));
  return true;
}

void ElasticTrainer::finish() {
  session_.finish_steps();
  if (adaptation_) adaptation_->finish();
}

void ElasticTrainer::backward(const torch::Tensor& loss, size_t count) {
  if (!step_) throw TrainingError("backward() outside of a step: call begin() first");
  const size_t left = samples().size() - seen_;
  if (count > left)
    throw TrainingError("step " + std::to_string(step_number_) + ": backward() of " +
                        std::to_string(count) + " samples; there are " + std::to_string(left) +
                        " left");
  if (count == 0) return;
  if (!loss.defined() || loss.numel() != 1)
    throw TrainingError("the loss is not one number, the mean over the samples");
  seen_ += count;
  monitor_->loss(loss.item<double>(), count);
  if (seen_ == samples().size()) model_->announce_to(*synchroniser_);
  // The members' sums are divided by the samples of all of them.
  (loss * static_cast<double>(count)).backward();
}

bool ElasticTrainer::commit() {
  if (!step_) throw TrainingError("commit() outside of a step: call begin() first");
  if (seen_ != samples().size())
    throw TrainingError("step " + std::to_string(step_number_) + ": backward() was given " +
                        std::to_string(seen_) + " of " + std::to_string(samples().size()) +
                        " samples");
  model_->announce_rest(*synchroniser_);
  hand_in_buffers();
  // While they are being reduced: what was handed in stays as it is until the commit.
  if (const int first = model_->first_nonfinite(); first >= 0) monitor_->nonfinite(first);
  if (is_synchronous())
    monitor_->gradients(model_->gradients(), earlier_samples_ + seen_, GradientForm::kSum);
  check(monitor_->hand_in(step_));
  if (!take(synchroniser_->commit())) {
    more_ = step_.more();
    if (!more_) step_ = {};  // this member is out
    earlier_samples_ += seen_;
    model_->begin_again();
    return false;
  }
  if (is_synchronous()) {
    monitor_->committed(step_, model_->gradients());
  } else {
    monitor_->committed(step_);
  }
  members_changed_ = session_.view().epoch != epoch_;
  epoch_ = session_.view().epoch;
  take_buffers();
  const bool accepted = is_accepted();
  if (accepted) apply();
  check(synchroniser_->applied());
  if (adaptation_) adapt();
  return accepted;
}

bool ElasticTrainer::is_accepted() const {
  const std::optional<Nonfinite>& nonfinite = signals().nonfinite;
  if (!nonfinite) return true;
  const bool of_loss = nonfinite->tensor == Nonfinite::kLoss;
  const NonFinite found{
      .step = step_number_,
      .rank = nonfinite->rank,
      .tensor = of_loss ? "" : trained_.at(static_cast<size_t>(nonfinite->tensor)).name};
  const OnNonFinite decision =
      options_.on_nonfinite ? options_.on_nonfinite(found) : OnNonFinite::kStop;
  if (decision == OnNonFinite::kStop)
    throw TrainingError("step " + std::to_string(found.step) + ": " +
                        (of_loss ? "the loss" : "the gradient of '" + found.tensor + "'") +
                        " on rank " + std::to_string(found.rank) +
                        " is not finite; nothing was applied");
  return decision == OnNonFinite::kApply;
}

void ElasticTrainer::set_learning_rates() {
  if (!options_.learning_rate && !adaptation_) return;
  const double factor = adaptation_ ? adaptation_->learning_rate_factor() : 1;
  auto& groups = optimizer_.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    const double rate =
        options_.learning_rate ? options_.learning_rate(step_number_) : first_rates_[i];
    groups[i].options().set_lr(rate * factor);
  }
}

void ElasticTrainer::apply() {
  const torch::NoGradGuard no_gradients;
  if (options_.clip_norm > 0) {
    std::vector<torch::Tensor> tensors;
    for (const NamedTensor& named : trained_) tensors.push_back(named.tensor);
    torch::nn::utils::clip_grad_norm_(tensors, options_.clip_norm);
  }
  set_learning_rates();
  optimizer_.step();
}

void ElasticTrainer::adapt() {
  check(adaptation_->committed());
  if (const auto way = adaptation_->take_synchronisation()) check(synchroniser_->switch_to(*way));
}

// Running means are weighed by the samples that they have seen; of counters the largest counts.
void ElasticTrainer::hand_in_buffers() {
  const torch::NoGradGuard no_gradients;
  const auto weight = static_cast<double>(earlier_samples_ + seen_);
  for (Buffer& buffer : buffers_) {
    const torch::Tensor& part = buffer.reduced->parts()[0];
    if (part.scalar_type() == torch::kBool) continue;
    part.copy_(buffer.named.tensor);
    if (part.is_floating_point()) part.mul_(weight);
    check(step_.all_reduce("buffer/" + buffer.named.name, part.data_ptr(),
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
