// The scaling curves on which policies for the size of a job are judged: shapes that jobs have, and
// some that were measured. Values; any thread. Tests and bench/policy share them; never shipped.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pliant/policy/add_while_faster.h"
#include "pliant/policy/best_size.h"
#include "pliant/policy/test_job.h"

namespace pliant {

// Throughput by size, from a table for 1, 2, ... members; the batch is the same for all, and such
// that one member takes half a second for it.
inline ScalingCurve table_curve(std::string name, std::vector<double> samples_per_second) {
  const int members_max = static_cast<int>(samples_per_second.size());
  const double batch = std::floor(samples_per_second[0] / 2);
  return {.name = std::move(name),
          .members_max = members_max,
          .batch = [batch](int) { return batch; },
          .step_seconds = [batch, table = std::move(samples_per_second)](
                              int members,
                              double) { return batch / table[static_cast<size_t>(members - 1)]; }};
}

// Throughput by a formula, in units of one member.
template <typename Speedup>
ScalingCurve formula_curve(std::string name, int members_max, Speedup speedup) {
  return {.name = std::move(name),
          .members_max = members_max,
          .batch = [](int) { return 256.0; },
          .step_seconds =
              [speedup](int members, double progress) {
                return 1.0 / speedup(static_cast<double>(members), progress);
              }};
}

// A ring, as the model has it: compute seconds of one member, transfer, latency of a hop.
inline ScalingCurve ring_curve(std::string name, double compute, double transfer, double latency) {
  return formula_curve(std::move(name), 32, [=](double n, double) {
    return 1 / (compute / n + transfer * 2 * (n - 1) / n + latency * 2 * (n - 1));
  });
}

inline std::vector<ScalingCurve> synthetic_curves() {
  std::vector<ScalingCurve> curves;
  curves.push_back(formula_curve("linear", 32, [](double n, double) { return n; }));
  curves.push_back(formula_curve("saturating", 32, [](double n, double) {
    return 1 / (0.95 / n + 0.05);  // Amdahl
  }));
  curves.push_back(ring_curve("ring", 1.0, 0.02, 0.002));
  curves.push_back(ring_curve("communication-bound", 0.5, 0.5, 0.05));
  curves.push_back(formula_curve(
      "peaked", 32, [](double n, double) { return n <= 6 ? n : 6 * std::pow(6 / n, 0.7); }));
  curves.push_back(formula_curve("plateau", 32, [](double n, double) { return std::min(n, 8.0); }));
  curves.push_back(formula_curve("cliff, best before it", 32, [](double n, double) {
    return n <= 8 ? 0.95 * n : 0.2 * n;  // the ninth member is on another host, behind a slow link
  }));
  curves.push_back(formula_curve("cliff, best beyond it", 32,
                                 [](double n, double) { return n <= 8 ? 0.95 * n : 0.55 * n; }));
  curves.push_back(formula_curve("two peaks", 32, [](double n, double) {
    const double low = 4 - std::abs(n - 4) * 0.6;
    const double high = 7 - std::abs(n - 20) * 0.3;
    return std::max({low, high, 1.0});
  }));
  curves.push_back(formula_curve("odd sizes slower", 32, [](double n, double) {
    const double smooth = 1 / (0.9 / n + 0.02 + 0.003 * n);
    return std::fmod(n, 2) == 1 && n > 1 ? 0.85 * smooth : smooth;
  }));
  curves.push_back(formula_curve("drifting, network slower", 32, [](double n, double progress) {
    const double latency = progress < 0.4 ? 0.0008 : 0.01;
    return 1 / (1 / n + latency * 2 * (n - 1));
  }));
  curves.push_back(formula_curve("drifting, network faster", 32, [](double n, double progress) {
    const double latency = progress < 0.4 ? 0.02 : 0.0008;
    return 1 / (1 / n + latency * 2 * (n - 1));
  }));
  curves.push_back(formula_curve("drifting slowly", 32, [](double n, double progress) {
    return 1 / (1 / n + (0.001 + 0.007 * progress) * 2 * (n - 1));
  }));

  // Beyond plain throughput.
  curves.push_back(ring_curve("ring, price 0.3", 1.0, 0.02, 0.002));
  curves.back().price = 0.3;
  ScalingCurve noisy_gradients = {
      .name = "batch grows, noise scale 400, price 0.2",
      .batch = [](int members) { return 32.0 * members; },
      .step_seconds = [](int members, double) { return 0.5 + 0.005 * members; },
      .price = 0.2,
      .noise_scale = 400};
  curves.push_back(noisy_gradients);
  curves.push_back(
      formula_curve("linear, revocations, price 0.3", 32, [](double n, double) { return n; }));
  curves.back().price = 0.3;
  curves.back().revocations_per_hour = 20;
  curves.back().repair_seconds = 8;
  return curves;
}

// Curves that nobody chose: rings with terms drawn over three orders of magnitude, times a bump
// somewhere, times a loss beyond the boundary of a host.
inline std::vector<ScalingCurve> drawn_curves(int count) {
  std::vector<ScalingCurve> curves;
  Draws draws(20);
  for (int i = 0; i < count; ++i) {
    const double transfer = std::pow(10, -3 + 2.5 * draws.uniform());
    const double latency = std::pow(10, -4 + 2.5 * draws.uniform());
    const double bump = 1 + 0.5 * (draws.uniform() - 0.5);
    const double bump_at = 2 + 20 * draws.uniform();
    const double boundary = std::floor(2 + 14 * draws.uniform());
    const double beyond = draws.uniform() < 0.5 ? 1.0 : 0.5 + 0.5 * draws.uniform();
    curves.push_back(formula_curve("drawn " + std::to_string(i + 1), 32, [=](double n, double) {
      const double ring = 1 / (1 / n + transfer * 2 * (n - 1) / n + latency * 2 * (n - 1));
      const double distance = (n - bump_at) / (0.3 * bump_at);
      return ring * (1 + (bump - 1) * std::exp(-distance * distance)) *
             (n > boundary ? beyond : 1.0);
    }));
  }
  return curves;
}

// Pictures per second of examples/digits with 1 to 8 workers on two cores, beside other work:
//   pliant run -n N [--transport tcp] -- digits --epochs 4 --batch B
// medians of 7 runs each, the sizes in turn (over TCP the best of 5). And a job that computes 60 ms
// for 256 samples, divided by its workers, and then makes an all-reduce that was measured there:
//   pliant bench all_reduce --np 2,3,4,5,6,7,8 --sizes 4M --transport tcp --strategy ring
inline std::vector<ScalingCurve> recorded_curves() {
  return {
      table_curve("digits, batch 64", {58469, 51543, 54364, 51927, 50569, 48372, 47251, 45823}),
      table_curve("digits, batch 1024", {59077, 62186, 63290, 67073, 66305, 64759, 64009, 66535}),
      table_curve("digits, batch 64, TCP",
                  {58372, 49446, 38304, 35295, 34173, 32255, 29407, 26622}),
      table_curve("60 ms and a ring of 4 MiB, TCP",
                  {4267, 7276, 9233, 10493, 10483, 11760, 7933, 5368})};
}

// Relative standard deviations of the time of a step.
inline std::vector<double> evaluation_noises() { return {0.05, 0.1, 0.2}; }

// The policies under comparison. Each is told what its user would know: the limit and the price.
inline std::unique_ptr<Policy> best_size_for(const ScalingCurve& curve) {
  return std::make_unique<BestSize>(
      BestSizeOptions{.members_max = curve.members_max,
                      .price = curve.price,
                      .repair_seconds = curve.revocations_per_hour > 0 ? curve.repair_seconds : 0});
}
inline std::unique_ptr<Policy> add_while_faster_for(const ScalingCurve& curve) {
  return std::make_unique<AddWhileFaster>(AddWhileFasterOptions{.members_max = curve.members_max});
}

}  // namespace pliant
