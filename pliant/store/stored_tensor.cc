#include "pliant/store/stored_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace pliant::store {
namespace {

using tensor::kDimsMax;

// A nest of loops over elements: counts, and distances in bytes.
struct Loops {
  uint32_t dims = 0;
  Coordinates count = {};
  Coordinates from = {};
  Coordinates to = {};
};

// Outermost first; loops that make one longer one are joined.
void add_loop(Loops& loops, uint64_t count, uint64_t from, uint64_t to) {
  if (count == 1) return;
  if (loops.dims > 0) {
    const uint32_t last = loops.dims - 1;
    if (loops.from[last] == from * count && loops.to[last] == to * count) {
      loops.count[last] *= count;
      loops.from[last] = from;
      loops.to[last] = to;
      return;
    }
  }
  loops.count[loops.dims] = count;
  loops.from[loops.dims] = from;
  loops.to[loops.dims] = to;
  ++loops.dims;
}

template <typename T>
void copy_row(const std::byte* from, uint64_t from_step, std::byte* to, uint64_t to_step,
              uint64_t count) {
  for (uint64_t i = 0; i < count; ++i)
    std::memcpy(to + i * to_step, from + i * from_step, sizeof(T));
}

void copy_row(const std::byte* from, uint64_t from_step, std::byte* to, uint64_t to_step,
              uint64_t count, size_t element_bytes) {
  if (from_step == element_bytes && to_step == element_bytes) {
    std::memcpy(to, from, count * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1: return copy_row<uint8_t>(from, from_step, to, to_step, count);
    case 2: return copy_row<uint16_t>(from, from_step, to, to_step, count);
    case 4: return copy_row<uint32_t>(from, from_step, to, to_step, count);
    default: return copy_row<uint64_t>(from, from_step, to, to_step, count);
  }
}

void run(const Loops& loops, const std::byte* from, std::byte* to, size_t element_bytes) {
  if (loops.dims == 0) {
    std::memcpy(to, from, element_bytes);
    return;
  }
  const uint32_t inner = loops.dims - 1;
  Coordinates at{};
  while (true) {
    copy_row(from, loops.from[inner], to, loops.to[inner], loops.count[inner], element_bytes);
    uint32_t dim = inner;
    while (dim > 0) {
      --dim;
      from += loops.from[dim];
      to += loops.to[dim];
      if (++at[dim] < loops.count[dim]) break;
      from -= loops.from[dim] * loops.count[dim];
      to -= loops.to[dim] * loops.count[dim];
      at[dim] = 0;
      if (dim == 0) return;
    }
    if (inner == 0) return;
  }
}

std::vector<uint64_t> extents_of(const Box& box) {
  std::vector<uint64_t> extents(box.dims);
  for (uint32_t d = 0; d < box.dims; ++d) extents[d] = box.extent(d);
  return extents;
}

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
  const Coordinates to_strides = tensor::strides_of(extents_of(to_box));
  Loops loops;
  uint64_t from_first = 0;
  uint64_t from_last = 0;
  uint64_t to_first = 0;
  for (uint32_t d = 0; d < common.dims; ++d) {
    from_first += (common.begin[d] - from.box.begin[d]) * from.strides[d];
    from_last += (common.end[d] - 1 - from.box.begin[d]) * from.strides[d];
    to_first += (common.begin[d] - to_box.begin[d]) * to_strides[d];
    add_loop(loops, common.extent(d), from.strides[d] * element_bytes,
             to_strides[d] * element_bytes);
  }
  PLIANT_CHECK((from_last + 1) * element_bytes <= from.elements.size(), "a piece has its elements");
  PLIANT_CHECK(to.size() >= tensor::volume(to_box) * element_bytes, "the destination has room");
  run(loops, from.elements.data() + from_first * element_bytes,
      to.data() + to_first * element_bytes, element_bytes);
}

Status for_each_run(const Box& box, uint64_t elements_max,
                    const std::function<Status(const Box&, uint64_t)>& visit) {
  const uint64_t total = tensor::volume(box);
  const std::vector<uint64_t> extents = extents_of(box);
  elements_max = std::max<uint64_t>(elements_max, 1);
  std::vector<Box> parts;
  for (uint64_t begin = 0; begin < total;) {
    const uint64_t end = std::min(total, begin + elements_max);
    parts.clear();
    tensor::append_flat_range(extents, begin, end, parts);
    for (Box part : parts) {
      const uint64_t size = tensor::volume(part);
      for (uint32_t d = 0; d < box.dims; ++d) {
        part.begin[d] += box.begin[d];
        part.end[d] += box.begin[d];
      }
      PLIANT_TRY(visit(part, begin));
      begin += size;
    }
  }
  return {};
}

bool matches(std::string_view pattern, std::string_view name) {
  // After a '*' try again one character later; only the last one has to be remembered.
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t again = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      again = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++again;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace pliant::store
