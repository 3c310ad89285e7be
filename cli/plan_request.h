// What `pliant plan` is asked for, and the plan for it. Apart from reading files, pure; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan.h"

namespace pliant::cli {

struct PlanArguments {
  std::vector<std::string> files = {};  // the old layout and the new one
  std::string model = {};               // or a model, and
  std::string from = {};                // the sizes of its axes before
  std::string to = {};                  // and after
  std::string dtype = "bf16";
  uint32_t slots = 8;        // ranks on each host
  bool remap = false;        // choose which process becomes which rank
  bool relay = false;        // fetch once a host what several of its ranks lack
  std::string members = {};  // or give it
  std::string lost = {};
  double network_gbit = 100;
  double copy_gbyte = 10;
  std::string save = {};
  std::string diff = {};
  bool json = false;
};

// Both layouts, over the same tensors.
struct PlanLayouts {
  tensor::Layout from;
  tensor::Layout to;
};

// Reads "3", "3,7" and "0-3,8".
Result<std::vector<Rank>> parse_ranks(std::string_view text);
// Reads the old rank of each new one, "-" for a newcomer: "0,1,-,2".
Result<std::vector<Rank>> parse_members(std::string_view text);

// The whole file, if it is not larger than a layout or a plan can be.
Result<std::string> read_text(const std::string& path);

Result<PlanLayouts> load_layouts(const PlanArguments& arguments);
Result<tensor::PlanOptions> plan_options(const PlanArguments& arguments);

}  // namespace pliant::cli
