#include "pliant/collective/compression.h"

namespace pliant {

const char* to_string(Compression compression) {
  switch (compression) {
    case Compression::kNone: return "none";
    case Compression::kBf16: return "bf16";
    case Compression::kInt8: return "int8";
  }
  return "unknown";
}

}  // namespace pliant
