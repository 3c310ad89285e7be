// For tests: tensors whose bytes are known, to be written. Any thread.
#pragma once

#include <span>
#include <vector>

#include "pliant/store/checkpoint_writer.h"

namespace pliant::store {

inline WriteSource source_of(const std::vector<TensorInfo>& tensors) {
  WriteSource source;
  source.tensors = tensors;
  source.read = [tensors](size_t number, const Box& box, std::span<std::byte> to) {
    const TensorInfo& info = tensors[number];
    std::vector<std::byte> all(info.bytes());
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<std::byte>((i * 7 + number * 13) % 251);
    copy_common({tensor::whole(info.shape), tensor::strides_of(info.shape), all}, box, to,
                size_of(info.dtype));
    return Status();
  };
  return source;
}

}  // namespace pliant::store
