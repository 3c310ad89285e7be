// What every format comes down to: tensors whose pieces lie somewhere in files, and values that are
// no tensors. Values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/store/file_set.h"
#include "pliant/tensor/box.h"
#include "pliant/tensor/collection.h"

namespace pliant::store {

using tensor::Box;
using tensor::Coordinates;
using tensor::TensorInfo;

enum class PieceEncoding : uint8_t {
  kElements,   // the elements themselves, `strides` apart
  kTorchSave,  // a file of torch.save that holds one tensor: the piece
};

struct StoredPiece {
  Box box;              // of the tensor
  uint32_t file = 0;    // of the FileSet
  uint64_t offset = 0;  // kElements: of the piece's first element
  uint64_t size_bytes = 0;
  Coordinates strides = {};  // kElements: in elements
  PieceEncoding encoding = PieceEncoding::kElements;
};

struct StoredTensor {
  TensorInfo info;
  std::vector<StoredPiece> pieces = {};  // disjoint; together they are the tensor
};

// Something that is no tensor: a learning rate, a version, a list of names.
struct StoredValue {
  std::string name;
  std::string json;
};

enum class CheckpointFormat : uint8_t {
  kSafetensors,         // one file
  kShardedSafetensors,  // files of whole tensors, and an index
  kDcpSafetensors,      // files of pieces that say where they belong, as torch's DCP writes them
  kTorchFile,           // torch.save
  kDcp,                 // torch.distributed.checkpoint
  kDeepSpeedUniversal,
};
const char* to_string(CheckpointFormat format);

struct CheckpointContents {
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  FileSet files = {};
  std::vector<StoredTensor> tensors = {};
  std::vector<StoredValue> values = {};
};

// The bytes of a tensor; nothing if that is beyond what can be addressed, or if there are too many
// dimensions.
std::optional<uint64_t> size_in_bytes(DType dtype, std::span<const uint64_t> shape);

// One piece that is all of the tensor, in row-major order.
StoredPiece whole_piece(const TensorInfo& info, uint32_t file, uint64_t offset);

// Refuses pieces that overlap, lie outside, or leave something out; the message names one.
Status check_cover(const StoredTensor& tensor);

// Copies what the boxes of a piece and of the destination have in common. The destination is
// row-major; `from` is the piece's first element.
struct PieceView {
  Box box;
  Coordinates strides = {};  // in elements
  Bytes elements;            // from the first to behind the last
};
void copy_common(const PieceView& from, const Box& to_box, std::span<std::byte> to,
                 size_t element_bytes);

// Cuts a box into boxes of at most so many elements, each of which is one run of the box in
// row-major order, and calls `visit` with each and with the place of its first element in the box.
Status for_each_run(const Box& box, uint64_t elements_max,
                    const std::function<Status(const Box&, uint64_t)>& visit);

}  // namespace pliant::store
