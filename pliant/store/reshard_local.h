// What one rank of a layout has in its memory, as arrays: for programs that load the file of their
// rank and know nothing of layouts. Immutable once made; any thread, if the function that reads
// allows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/store/stored_tensor.h"
#include "pliant/tensor/layout.h"

namespace pliant::store {

// "rank-00003.safetensors"
std::string local_file_name(Rank rank);

class LocalArrays final {
 public:
  // Reads a box of a tensor of the layout's collection, row-major.
  using ReadBox = std::function<Status(size_t tensor, const Box& box, std::span<std::byte> to)>;

  // Fails if padding is to hold what its type cannot.
  static Result<LocalArrays> make(const tensor::Layout& layout, Rank rank);

  // Called like the tensor or the flat group; several pieces that were stated one by one like the
  // tensor and their boxes.
  const std::vector<TensorInfo>& arrays() const { return arrays_; }
  uint64_t bytes() const { return holding_.bytes(); }
  // Elements of an array from `first` on, as many as there is room for.
  Status read(size_t array, uint64_t first, std::span<std::byte> to, const ReadBox& read) const;

 private:
  tensor::Holding holding_;
  std::vector<TensorInfo> arrays_;
  std::vector<std::vector<std::byte>> fills_;  // one element of padding, by array
  std::vector<std::vector<size_t>> pieces_;    // in holding_, by array
};

}  // namespace pliant::store
