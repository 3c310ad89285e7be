// Prints what policies for the size of a job lose against the best fixed size, curve by curve.
//
//   <build>/bench/policy/regret [seeds]
//
// The jobs are simulated (pliant/policy/test_job.h): an hour each, steps with 5, 10 and 20 % of
// noise, 2 s for a change of size, 10 s until a new member has started.
#include <fmt/format.h>

#include <cstdlib>

#include "pliant/policy/test_curves.h"

namespace {

using pliant::Regret;
using pliant::ScalingCurve;

struct Row {
  Regret ours;
  Regret theirs;
};

void print(const std::string& name, const std::string& best, const Row& row) {
  fmt::print("| {} | {} | {:.1f} % | {:.1f} % | {:.0f} | {:.1f} % | {:.1f} % |\n", name, best,
             100 * row.ours.last, 100 * row.ours.whole, row.ours.changes, 100 * row.theirs.last,
             100 * row.theirs.whole);
}

enum class Rows { kEach, kMeanAlone };

void print_table(const char* title, const std::vector<ScalingCurve>& curves, int seeds,
                 Rows rows = Rows::kEach) {
  fmt::print(
      "| {} | best size | best_size: last tenth | whole run | changes | KungFu's rule: last tenth "
      "| whole run |\n|---|---|---|---|---|---|---|\n",
      title);
  Row mean;
  const auto add = [&curves](Regret& sum, const Regret& regret) {
    const auto count = static_cast<double>(curves.size());
    sum.last += regret.last / count;
    sum.whole += regret.whole / count;
    sum.changes += regret.changes / count;
  };
  for (const ScalingCurve& curve : curves) {
    const std::vector<double> noises = pliant::evaluation_noises();
    const Row row{pliant::mean_regret(curve, pliant::best_size_for, noises, seeds),
                  pliant::mean_regret(curve, pliant::add_while_faster_for, noises, seeds)};
    const int best = pliant::best_fixed_size(curve, pliant::kLastPart, 1);
    if (rows == Rows::kEach)
      print(curve.name, fmt::format("{} of {}", best, curve.members_max), row);
    add(mean.ours, row.ours);
    add(mean.theirs, row.theirs);
  }
  print("**mean**", "", mean);
  fmt::print("\n");
}

}  // namespace

int main(int count, char** arguments) {
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 20;
  if (seeds < 1) {
    fmt::print(stderr, "regret [seeds]: at least one seed\n");
    return 2;
  }
  print_table("synthetic curve", pliant::synthetic_curves(), seeds);
  print_table("recorded curve", pliant::recorded_curves(), seeds);
  print_table("100 drawn curves", pliant::drawn_curves(100), 1, Rows::kMeanAlone);
  return 0;
}
