// Tensors in memory of a session, which the peers of its host can reach: reductions of them make no
// copy, and state in it is sent the fastest. Owned by whoever has the tensors moved there; called
// by the thread that trains.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/dtype.h"
#include "pliant/runtime/session.h"

namespace pliant::train {

struct NamedTensor {
  std::string name;  // in the model
  torch::Tensor tensor;
};

// "out.weight (256x64)"
std::string described(const NamedTensor& named);

// Throws TrainingError for types that Pliant does not know.
DType dtype_of(torch::ScalarType type);

// The bytes of a contiguous tensor.
std::span<std::byte> bytes_of(const torch::Tensor& tensor);

// Room for tensors, one behind the other; zeroed. Given back at its end, when nothing may see it
// any more.
class RegisteredMemory final {
 public:
  // Shaped as these.
  RegisteredMemory(Session& session, const std::vector<torch::Tensor>& shapes);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  const std::vector<torch::Tensor>& parts() const { return parts_; }
  // All parts as one, if they are of one type.
  torch::Tensor flat() const;

 private:
  Session& session_;
  std::span<std::byte> bytes_;
  std::vector<torch::Tensor> parts_;
};

}  // namespace pliant::train
