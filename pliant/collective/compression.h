// Compressed all-reduce: kernels. Pure; any thread.
#pragma once

#include <cstdint>

namespace pliant {

enum class Compression : uint8_t { kNone, kBf16, kInt8 };
const char* to_string(Compression compression);  // "none", "bf16", "int8"

}  // namespace pliant
