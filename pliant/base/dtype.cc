#include "pliant/base/dtype.h"

#include <array>
#include <string>

#include "pliant/base/check.h"

namespace pliant {
namespace {

struct DTypeFacts {
  const char* name;
  size_t bytes;
};

// Indexed by the enumerator's number.
constexpr std::array<DTypeFacts, kDTypes> kDTypeFacts = {{
    {"i8", 1},
    {"i16", 2},
    {"i32", 4},
    {"i64", 8},
    {"u8", 1},
    {"u16", 2},
    {"u32", 4},
    {"u64", 8},
    {"bool", 1},
    {"f16", 2},
    {"bf16", 2},
    {"f32", 4},
    {"f64", 8},
    {"f8_e4m3", 1},
    {"f8_e5m2", 1},
}};
static_assert(static_cast<int>(DType::kF8E5M2) + 1 == kDTypes);

const DTypeFacts& facts(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  PLIANT_CHECK(index < kDTypeFacts.size(), "not an element type");
  return kDTypeFacts[index];
}

}  // namespace

size_t size_of(DType dtype) { return facts(dtype).bytes; }

const char* to_string(DType dtype) { return facts(dtype).name; }

Result<DType> parse_dtype(std::string_view text) {
  std::string known;
  for (size_t i = 0; i < kDTypeFacts.size(); ++i) {
    if (text == kDTypeFacts[i].name) return static_cast<DType>(i);
    known.append(known.empty() ? "" : ", ").append(kDTypeFacts[i].name);
  }
  return invalid("unknown element type '" + std::string(text) + "'; use one of " + known);
}

}  // namespace pliant
