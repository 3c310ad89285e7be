#include "pliant/store/stored_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pliant/base/check.h"
#include "pliant/tensor/strided.h"

namespace pliant::store {
namespace {

using tensor::kDimsMax;

// The dimension in which the pieces begin at the most different places: neighbours in it are the
// only pieces that can overlap, nearly always.
uint32_t busiest_dimension(const StoredTensor& tensor) {
  uint32_t best = 0;
  size_t most = 0;
  std::vector<uint64_t> begins(tensor.pieces.size());
  for (uint32_t d = 0; d < tensor.info.shape.size(); ++d) {
    for (size_t i = 0; i < begins.size(); ++i) begins[i] = tensor.pieces[i].box.begin[d];
    std::ranges::sort(begins);
    const auto distinct =
        static_cast<size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (distinct > most) {
      most = distinct;
      best = d;
    }
    begins.resize(tensor.pieces.size());
  }
  return best;
}

Status check_apart(const StoredTensor& tensor) {
  if (tensor.info.shape.empty())
    return tensor.pieces.size() == 1
               ? Status()
               : invalid(fmt::format("tensor '{}' has no dimensions but {} pieces",
                                     tensor.info.name, tensor.pieces.size()));
  const uint32_t dim = busiest_dimension(tensor);
  std::vector<const Box*> boxes;
  for (const StoredPiece& piece : tensor.pieces) {
    if (!tensor::is_empty(piece.box)) boxes.push_back(&piece.box);
  }
  std::ranges::sort(boxes, {}, [dim](const Box* box) { return box->begin[dim]; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j]->begin[dim] < boxes[i]->end[dim]; ++j) {
      if (tensor::overlap(*boxes[i], *boxes[j]))
        return invalid(fmt::format("tensor '{}' is there twice: its pieces {} and {} overlap",
                                   tensor.info.name, tensor::to_string(*boxes[i]),
                                   tensor::to_string(*boxes[j])));
    }
  }
  return {};
}

Error incomplete(const StoredTensor& tensor) {
  std::vector<Box> boxes;
  for (const StoredPiece& piece : tensor.pieces) boxes.push_back(piece.box);
  const auto missing = tensor::uncovered(tensor::whole(tensor.info.shape), boxes);
  const std::string where =
      missing.ok() && !missing->empty() ? ": " + tensor::to_string(missing->front()) : "";
  return invalid(
      fmt::format("tensor '{}' of shape {} is incomplete: no file has all of it{}; is a "
                  "file of the checkpoint missing?",
                  tensor.info.name, tensor::shape_text(tensor.info.shape), where));
}

}  // namespace

const char* to_string(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kSafetensors: return "safetensors";
    case CheckpointFormat::kShardedSafetensors: return "sharded safetensors";
    case CheckpointFormat::kDcpSafetensors: return "DCP-sharded safetensors";
    case CheckpointFormat::kTorchFile: return "torch.save file";
    case CheckpointFormat::kDcp: return "torch DCP";
    case CheckpointFormat::kDeepSpeedUniversal: return "DeepSpeed universal";
  }
  return "unknown";
}

std::optional<uint64_t> size_in_bytes(DType dtype, std::span<const uint64_t> shape) {
  if (shape.size() > kDimsMax) return std::nullopt;
  uint64_t bytes = size_of(dtype);
  bool empty = false;
  // A dimension of zero must not hide another that is too large for the strides.
  for (const uint64_t extent : shape) {
    if (extent > tensor::Collection::kBytesMax / bytes) return std::nullopt;
    bytes *= std::max<uint64_t>(extent, 1);
    empty = empty || extent == 0;
  }
  return empty ? 0 : bytes;
}

StoredPiece whole_piece(const TensorInfo& info, uint32_t file, uint64_t offset) {
  return {.box = tensor::whole(info.shape),
          .file = file,
          .offset = offset,
          .size_bytes = info.bytes(),
          .strides = tensor::strides_of(info.shape)};
}

Status check_cover(const StoredTensor& tensor) {
  const Box all = tensor::whole(tensor.info.shape);
  uint64_t covered = 0;
  for (const StoredPiece& piece : tensor.pieces) {
    if (piece.box.dims != all.dims || !tensor::contains(all, piece.box))
      return invalid(fmt::format("piece {} of tensor '{}' lies outside its shape {}",
                                 tensor::to_string(piece.box), tensor.info.name,
                                 tensor::shape_text(tensor.info.shape)));
    covered += tensor::volume(piece.box);
  }
  PLIANT_TRY(check_apart(tensor));
  if (covered != tensor::volume(all)) return incomplete(tensor);
  return {};
}

void copy_common(const PieceView& from, const Box& to_box, std::span<std::byte> to,
                 size_t element_bytes) {
  const Box common = tensor::intersect(from.box, to_box);
  if (tensor::is_empty(common)) return;
  const Coordinates to_strides = tensor::packed_strides(to_box);
  uint64_t from_first = 0;
  uint64_t from_last = 0;
  uint64_t to_first = 0;
  for (uint32_t d = 0; d < common.dims; ++d) {
    from_first += (common.begin[d] - from.box.begin[d]) * from.strides[d];
    from_last += (common.end[d] - 1 - from.box.begin[d]) * from.strides[d];
    to_first += (common.begin[d] - to_box.begin[d]) * to_strides[d];
  }
  PLIANT_CHECK((from_last + 1) * element_bytes <= from.elements.size(), "a piece has its elements");
  PLIANT_CHECK(to.size() >= tensor::volume(to_box) * element_bytes, "the destination has room");
  tensor::copy_box(common, element_bytes, {to.data() + to_first * element_bytes, to_strides},
                   {from.elements.data() + from_first * element_bytes, from.strides});
}

Status for_each_run(const Box& box, uint64_t elements_max,
                    const std::function<Status(const Box&, uint64_t)>& visit) {
  if (tensor::is_empty(box)) return {};
  const tensor::Slices slices(box, std::max<uint64_t>(elements_max, 1));
  uint64_t first = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Box slice = slices[i];
    PLIANT_TRY(visit(slice, first));
    first += tensor::volume(slice);
  }
  return {};
}

}  // namespace pliant::store
