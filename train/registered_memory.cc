#include "train/registered_memory.h"

#include "train/training_error.h"

namespace pliant::train {

namespace {

size_t bytes_in(const torch::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * static_cast<size_t>(tensor.element_size());
}

// Parts of one type leave no gap.
size_t aligned(size_t offset, const torch::Tensor& tensor) {
  const auto size = static_cast<size_t>(tensor.element_size());
  return (offset + size - 1) / size * size;
}

}  // namespace

std::string described(const NamedTensor& named) {
  std::string shape;
  for (const int64_t size : named.tensor.sizes())
    shape += (shape.empty() ? "" : "x") + std::to_string(size);
  return named.name + " (" + (shape.empty() ? "1" : shape) + ")";
}

DType dtype_of(torch::ScalarType type) {
  switch (type) {
    case torch::kUInt8: return DType::kU8;
    case torch::kInt8: return DType::kI8;
    case torch::kInt16: return DType::kI16;
    case torch::kInt32: return DType::kI32;
    case torch::kInt64: return DType::kI64;
    case torch::kBool: return DType::kBool;
    case torch::kFloat16: return DType::kF16;
    case torch::kBFloat16: return DType::kBF16;
    case torch::kFloat32: return DType::kF32;
    case torch::kFloat64: return DType::kF64;
    default:
      throw TrainingError(std::string("tensors of type ") + c10::toString(type) +
                          " cannot be kept equal between workers");
  }
}

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), bytes_in(tensor)};
}

RegisteredMemory::RegisteredMemory(Session& session, const std::vector<torch::Tensor>& shapes)
    : session_(session) {
  size_t end = 0;
  for (const torch::Tensor& shape : shapes) end = aligned(end, shape) + bytes_in(shape);
  bytes_ = take(session.allocate(end == 0 ? 1 : end));
  size_t at = 0;
  for (const torch::Tensor& shape : shapes) {
    at = aligned(at, shape);
    parts_.push_back(torch::from_blob(bytes_.data() + at, shape.sizes(),
                                      torch::TensorOptions().dtype(shape.scalar_type())));
    at += bytes_in(shape);
  }
}

RegisteredMemory::~RegisteredMemory() {
  parts_.clear();
  session_.release(bytes_);
}

torch::Tensor RegisteredMemory::flat() const {
  const torch::Tensor& first = parts_.at(0);
  const auto count = bytes_.size() / static_cast<size_t>(first.element_size());
  return torch::from_blob(bytes_.data(), {static_cast<int64_t>(count)},
                          torch::TensorOptions().dtype(first.scalar_type()));
}

}  // namespace pliant::train
