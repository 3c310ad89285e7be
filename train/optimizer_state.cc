#include "train/optimizer_state.h"

#include <algorithm>
#include <bit>
#include <sstream>
#include <type_traits>
#include <utility>

#include "train/training_error.h"

namespace pliant::train {

namespace {

namespace optim = torch::optim;

// torch 1.13 finds states by the address of a parameter as text, later ones by the address itself.
using StateKey = std::decay_t<decltype(std::declval<optim::Optimizer>().state())>::key_type;

template <typename Key>
Key key_from(void* address) {
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << address;
    return text.str();
  } else {
    return static_cast<Key>(address);
  }
}

StateKey key_of(const torch::Tensor& parameter) {
  return key_from<StateKey>(parameter.unsafeGetTensorImpl());
}

// The tensors of a state in an order of ours; those that the optimizer's options do without are
// undefined.
std::vector<torch::Tensor*> tensors_of(optim::OptimizerParamState& state) {
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) return {&sgd->momentum_buffer()};
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state))
    return {&adam->exp_avg(), &adam->exp_avg_sq(), &adam->max_exp_avg_sq()};
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state))
    return {&adamw->exp_avg(), &adamw->exp_avg_sq(), &adamw->max_exp_avg_sq()};
  if (auto* rms = dynamic_cast<optim::RMSpropParamState*>(&state))
    return {&rms->square_avg(), &rms->momentum_buffer(), &rms->grad_avg()};
  if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) return {&adagrad->sum()};
  return {};
}

int64_t steps_of(const optim::OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<const optim::AdamParamState*>(&state)) return adam->step();
  if (auto* adamw = dynamic_cast<const optim::AdamWParamState*>(&state)) return adamw->step();
  if (auto* rms = dynamic_cast<const optim::RMSpropParamState*>(&state)) return rms->step();
  if (auto* adagrad = dynamic_cast<const optim::AdagradParamState*>(&state)) return adagrad->step();
  return 0;
}

void set_steps(optim::OptimizerParamState& state, int64_t steps) {
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) adam->step(steps);
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state)) adamw->step(steps);
  if (auto* rms = dynamic_cast<optim::RMSpropParamState*>(&state)) rms->step(steps);
  if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) adagrad->step(steps);
}

std::unique_ptr<optim::OptimizerParamState> empty_state(const optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::SGD*>(&optimizer)) return std::make_unique<optim::SGDParamState>();
  if (dynamic_cast<const optim::Adam*>(&optimizer))
    return std::make_unique<optim::AdamParamState>();
  if (dynamic_cast<const optim::AdamW*>(&optimizer))
    return std::make_unique<optim::AdamWParamState>();
  if (dynamic_cast<const optim::RMSprop*>(&optimizer))
    return std::make_unique<optim::RMSpropParamState>();
  if (dynamic_cast<const optim::Adagrad*>(&optimizer))
    return std::make_unique<optim::AdagradParamState>();
  throw TrainingError(
      "this optimizer cannot be made elastic: its state is not known; use SGD, Adam, AdamW, "
      "RMSprop "
      "or Adagrad");
}

struct Kept {
  size_t which;
  const char* name;
};

// Those of tensors_of() that an optimizer with these options makes.
std::vector<Kept> kept_by(const optim::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options))
    return sgd->momentum() != 0 ? std::vector<Kept>{{0, "momentum"}} : std::vector<Kept>{};
  const auto of_adam = [](bool amsgrad) {
    std::vector<Kept> kept = {{0, "exp_avg"}, {1, "exp_avg_sq"}};
    if (amsgrad) kept.push_back({2, "max_exp_avg_sq"});
    return kept;
  };
  if (auto* adam = dynamic_cast<const optim::AdamOptions*>(&options))
    return of_adam(adam->amsgrad());
  if (auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options))
    return of_adam(adamw->amsgrad());
  if (auto* rms = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    std::vector<Kept> kept = {{0, "square_avg"}};
    if (rms->momentum() > 0) kept.push_back({1, "momentum"});
    if (rms->centered()) kept.push_back({2, "grad_avg"});
    return kept;
  }
  return {{0, "sum"}};  // Adagrad
}

}  // namespace

OptimizerState::OptimizerState(Session& session, optim::Optimizer& optimizer,
                               const std::vector<NamedTensor>& parameters)
    : session_(session), optimizer_(optimizer) {
  static_cast<void>(empty_state(optimizer));  // names an optimizer that is not known
  for (const NamedTensor& parameter : parameters) parameters_.push_back(parameter.tensor);
  find_kinds(parameters);
  for (Kind& kind : kinds_) {
    std::vector<torch::Tensor> shapes;
    for (const size_t i : kind.members) shapes.push_back(parameters_[i]);
    kind.memory = std::make_unique<RegisteredMemory>(session, shapes);
  }
  const size_t groups = optimizer.param_groups().size();
  numbers_ = take(session.allocate_array<int64_t>(parameters_.size() + groups));
  // One by one, so that a worker with another model is told which parameter it is.
  for (size_t i = 0; i < parameters_.size(); ++i)
    check(session.register_state("parameter " + described(parameters[i]),
                                 std::as_writable_bytes(numbers_.subspan(i, 1)), DType::kI64));
  check(session.register_state("learning rates", std::as_writable_bytes(numbers_.last(groups)),
                               DType::kI64));
}

void OptimizerState::find_kinds(const std::vector<NamedTensor>& parameters) {
  for (const optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) {
      const auto at =
          std::find_if(parameters.begin(), parameters.end(),
                       [&](const NamedTensor& one) { return one.tensor.is_same(tensor); });
      if (at == parameters.end() || tensor.numel() == 0) continue;
      for (const Kept& kept : kept_by(group.options())) {
        const auto found = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
          return kind.which == kept.which && kind.type == tensor.scalar_type();
        });
        Kind& kind =
            found != kinds_.end()
                ? *found
                : kinds_.emplace_back(
                      Kind{.name = kept.name, .which = kept.which, .type = tensor.scalar_type()});
        kind.members.push_back(static_cast<size_t>(at - parameters.begin()));
      }
    }
  }
}

OptimizerState::~OptimizerState() {
  for (Kind& kind : kinds_) {
    for (size_t at = 0; at < kind.members.size(); ++at) {
      optim::OptimizerParamState* const state = state_of(kind.members[at]);
      if (state == nullptr) continue;
      torch::Tensor& tensor = *tensors_of(*state)[kind.which];
      if (tensor.defined() && tensor.data_ptr() == kind.memory->parts()[at].data_ptr())
        tensor = tensor.clone();
    }
  }
  session_.release(std::as_writable_bytes(numbers_));
}

std::vector<Bucket> OptimizerState::describe() const {
  std::vector<Bucket> buckets;
  for (const Kind& kind : kinds_) {
    const torch::Tensor flat = kind.memory->flat();
    buckets.push_back({.name = "optimizer/" + kind.name + "/" + c10::toString(kind.type),
                       .parameters = flat.data_ptr(),
                       .gradients = nullptr,
                       .count = static_cast<size_t>(flat.numel()),
                       .dtype = dtype_of(kind.type)});
  }
  return buckets;
}

optim::OptimizerParamState* OptimizerState::state_of(size_t parameter) const {
  auto& states = optimizer_.state();
  const auto found = states.find(key_of(parameters_[parameter]));
  return found == states.end() ? nullptr : found->second.get();
}

void OptimizerState::store() {
  const torch::NoGradGuard no_gradients;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const optim::OptimizerParamState* const state = state_of(i);
    numbers_[i] = state == nullptr ? -1 : steps_of(*state);
  }
  for (Kind& kind : kinds_) {
    for (size_t at = 0; at < kind.members.size(); ++at) {
      optim::OptimizerParamState* const state = state_of(kind.members[at]);
      if (state == nullptr) continue;
      torch::Tensor& tensor = *tensors_of(*state)[kind.which];
      const torch::Tensor& memory = kind.memory->parts()[at];
      if (!tensor.defined() || tensor.data_ptr() == memory.data_ptr()) continue;
      memory.copy_(tensor);
      tensor = memory;
    }
  }
  const auto& groups = optimizer_.param_groups();
  for (size_t i = 0; i < groups.size(); ++i)
    numbers_[parameters_.size() + i] = std::bit_cast<int64_t>(groups[i].options().get_lr());
  stored_.assign(numbers_.begin(), numbers_.end());
}

void OptimizerState::adopt() {
  if (std::equal(numbers_.begin(), numbers_.end(), stored_.begin())) return;
  auto& states = optimizer_.state();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (numbers_[i] < 0) continue;
    auto& state = states[key_of(parameters_[i])];
    if (state == nullptr) state = empty_state(optimizer_);
    set_steps(*state, numbers_[i]);
  }
  for (Kind& kind : kinds_) {
    for (size_t at = 0; at < kind.members.size(); ++at)
      if (numbers_[kind.members[at]] >= 0)
        *tensors_of(*state_of(kind.members[at]))[kind.which] = kind.memory->parts()[at];
  }
  auto& groups = optimizer_.param_groups();
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].options().set_lr(std::bit_cast<double>(numbers_[parameters_.size() + i]));
}

}  // namespace pliant::train
