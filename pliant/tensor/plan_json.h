// Plans as text: saved, loaded again, and compared. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/tensor/plan.h"

namespace pliant::tensor {

inline constexpr const char* kPlanFormat = "pliant.plan/1";

// Everything that is in a plan, one line for each table.
std::string to_json(const Plan& plan);

// Fails on whatever is no plan: an unknown field, a move of a tensor, a box or a rank that is not
// there, a box beyond its tensor.
Result<Plan> parse_plan(std::string_view text);

// What one plan does and another does not, in the sense of moves: a tensor by its name, a box, and
// two ranks. Boxes are cut only where they must be, so equal moves have equal boxes.
struct PlanDiff {
  struct Side {
    uint64_t moves = 0;
    uint64_t bytes = 0;                   // those in place included
    std::vector<std::string> lines = {};  // the first of them, for people
  };
  Side only_first = {};
  Side only_second = {};

  bool is_empty() const { return only_first.moves == 0 && only_second.moves == 0; }
};

inline constexpr size_t kDiffLinesMax = 20;  // of each side

PlanDiff diff(const Plan& first, const Plan& second);

}  // namespace pliant::tensor
