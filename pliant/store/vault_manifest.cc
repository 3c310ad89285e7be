#include "pliant/store/vault_manifest.h"

#include <fmt/format.h>

#include <utility>

#include "pliant/tensor/collection.h"

namespace pliant::store {
namespace {

using tensor::Collection;
using tensor::kDimsMax;

// What the fields of the smallest tensor and piece take on the wire.
constexpr size_t kTensorBytesMin = sizeof(uint32_t) + 2;
constexpr size_t kPieceBytesMin = sizeof(uint32_t) + 2 * sizeof(uint64_t);

Error unreadable() {
  return invalid("a list of tensors cannot be read; do all processes run the same version?");
}

Status check_piece(const Manifest& manifest, const ManifestPiece& piece) {
  if (piece.tensor >= manifest.tensors.size())
    return invalid(fmt::format("a piece belongs to tensor number {} of {}", piece.tensor,
                               manifest.tensors.size()));
  const TensorInfo& info = manifest.tensors[piece.tensor];
  bool inside =
      piece.box.dims == info.shape.size() && contains(tensor::whole(info.shape), piece.box);
  for (uint32_t d = 0; inside && d < piece.box.dims; ++d)
    inside = piece.box.begin[d] <= piece.box.end[d];
  if (!inside)
    return invalid(fmt::format("tensor '{}' is {}; it has no piece {}", info.name, to_string(info),
                               to_string(piece.box)));
  const uint64_t bytes = manifest.piece_bytes(piece);
  if (piece.offset % Manifest::kAlignment != 0 || piece.offset > manifest.memory_bytes ||
      bytes > manifest.memory_bytes - piece.offset)
    return invalid(fmt::format("tensor '{}': the piece {} lies outside of its memory", info.name,
                               to_string(piece.box)));
  return {};
}

}  // namespace

uint64_t Manifest::piece_bytes(const ManifestPiece& piece) const {
  return volume(piece.box) * size_of(tensors[piece.tensor].dtype);
}

Status check(const Manifest& manifest) {
  const auto collection = Collection::make(manifest.tensors);
  if (!collection) return collection.error();
  if (manifest.pieces.size() > Manifest::kPiecesMax)
    return invalid(fmt::format("{} pieces are too many; {} is the most", manifest.pieces.size(),
                               Manifest::kPiecesMax));
  for (const ManifestPiece& piece : manifest.pieces) PLIANT_TRY(check_piece(manifest, piece));
  return {};
}

Status place_pieces(Manifest& manifest) {
  uint64_t end = 0;
  for (ManifestPiece& piece : manifest.pieces) {
    piece.offset = end;
    const uint64_t bytes = manifest.piece_bytes(piece);
    if (bytes > Collection::kBytesMax - end) return invalid("the pieces are too large together");
    end += (bytes + Manifest::kAlignment - 1) / Manifest::kAlignment * Manifest::kAlignment;
  }
  if (end == 0) return invalid("there is nothing to keep: all pieces are empty");
  manifest.memory_bytes = end;
  return {};
}

std::vector<std::byte> encode(const Manifest& manifest) {
  Writer writer;
  writer.put(manifest.memory_bytes);
  writer.put(static_cast<uint32_t>(manifest.tensors.size()));
  for (const TensorInfo& info : manifest.tensors) {
    writer.put_string(info.name);
    writer.put(static_cast<uint8_t>(info.dtype));
    writer.put(static_cast<uint8_t>(info.shape.size()));
    for (const uint64_t extent : info.shape) writer.put(extent);
  }
  writer.put(static_cast<uint32_t>(manifest.pieces.size()));
  for (const ManifestPiece& piece : manifest.pieces) {
    writer.put(piece.tensor);
    writer.put(piece.offset);
    writer.put(piece.checksum);
    for (uint32_t d = 0; d < piece.box.dims; ++d) {
      writer.put(piece.box.begin[d]);
      writer.put(piece.box.end[d]);
    }
  }
  return writer.bytes();
}

Result<Manifest> decode_manifest(Bytes bytes) {
  Reader reader(bytes);
  Manifest manifest;
  manifest.memory_bytes = reader.take<uint64_t>();
  const auto tensors = reader.take<uint32_t>();
  if (tensors > reader.left() / kTensorBytesMin) return unreadable();
  manifest.tensors.reserve(tensors);
  for (uint32_t i = 0; i < tensors && reader.ok(); ++i) {
    TensorInfo info;
    info.name = reader.take_string(Collection::kNameMax);
    const auto dtype = reader.take<uint8_t>();
    const auto dims = reader.take<uint8_t>();
    if (dtype >= kDTypes || dims > kDimsMax) return unreadable();
    info.dtype = static_cast<DType>(dtype);
    for (uint8_t d = 0; d < dims; ++d) info.shape.push_back(reader.take<uint64_t>());
    manifest.tensors.push_back(std::move(info));
  }
  const auto pieces = reader.take<uint32_t>();
  if (pieces > reader.left() / kPieceBytesMin) return unreadable();
  manifest.pieces.reserve(pieces);
  for (uint32_t i = 0; i < pieces && reader.ok(); ++i) {
    ManifestPiece piece;
    piece.tensor = reader.take<uint32_t>();
    piece.offset = reader.take<uint64_t>();
    piece.checksum = reader.take<uint64_t>();
    if (piece.tensor >= manifest.tensors.size()) return unreadable();
    piece.box.dims = static_cast<uint32_t>(manifest.tensors[piece.tensor].shape.size());
    for (uint32_t d = 0; d < piece.box.dims; ++d) {
      piece.box.begin[d] = reader.take<uint64_t>();
      piece.box.end[d] = reader.take<uint64_t>();
    }
    manifest.pieces.push_back(piece);
  }
  if (!reader.finished()) return unreadable();
  PLIANT_TRY(check(manifest));
  return manifest;
}

}  // namespace pliant::store
