#include "pliant/data/sample_seed.h"

#include <span>

#include "pliant/base/bytes.h"

namespace pliant {

uint64_t sample_seed(uint64_t seed, uint64_t epoch, uint64_t sample) {
  // The keys of a permutation are hashes of three numbers too, and must not be the same.
  constexpr uint64_t kPurpose = 0x73616d706c65;  // "sample"
  const uint64_t words[] = {seed, epoch, sample};
  return hash64(std::as_bytes(std::span(words)), kPurpose);
}

}  // namespace pliant
