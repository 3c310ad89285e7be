#include "pliant/collective/op.h"

#include <array>
#include <string>

#include "pliant/base/check.h"

namespace pliant {
namespace {

constexpr std::array<const char*, kOps> kOpNames = {"sum", "mean", "min", "max", "prod"};
static_assert(static_cast<int>(Op::kProd) + 1 == kOps);

}  // namespace

bool is_reducible(DType dtype) {
  return dtype != DType::kBool && dtype != DType::kF8E4M3 && dtype != DType::kF8E5M2;
}

DType accumulator_of(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 ? DType::kF32 : dtype;
}

const char* to_string(Op op) {
  const auto index = static_cast<size_t>(op);
  PLIANT_CHECK(index < kOpNames.size(), "not a reduction operator");
  return kOpNames[index];
}

Result<Op> parse_op(std::string_view text) {
  std::string known;
  for (size_t i = 0; i < kOpNames.size(); ++i) {
    if (text == kOpNames[i]) return static_cast<Op>(i);
    known.append(known.empty() ? "" : ", ").append(kOpNames[i]);
  }
  return invalid("unknown reduction operator '" + std::string(text) + "'; use one of " + known);
}

}  // namespace pliant
