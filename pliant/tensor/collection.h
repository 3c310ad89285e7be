// A Collection: the tensors of a training state, by name, in an order. Scalars (the step, the
// learning rate, the seed of random numbers) are tensors without dimensions.
//
// Immutable once made; values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pliant/base/dtype.h"
#include "pliant/base/result.h"
#include "pliant/tensor/box.h"

namespace pliant::tensor {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape = {};  // row-major; empty for a scalar

  bool operator==(const TensorInfo&) const = default;
  uint64_t elements() const { return volume(whole(shape)); }
  uint64_t bytes() const { return elements() * size_of(dtype); }
};

// "f32 [4, 16]"
std::string to_string(const TensorInfo& tensor);

class Collection {
 public:
  static constexpr size_t kTensorsMax = size_t{1} << 20;
  static constexpr size_t kNameMax = 512;
  static constexpr uint64_t kBytesMax = uint64_t{1} << 60;  // of all tensors together

  Collection() = default;
  // Fails if a name is empty, too long, not printable or there twice, or if a size is beyond its
  // limit; the message names the tensor.
  static Result<Collection> make(std::vector<TensorInfo> tensors);

  size_t size() const { return tensors_.size(); }
  const TensorInfo& operator[](size_t index) const { return tensors_[index]; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::optional<size_t> find(std::string_view name) const;
  uint64_t bytes() const { return bytes_; }

  bool operator==(const Collection& other) const { return tensors_ == other.tensors_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t, Hash, std::equal_to<>> places_;
  uint64_t bytes_ = 0;
};

}  // namespace pliant::tensor
