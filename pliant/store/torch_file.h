// Files of torch.save, read without torch and without executing anything: a zip archive with a
// pickle of the structure and one entry for each storage. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/store/pickle.h"
#include "pliant/store/stored_tensor.h"
#include "pliant/store/zip.h"

namespace pliant::store {

// A tensor of the file: a view of a storage, with strides.
struct TorchTensor {
  TensorInfo info;      // the name is the path through dicts and lists: "optimizer.state.0.step"
  uint64_t offset = 0;  // of its first element, from the start of the file
  uint64_t size_bytes = 0;   // from its first element to behind its last
  Coordinates strides = {};  // in elements
};

struct TorchContents {
  std::vector<TorchTensor> tensors = {};
  std::vector<StoredValue> values = {};
};

// `file` outlives nothing of what is returned. A file that is one tensor, not a dict, gives a
// tensor with an empty name.
Result<TorchContents> decode_torch_file(Bytes file);

// Adds what a torch file holds to a checkpoint: under a name, if there is one, as "NAME.PATH". The
// file begins at `offset` of the checkpoint's file.
void append(TorchContents found, const std::string& name, uint32_t file, uint64_t offset,
            CheckpointContents& contents);

// Compares every entry of the archive with its checksum.
Status check_torch_file(Bytes file);

// "float32" and "FloatStorage": torch's words for our types.
std::optional<DType> torch_dtype(std::string_view name);
std::optional<DType> torch_storage_dtype(std::string_view name);

// The sizes in a tuple, list or torch.Size; nothing if it is none of them, or if they cannot be.
std::optional<std::vector<uint64_t>> pickled_sizes(const PickleValue& value);
// "bool" of "torch.bool"
std::string last_part(std::string_view dotted);

// True if it begins like a zip archive, or like a file of torch.save before version 1.6.
bool looks_like_zip(Bytes file);
bool looks_like_old_torch_file(Bytes file);

}  // namespace pliant::store
