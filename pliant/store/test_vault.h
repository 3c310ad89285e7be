// Parts of versions for tests.
#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "pliant/base/checksum.h"
#include "pliant/store/vault.h"

namespace pliant::store {

struct TestPiece {
  TensorInfo info;
  Box box;
  std::vector<std::byte> elements;
};

inline Box box_of(std::vector<std::pair<uint64_t, uint64_t>> ranges) {
  Box box;
  for (const auto& [begin, end] : ranges) {
    box.begin[box.dims] = begin;
    box.end[box.dims++] = end;
  }
  return box;
}

// A piece of an i32 tensor whose elements are their row-major places in it.
inline TestPiece counted(const std::string& name, const std::vector<uint64_t>& shape,
                         const Box& box, int32_t first = 0) {
  TestPiece piece{{name, DType::kI32, shape}, box, {}};
  const Coordinates strides = tensor::strides_of(shape);
  std::vector<int32_t> values;
  for (uint64_t i = 0; i < tensor::volume(box); ++i) {
    uint64_t rest = i;
    uint64_t place = 0;
    for (uint32_t d = box.dims; d-- > 0; rest /= box.extent(d))
      place += (box.begin[d] + rest % box.extent(d)) * strides[d];
    values.push_back(static_cast<int32_t>(place) + first);
  }
  const Bytes bytes = std::as_bytes(std::span(values));
  piece.elements.assign(bytes.begin(), bytes.end());
  return piece;
}

inline VaultPart part_of(const std::vector<TestPiece>& pieces) {
  Manifest manifest;
  for (const TestPiece& piece : pieces) {
    uint32_t number = 0;
    while (number < manifest.tensors.size() && manifest.tensors[number].name != piece.info.name)
      ++number;
    if (number == manifest.tensors.size()) manifest.tensors.push_back(piece.info);
    manifest.pieces.push_back({number, piece.box, 0, checksum64(piece.elements)});
  }
  PLIANT_CHECK(place_pieces(manifest).ok());
  auto draft = VaultDraft::make(manifest.memory_bytes);
  PLIANT_CHECK(draft.ok());
  for (size_t i = 0; i < pieces.size(); ++i)
    PLIANT_CHECK(draft->write(manifest.pieces[i].offset, pieces[i].elements).ok());
  return {manifest, draft->seal().value()};
}

}  // namespace pliant::store
