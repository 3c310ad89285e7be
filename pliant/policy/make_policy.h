// Policies by name: "best_size:min=1,max=8,price=0.1" makes one. For command lines, environment
// variables and other languages; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "pliant/base/result.h"
#include "pliant/policy/policy.h"

namespace pliant {

// NAME or NAME:OPTION=VALUE,...; size_schedule:SIZE@STEP,.... An error says what is wrong with the
// text and what there is instead.
Result<std::unique_ptr<Policy>> make_policy(std::string_view text);

// All policies with their options and defaults, a line each, for help texts.
std::string describe_policies();

}  // namespace pliant
