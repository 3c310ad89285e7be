// A Dataset: samples by number, each as bytes of one size. Implemented by whoever has samples; read
// by several threads at once, so read() changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pliant/base/result.h"

namespace pliant {

// Which sample, and what it may draw numbers from.
struct Sample {
  uint64_t index = 0;
  uint64_t epoch = 0;  // of the data
  uint64_t seed = 0;   // sample_seed(): the same whoever reads the sample

  bool operator==(const Sample&) const = default;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual uint64_t size() const = 0;
  // Of each sample.
  virtual size_t sample_bytes() const = 0;
  // Writes the sample to `to`, which has sample_bytes() bytes; sample.index < size().
  virtual Status read(const Sample& sample, std::span<std::byte> to) const = 0;
};

}  // namespace pliant
