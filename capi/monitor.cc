// The monitor and the policies of the C ABI.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "capi/handles.h"
#include "pliant/policy/make_policy.h"

namespace pliant::capi {
namespace {

// Copies as much as the caller's version of a struct has; its first field is its size.
template <typename T>
Status copy_out(const T& full, T* to, const char* function) {
  size_t size = 0;
  std::memcpy(&size, to, sizeof size);
  if (size < sizeof size || size > 4096)
    return invalid(fmt::format("{}: set the field `size` to the size of the struct", function));
  std::memcpy(to, &full, std::min(size, sizeof full));
  std::memcpy(to, &size, sizeof size);
  return {};
}

// Takes as much as the caller's version of a struct has; the rest is zero.
template <typename T>
Result<T> copy_in(const T* from, const char* function) {
  if (from->size < sizeof(size_t) || from->size > 4096)
    return invalid(fmt::format("{}: set the field `size` to the size of the struct", function));
  T known = {};
  std::memcpy(&known, from, std::min(from->size, sizeof known));
  return known;
}

Status need_monitor(const pliant_session* session, const char* function) {
  if (session->training.monitor) return {};
  return invalid(fmt::format(
      "{}: there is no monitor; call pliant_use_monitor() before the first step", function));
}

pliant_signals to_c(const Signals& from, Training& training) {
  pliant_signals to = {};
  to.size = sizeof to;
  to.step = from.step;
  to.data_epoch = from.data_epoch;
  to.samples_committed = from.samples_committed;
  to.batch = from.batch;
  to.reduced_bytes = from.reduced_bytes;
  to.view = from.view;
  to.members = from.members;
  to.hosts = from.hosts;
  to.members_lost = from.members_lost;
  to.step_seconds = from.step_seconds;
  to.samples_per_second = from.samples_per_second;
  to.compute_seconds = from.compute_seconds;
  to.wait_seconds = from.wait_seconds;
  to.change_seconds = from.change_seconds;
  to.loss = from.loss;
  to.synchronisation = static_cast<int>(from.synchronisation);
  to.topology = from.topology.c_str();
  to.noise_known = from.noise ? 1 : 0;
  if (from.noise) {
    to.noise_scale = from.noise->scale;
    to.noise_variance = from.noise->variance;
    to.noise_squared_norm = from.noise->squared_norm;
  }
  to.straggler_rank = from.straggler ? from.straggler->rank : -1;
  to.straggler_slowdown = from.straggler ? from.straggler->slowdown : 1;
  to.nonfinite_rank = from.nonfinite ? from.nonfinite->rank : -1;
  to.nonfinite_tensor = from.nonfinite ? from.nonfinite->tensor : Nonfinite::kLoss;
  training.by_rank.clear();
  for (const MemberSignals& member : from.by_rank)
    training.by_rank.push_back({member.peer.host, member.peer.slot, member.peer.incarnation,
                                member.compute_seconds, member.wait_seconds});
  training.links.clear();
  for (const LinkSignals& link : from.links)
    training.links.push_back(
        {link.from_host, link.to_host, link.latency_seconds, link.bytes_per_second});
  to.by_rank = training.by_rank.data();
  to.by_rank_count = training.by_rank.size();
  to.links = training.links.data();
  to.link_count = training.links.size();
  return to;
}

// A policy whose decisions a C function makes.
class CalledPolicy final : public Policy {
 public:
  CalledPolicy(const pliant_policy& policy, Training& training)
      : name_(policy.name), policy_(policy), training_(training) {}

  std::string_view name() const override { return name_; }
  std::span<std::byte> state() override {
    return {static_cast<std::byte*>(policy_.state), policy_.state_bytes};
  }
  Decision before_train(const Signals& now) override { return call(PLIANT_BEFORE_TRAIN, now); }
  Decision before_epoch(const Signals& now) override { return call(PLIANT_BEFORE_EPOCH, now); }
  Decision before_step(const Signals& now) override { return call(PLIANT_BEFORE_STEP, now); }
  Decision after_step(const Signals& now) override { return call(PLIANT_AFTER_STEP, now); }
  Decision after_epoch(const Signals& now) override { return call(PLIANT_AFTER_EPOCH, now); }
  Decision after_train(const Signals& now) override { return call(PLIANT_AFTER_TRAIN, now); }

 private:
  Decision call(pliant_moment moment, const Signals& now) {
    const pliant_signals signals = to_c(now, training_);
    pliant_decision wanted = {};
    wanted.size = sizeof wanted;
    wanted.synchronisation = PLIANT_AS_BEFORE;
    policy_.decide(policy_.context, moment, &signals, &wanted);
    wanted.topology[sizeof wanted.topology - 1] = 0;
    wanted.reason[sizeof wanted.reason - 1] = 0;
    Decision decision;
    if (wanted.members != 0) decision.members = wanted.members;
    if (wanted.global_batch != 0) decision.global_batch = wanted.global_batch;
    if (wanted.learning_rate_factor != 0)
      decision.learning_rate_factor = wanted.learning_rate_factor;
    if (wanted.synchronisation >= PLIANT_SYNCHRONOUS &&
        wanted.synchronisation <= PLIANT_PAIR_AVERAGING)
      decision.synchronisation = static_cast<Synchronisation>(wanted.synchronisation);
    if (wanted.topology[0] != 0) decision.topology = wanted.topology;
    decision.measure_links = wanted.measure_links != 0;
    decision.stop = wanted.stop != 0;
    if (!decision.empty()) decision.reason = wanted.reason;
    return decision;
  }

  const std::string name_;
  const pliant_policy policy_;
  Training& training_;
};

Status check_before_first_step(const pliant_session* session, const char* function) {
  if (!session->training.adaptation) return {};
  return invalid(
      fmt::format("{}: the training has begun; call it before the first step", function));
}

// The gradients that a synchroniser averages, before or after the commit.
std::vector<GradientSpan> gradients_of(const Synchroniser& synchroniser, bool averaged) {
  std::vector<GradientSpan> parts;
  for (size_t i = 0; i < synchroniser.buckets(); ++i) {
    const Bucket& bucket = synchroniser.bucket(i);
    if (bucket.gradients == nullptr) continue;
    const void* const data = averaged ? synchroniser.gradients(i).data() : bucket.gradients;
    parts.push_back({bucket.name, data, bucket.count, bucket.dtype});
  }
  return parts;
}

bool averages_gradients(const Synchroniser* synchroniser) {
  return synchroniser != nullptr &&
         synchroniser->synchronisation() == Synchronisation::kSynchronous;
}

}  // namespace

Status before_begin(pliant_session* session) {
  Training& training = session->training;
  if (!training.monitor || training.adaptation) return {};
  auto made = Adaptation::make(*session->session, *training.monitor, std::move(training.policies));
  if (!made) return made.error();
  training.adaptation = std::move(*made);
  return {};
}

Status after_begin(pliant_session* session) {
  Training& training = session->training;
  if (!training.monitor) return {};
  training.gradients_given = false;
  training.monitor->begin(session->step);
  return training.adaptation->begin(session->step);
}

Status before_commit(pliant_session* session, const Synchroniser* synchroniser) {
  Training& training = session->training;
  if (!training.monitor) return {};
  Monitor& monitor = *training.monitor;
  if (synchroniser != nullptr) monitor.synchronisation(synchroniser->synchronisation());
  // Without a sampler only the caller knows how many samples there are.
  if (averages_gradients(synchroniser) && !training.gradients_given &&
      session->session->has_sampler())
    monitor.gradients(gradients_of(*synchroniser, false), monitor.samples(session->step),
                      GradientForm::kSum);
  return monitor.hand_in(session->step);
}

Status after_commit(pliant_session* session, const Synchroniser* synchroniser) {
  Training& training = session->training;
  if (!training.monitor || session->step.more()) return {};
  if (averages_gradients(synchroniser)) {
    training.monitor->committed(session->step, gradients_of(*synchroniser, true));
  } else {
    training.monitor->committed(session->step);
  }
  return training.adaptation->committed();
}

void after_last(pliant_session* session) {
  Training& training = session->training;
  if (!training.adaptation) return;
  const auto& sampler = session->sampler;
  const bool complete =
      training.adaptation->stopped() ||
      (sampler && sampler->epochs != 0 && session->session->data_epoch() >= sampler->epochs);
  if (complete) training.adaptation->finish();
}

}  // namespace pliant::capi

using namespace pliant;        // NOLINT: the functions below are C
using namespace pliant::capi;  // NOLINT

extern "C" {

pliant_status pliant_use_monitor(pliant_session* session, const pliant_monitor_options* options) {
  return guarded(__func__, session, {}, [&]() -> Status {
    if (session->training.monitor)
      return invalid("pliant_use_monitor: the session has a monitor already");
    MonitorOptions wanted;
    if (options != nullptr) {
      const auto known = copy_in(options, "pliant_use_monitor");
      if (!known) return known.error();
      if (known->noise_every != 0) wanted.noise_every = known->noise_every;
      if (known->noise_every == PLIANT_NEVER) wanted.noise_every = 0;
      if (known->noise_decay != 0) wanted.noise_decay = known->noise_decay;
      if (known->straggler_factor != 0) wanted.straggler.factor = known->straggler_factor;
      if (known->straggler_steps != 0) wanted.straggler.steps = known->straggler_steps;
    }
    auto made = Monitor::make(*session->session, wanted);
    if (!made) return made.error();
    session->training.monitor = std::move(*made);
    return {};
  });
}

pliant_status pliant_monitor_takes_norms(const pliant_session* session, int* takes) {
  return guarded(__func__, session, {{takes, "result"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_monitor_takes_norms"));
    *takes = session->training.monitor->takes_norms() ? 1 : 0;
    return {};
  });
}

pliant_status pliant_monitor_gradients(pliant_session* session, const pliant_gradient* gradients,
                                       size_t count, uint64_t samples, int are_means) {
  return guarded(__func__, session, {{gradients, "gradients"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_monitor_gradients"));
    std::vector<GradientSpan> parts;
    for (size_t i = 0; i < count; ++i) {
      const pliant_gradient& part = gradients[i];
      const DType dtype = dtype_of(part.dtype);
      if (part.name == nullptr || part.data == nullptr)
        return invalid(
            fmt::format("pliant_monitor_gradients: gradient {} has no name or no data", i));
      if (dtype != DType::kF16 && dtype != DType::kBF16 && dtype != DType::kF32 &&
          dtype != DType::kF64)
        return invalid(
            fmt::format("pliant_monitor_gradients: '{}' is not f16, bf16, f32 or f64", part.name));
      parts.push_back({part.name, part.data, part.count, dtype});
    }
    session->training.gradients_given = true;
    session->training.monitor->gradients(parts, samples,
                                         are_means != 0 ? GradientForm::kMean : GradientForm::kSum);
    return {};
  });
}

pliant_status pliant_monitor_loss(pliant_session* session, double mean, uint64_t samples) {
  return guarded(__func__, session, {}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_monitor_loss"));
    session->training.monitor->loss(mean, samples);
    return {};
  });
}

pliant_status pliant_monitor_nonfinite(pliant_session* session, int tensor) {
  return guarded(__func__, session, {}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_monitor_nonfinite"));
    session->training.monitor->nonfinite(tensor);
    return {};
  });
}

pliant_status pliant_last_signals(pliant_session* session, pliant_signals* signals) {
  return guarded(__func__, session, {{signals, "signals"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_last_signals"));
    Training& training = session->training;
    return copy_out(to_c(training.monitor->signals(), training), signals, "pliant_last_signals");
  });
}

pliant_status pliant_last_monitor_costs(const pliant_session* session,
                                        pliant_monitor_costs* costs) {
  return guarded(__func__, session, {{costs, "costs"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_last_monitor_costs"));
    const MonitorCosts& known = session->training.monitor->costs();
    const pliant_monitor_costs full = {sizeof full, known.steps, known.norms_seconds,
                                       known.signals_seconds, known.signal_bytes};
    return copy_out(full, costs, "pliant_last_monitor_costs");
  });
}

pliant_status pliant_add_policy(pliant_session* session, const char* text) {
  return guarded(__func__, session, {{text, "text"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_add_policy"));
    PLIANT_TRY(check_before_first_step(session, "pliant_add_policy"));
    auto made = make_policy(text);
    if (!made) return made.error();
    session->training.policies.push_back(std::move(*made));
    return {};
  });
}

pliant_status pliant_add_user_policy(pliant_session* session, const pliant_policy* policy) {
  return guarded(__func__, session, {{policy, "policy"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_add_user_policy"));
    PLIANT_TRY(check_before_first_step(session, "pliant_add_user_policy"));
    const auto known = copy_in(policy, "pliant_add_user_policy");
    if (!known) return known.error();
    if (known->name == nullptr || known->name[0] == 0 || known->decide == nullptr)
      return invalid("pliant_add_user_policy: a policy has a name and a function `decide`");
    if (known->state == nullptr && known->state_bytes != 0)
      return invalid("pliant_add_user_policy: the state is null, but has a size");
    session->training.policies.push_back(std::make_unique<CalledPolicy>(*known, session->training));
    return {};
  });
}

pliant_status pliant_last_decisions(const pliant_session* session, pliant_decisions* decisions) {
  return guarded(__func__, session, {{decisions, "decisions"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_last_decisions"));
    pliant_decisions full = {};
    full.size = sizeof full;
    full.learning_rate_factor = 1;
    if (const auto& adaptation = session->training.adaptation; adaptation) {
      full.decided = adaptation->decisions();
      full.global_batch = adaptation->global_batch().value_or(0);
      full.learning_rate_factor = adaptation->learning_rate_factor();
      full.stopped = adaptation->stopped() ? 1 : 0;
      full.measure_seconds = adaptation->measure_seconds();
    }
    return copy_out(full, decisions, "pliant_last_decisions");
  });
}

pliant_status pliant_take_synchronisation(pliant_session* session,
                                          pliant_synchronisation* synchronisation) {
  return guarded(__func__, session, {{synchronisation, "result"}}, [&]() -> Status {
    PLIANT_TRY(need_monitor(session, "pliant_take_synchronisation"));
    *synchronisation = PLIANT_AS_BEFORE;
    if (!session->training.adaptation) return {};
    if (const auto wanted = session->training.adaptation->take_synchronisation(); wanted)
      *synchronisation = static_cast<int>(*wanted);
    return {};
  });
}

}  // extern "C"
