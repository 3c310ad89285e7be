// What `pliant plan` prints. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "cli/plan_request.h"
#include "pliant/tensor/plan.h"
#include "pliant/tensor/plan_json.h"

namespace pliant::cli {

// What it took to make the plan, layouts included.
struct PlanCost {
  double plan_ms = 0;
  uint64_t memory_bytes = 0;  // the peak of the process
};

// Which axes have another size, are new or are gone: "tp 8 -> 16"; "nothing" if none.
std::string changed_axes(const tensor::Mesh& from, const tensor::Mesh& to);

// A table for people.
std::string plan_table(const PlanArguments& arguments, const PlanLayouts& layouts,
                       const tensor::Plan& plan, const PlanCost& cost);

// One object for programs; docs/TENSORS.md describes it.
std::string plan_summary_json(const PlanLayouts& layouts, const tensor::Plan& plan,
                              const PlanCost& cost);

std::string diff_text(const tensor::PlanDiff& diff, const std::string& saved);

}  // namespace pliant::cli
