// A Manifest: which pieces of which tensors lie where in one block of memory. Values; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/store/stored_tensor.h"

namespace pliant::store {

struct ManifestPiece {
  uint32_t tensor = 0;  // of the manifest's
  Box box;
  uint64_t offset = 0;    // of its elements, which are row-major, in the memory
  uint64_t checksum = 0;  // checksum64() of them

  bool operator==(const ManifestPiece&) const = default;
};

struct Manifest {
  static constexpr size_t kPiecesMax = size_t{1} << 20;
  // On the wire: of a few hundred thousand pieces.
  static constexpr uint64_t kBytesMax = uint64_t{64} << 20;
  // Where pieces begin: vectors of any kind can be loaded from there.
  static constexpr uint64_t kAlignment = 64;

  std::vector<TensorInfo> tensors = {};
  std::vector<ManifestPiece> pieces = {};
  uint64_t memory_bytes = 0;

  bool operator==(const Manifest&) const = default;
  uint64_t piece_bytes(const ManifestPiece& piece) const;
};

// Refuses names and sizes that no collection has (tensor/collection.h), boxes outside of their
// tensors and pieces outside of the memory; the message names the tensor.
Status check(const Manifest& manifest);

// Places the pieces one behind the other, and sets the size of the memory; an error if there is
// nothing in them. The manifest is otherwise correct.
Status place_pieces(Manifest& manifest);

std::vector<std::byte> encode(const Manifest& manifest);
// What encode() made, checked. Allocates no more than a few times what is there.
Result<Manifest> decode_manifest(Bytes bytes);

}  // namespace pliant::store
