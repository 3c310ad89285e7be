#include "pliant/policy/scaling_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace pliant {
namespace {

constexpr size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

// No measurement is better than this: what it leaves out, the model must not follow.
constexpr double kErrorMin = 0.01;
// Beyond so many steps old ones fade, so that a slow change of the job is followed.
constexpr double kStepsMax = 500;
// How far a curve may be from the model between two sizes that were measured, for a gap as wide as
// the size itself, even if the model was right at those; what it was wrong by counts twice on top.
constexpr double kGapError = 0.1;
constexpr double kMisfitFactor = 2;

Terms terms_of(double members, double batch) {
  return {batch / members, 2 * (members - 1) / members, 2 * (members - 1)};
}

// The normal equations of a least squares problem, relative to each measured time.
struct Normal {
  std::array<Terms, kTerms> matrix = {};
  Terms right = {};
  double constant = 0;

  void add(const Terms& terms, double seconds, double weight) {
    for (size_t i = 0; i < kTerms; ++i) {
      for (size_t j = 0; j < kTerms; ++j)
        matrix[i][j] += weight * (terms[i] / seconds) * (terms[j] / seconds);
      right[i] += weight * terms[i] / seconds;
    }
    constant += weight;
  }
  double error(const Terms& solution) const {
    double sum = constant;
    for (size_t i = 0; i < kTerms; ++i) {
      sum -= 2 * solution[i] * right[i];
      for (size_t j = 0; j < kTerms; ++j) sum += solution[i] * matrix[i][j] * solution[j];
    }
    return sum;
  }
  // With the terms of `mask` alone; nothing if they cannot be told apart.
  std::optional<Terms> solve(unsigned mask) const;
};

std::optional<Terms> Normal::solve(unsigned mask) const {
  std::array<Terms, kTerms> rows = matrix;
  Terms values = right;
  Terms solution = {};
  for (size_t i = 0; i < kTerms; ++i) {
    if ((mask >> i & 1) == 0) continue;
    // Symmetric and positive, so it needs no pivots, only a look at each.
    if (!(rows[i][i] > 1e-9 * matrix[i][i])) return std::nullopt;
    for (size_t k = i + 1; k < kTerms; ++k) {
      if ((mask >> k & 1) == 0) continue;
      const double factor = rows[k][i] / rows[i][i];
      for (size_t j = i; j < kTerms; ++j) rows[k][j] -= factor * rows[i][j];
      values[k] -= factor * values[i];
    }
  }
  for (size_t i = kTerms; i-- > 0;) {
    if ((mask >> i & 1) == 0) continue;
    double value = values[i];
    for (size_t j = i + 1; j < kTerms; ++j)
      if ((mask >> j & 1) != 0) value -= rows[i][j] * solution[j];
    solution[i] = value / rows[i][i];
  }
  return solution;
}

int terms_in(unsigned mask) { return static_cast<int>((mask & 1) + (mask >> 1 & 1) + (mask >> 2)); }

// Batches either stay as they are or grow with the members; two sizes tell which.
double batch_at(std::span<const SizeStatistics> sizes, int64_t members) {
  const SizeStatistics* nearest = &sizes.front();
  for (const SizeStatistics& size : sizes)
    if (std::abs(size.members - members) < std::abs(nearest->members - members)) nearest = &size;
  const SizeStatistics& least = sizes.front();
  const SizeStatistics& most = sizes.back();
  const bool is_constant = sizes.size() > 1 && most.batch < 1.2 * least.batch;
  if (is_constant) return nearest->batch;
  return nearest->batch * static_cast<double>(members) / static_cast<double>(nearest->members);
}

}  // namespace

void SizeStatistics::add(double step_seconds, double step_batch) {
  if (steps >= 5) step_seconds = std::min(step_seconds, 4 * seconds);
  if (steps >= kStepsMax) {
    squares *= (kStepsMax - 1) / steps;
    steps = kStepsMax - 1;
  }
  steps += 1;
  const double difference = step_seconds - seconds;
  seconds += difference / steps;
  squares += difference * (step_seconds - seconds);
  batch += (step_batch - batch) / steps;
}

double SizeStatistics::relative_error() const {
  if (steps < 2 || !(seconds > 0)) return 1;
  return std::sqrt(squares / (steps - 1) / steps) / seconds;
}

double StepTimeModel::step_seconds(double members, double batch) const {
  const Terms terms = terms_of(members, batch);
  return compute_seconds * terms[0] + transfer_seconds * terms[1] + latency_seconds * terms[2];
}

StepTimeModel fit_step_time(std::span<const SizeStatistics> sizes) {
  Normal normal;
  int known = 0;
  for (const SizeStatistics& size : sizes) {
    if (!(size.steps > 0) || !(size.seconds > 0)) continue;
    ++known;
    const double error = std::max(kErrorMin, size.relative_error());
    normal.add(terms_of(static_cast<double>(size.members), size.batch), size.seconds,
               1 / (error * error));
  }
  // Least squares without negative terms: the best of all sets of terms whose solution has none.
  // Fewer terms first, so that of equal fits the simpler, more hopeful one is taken.
  Terms best = {};
  double best_error = normal.constant;
  for (const unsigned mask : {1u, 2u, 4u, 3u, 5u, 6u, 7u}) {
    if (terms_in(mask) > known) continue;
    const std::optional<Terms> solution = normal.solve(mask);
    if (!solution || std::ranges::any_of(*solution, [](double term) { return term < 0; })) continue;
    const double error = normal.error(*solution);
    if (error < best_error * (1 - 1e-9)) {
      best_error = error;
      best = *solution;
    }
  }
  const double misfit =
      normal.constant > 0 ? std::sqrt(std::max(0.0, best_error) / normal.constant) : 0;
  return {best[0], best[1], best[2], misfit};
}

StepEstimate estimate_step(std::span<const SizeStatistics> sizes, const StepTimeModel& model,
                           int64_t members) {
  if (sizes.empty()) return {};
  const auto above = std::ranges::find_if(
      sizes, [members](const SizeStatistics& size) { return size.members >= members; });
  if (above != sizes.end() && above->members == members)
    return {above->seconds, above->batch, above->relative_error(), true};

  const double batch = batch_at(sizes, members);
  const auto seconds_at = [&model](const SizeStatistics& size) {
    return model.step_seconds(static_cast<double>(size.members), size.batch);
  };
  const auto wrong_by = [&](const SizeStatistics& size) {
    const double seconds = seconds_at(size);
    return seconds > 0 ? size.seconds / seconds : 1.0;
  };
  const double gap_error = kGapError + kMisfitFactor * model.misfit;
  double scale = 1;
  double error = 0;
  const auto n = static_cast<double>(members);
  if (above == sizes.begin() || above == sizes.end()) {
    const SizeStatistics& nearest = above == sizes.end() ? sizes.back() : sizes.front();
    const auto m = static_cast<double>(nearest.members);
    scale = wrong_by(nearest);
    error = nearest.relative_error() + gap_error * std::abs(n - m) / std::min(n, m);
  } else {
    const SizeStatistics& low = *std::prev(above);
    const SizeStatistics& high = *above;
    const auto from = static_cast<double>(low.members);
    const auto to = static_cast<double>(high.members);
    const double share = (n - from) / (to - from);
    scale = (1 - share) * wrong_by(low) + share * wrong_by(high);
    error = std::max(low.relative_error(), high.relative_error()) +
            gap_error * std::min(1.0, (to - from) / from) * 4 * share * (1 - share);
  }
  return {scale * model.step_seconds(n, batch), batch, error, false};
}

}  // namespace pliant
