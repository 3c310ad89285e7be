#include "pliant/tensor/collection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pliant::tensor {
namespace {

bool is_printable(std::string_view text) {
  return std::ranges::none_of(text, [](char c) {
    const auto code = static_cast<unsigned char>(c);
    return code < 0x20 || code == 0x7f;
  });
}

Status check_name(const std::string& name, size_t index) {
  if (name.empty()) return invalid(fmt::format("tensor {} has no name; give it one", index));
  if (name.size() > Collection::kNameMax)
    return invalid(fmt::format("the name of tensor {} has {} bytes; the limit is {}", index,
                               name.size(), Collection::kNameMax));
  if (!is_printable(name))
    return invalid(fmt::format("the name of tensor {} holds control characters", index));
  return {};
}

// The bytes of a tensor, if they and its dimensions are within their limits.
Result<uint64_t> checked_bytes(const TensorInfo& tensor) {
  if (tensor.shape.size() > kDimsMax)
    return invalid(fmt::format("tensor '{}' has {} dimensions; the limit is {}", tensor.name,
                               tensor.shape.size(), kDimsMax));
  uint64_t bytes = size_of(tensor.dtype);
  // A dimension of zero must not hide another that is too large for the strides.
  for (const uint64_t extent : tensor.shape) {
    if (extent > Collection::kBytesMax / bytes)
      return invalid(fmt::format("tensor '{}' of shape {} is larger than 2^60 bytes", tensor.name,
                                 shape_text(tensor.shape)));
    bytes *= std::max<uint64_t>(extent, 1);
  }
  return tensor.elements() == 0 ? 0 : bytes;
}

}  // namespace

std::string to_string(const TensorInfo& tensor) {
  return fmt::format("{} {}", to_string(tensor.dtype), shape_text(tensor.shape));
}

Result<Collection> Collection::make(std::vector<TensorInfo> tensors) {
  if (tensors.size() > kTensorsMax)
    return invalid(fmt::format("{} tensors; the limit is {}", tensors.size(), kTensorsMax));
  Collection made;
  made.places_.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    PLIANT_TRY(check_name(tensor.name, i));
    const auto bytes = checked_bytes(tensor);
    if (!bytes) return bytes.error();
    made.bytes_ += *bytes;
    if (made.bytes_ > kBytesMax)
      return invalid(
          fmt::format("the tensors up to '{}' are larger than 2^60 bytes together", tensor.name));
    const auto [place, is_new] = made.places_.emplace(tensor.name, i);
    if (!is_new)
      return invalid(fmt::format("tensor '{}' is there twice, as number {} and number {}",
                                 tensor.name, place->second, i));
  }
  made.tensors_ = std::move(tensors);
  return made;
}

std::optional<size_t> Collection::find(std::string_view name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) return std::nullopt;
  return place->second;
}

}  // namespace pliant::tensor
