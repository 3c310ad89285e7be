// What the monitor costs a training step: a worker that computes for a while, sums up gradients,
// and does so with and without a monitor, in turns, so that both see the same machine. Rank 0
// prints one JSON object. Run by monitor_cost.py:
//   monitor_driver --parameters N --step-seconds X --noise-every N --rounds N
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/collective/squared_norm.h"
#include "pliant/training/monitor.h"

namespace {

constexpr uint64_t kStepsOfATurn = 20;

double option(int argc, char** argv, const std::string& name, double otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (name == argv[i]) return std::stod(argv[i + 1]);
  return otherwise;
}

[[noreturn]] void fail(const pliant::Error& error) {
  fmt::print(stderr, "monitor_driver: {}\n", pliant::to_string(error));
  std::exit(1);
}

void check(const pliant::Status& status) {
  if (!status) fail(status.error());
}

void compute(double seconds) {
  const pliant::Instant end = pliant::now() + pliant::from_seconds(seconds);
  while (pliant::now() < end) {
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Seconds of one step, with or without the monitor.
double run_step(pliant::Session& session, pliant::Monitor* monitor,
                std::span<const float> gradients, double step_seconds) {
  const pliant::Instant began = pliant::now();
  pliant::Step step = session.begin_step();
  if (!step) fail(session.status().error());
  if (monitor != nullptr) monitor->begin(step);
  compute(step_seconds);
  const pliant::GradientSpan part{"gradients", gradients.data(), gradients.size(),
                                  pliant::DType::kF32};
  if (monitor != nullptr) monitor->gradients({&part, 1}, 8, pliant::GradientForm::kMean);
  check(step.all_reduce("gradients", gradients.data(), gradients.size(), pliant::DType::kF32,
                        pliant::Op::kMean));
  if (monitor != nullptr) {
    monitor->loss(1, 8);
    check(monitor->hand_in(step));
  }
  check(step.commit());
  if (monitor != nullptr) monitor->committed(step);
  return pliant::seconds(pliant::now() - began);
}

}  // namespace

int main(int argc, char** argv) {
  const auto parameters = static_cast<size_t>(option(argc, argv, "--parameters", 1e6));
  const double step_seconds = option(argc, argv, "--step-seconds", 0.05);
  const auto noise_every = static_cast<uint64_t>(option(argc, argv, "--noise-every", 10));
  const auto rounds = static_cast<int>(option(argc, argv, "--rounds", 5));
  auto opened = pliant::Session::open();
  if (!opened) fail(opened.error());
  pliant::Session& session = **opened;
  auto monitor = pliant::Monitor::make(session, {.noise_every = noise_every});
  if (!monitor) fail(monitor.error());
  auto gradients = session.allocate_array<float>(parameters);
  if (!gradients) fail(gradients.error());
  std::fill(gradients->begin(), gradients->end(), 1.0f);
  std::vector<double> with, without;
  for (int round = 0; round < rounds; ++round)
    for (uint64_t i = 0; i < 2 * kStepsOfATurn; ++i) {
      const bool monitored = i >= kStepsOfATurn;
      const double took =
          run_step(session, monitored ? monitor->get() : nullptr, *gradients, step_seconds);
      if (i % kStepsOfATurn != 0) (monitored ? with : without).push_back(took);
    }
  const pliant::MonitorCosts& costs = (*monitor)->costs();
  if (session.rank() != 0) return 0;
  const double steps = static_cast<double>(costs.steps);
  fmt::print(
      "{{\"members\": {}, \"parameters\": {}, \"step_ms\": {:.3f}, \"monitored_ms\": {:.3f}, "
      "\"norms_us\": {:.2f}, \"signals_us\": {:.2f}, \"signal_bytes\": {}, \"norm_gbps\": "
      "{:.1f}}}\n",
      session.size(), parameters, median(without) * 1e3, median(with) * 1e3,
      costs.norms_seconds / steps * 1e6, costs.signals_seconds / steps * 1e6, costs.signal_bytes,
      costs.norms_seconds > 0 ? 2 * 4e-9 * static_cast<double>(parameters) *
                                    (steps / static_cast<double>(noise_every)) / costs.norms_seconds
                              : 0.0);
  return 0;
}
