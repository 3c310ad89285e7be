#include "pliant/collective/dtype.h"

#include <array>
#include <string>

#include "pliant/base/check.h"

namespace pliant {
namespace {

struct DTypeFacts {
  const char* name;
  size_t bytes;
  DType accumulator;
};

// Indexed by the enumerator's number.
constexpr std::array<DTypeFacts, kDTypes> kDTypeFacts = {{
    {"i8", 1, DType::kI8},
    {"i16", 2, DType::kI16},
    {"i32", 4, DType::kI32},
    {"i64", 8, DType::kI64},
    {"u8", 1, DType::kU8},
    {"u16", 2, DType::kU16},
    {"u32", 4, DType::kU32},
    {"u64", 8, DType::kU64},
    {"bool", 1, DType::kBool},
    {"f16", 2, DType::kF32},
    {"bf16", 2, DType::kF32},
    {"f32", 4, DType::kF32},
    {"f64", 8, DType::kF64},
}};
static_assert(static_cast<int>(DType::kF64) + 1 == kDTypes);

constexpr std::array<const char*, kOps> kOpNames = {"sum", "mean", "min", "max", "prod"};
static_assert(static_cast<int>(Op::kProd) + 1 == kOps);

const DTypeFacts& facts(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  PLIANT_CHECK(index < kDTypeFacts.size(), "not an element type");
  return kDTypeFacts[index];
}

}  // namespace

size_t size_of(DType dtype) { return facts(dtype).bytes; }

DType accumulator_of(DType dtype) { return facts(dtype).accumulator; }

const char* to_string(DType dtype) { return facts(dtype).name; }

const char* to_string(Op op) {
  const auto index = static_cast<size_t>(op);
  PLIANT_CHECK(index < kOpNames.size(), "not a reduction operator");
  return kOpNames[index];
}

Result<DType> parse_dtype(std::string_view text) {
  std::string known;
  for (size_t i = 0; i < kDTypeFacts.size(); ++i) {
    if (text == kDTypeFacts[i].name) return static_cast<DType>(i);
    known.append(known.empty() ? "" : ", ").append(kDTypeFacts[i].name);
  }
  return invalid("unknown element type '" + std::string(text) + "'; use one of " + known);
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
