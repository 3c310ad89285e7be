#include "pliant/store/reshard_local.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <utility>

namespace pliant::store {
namespace {

template <typename T>
std::vector<std::byte> bytes_of(T value) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// One element of padding; nothing if the type cannot hold it, or is too rare to be worth it.
std::vector<std::byte> element_of(DType dtype, double value) {
  if (value == 0) return std::vector<std::byte>(size_of(dtype));
  if (dtype == DType::kF32) return bytes_of(static_cast<float>(value));
  if (dtype == DType::kF64) return bytes_of(value);
  if (dtype == DType::kBF16) {
    uint32_t bits = 0;
    const auto number = static_cast<float>(value);
    std::memcpy(&bits, &number, sizeof bits);
    if ((bits & 0xffff) == 0) return bytes_of(static_cast<uint16_t>(bits >> 16));
  }
  return {};
}

// How far the last element of a part of a piece is from its first, in the buffer.
uint64_t reach_of(const Box& part, const tensor::Piece& piece) {
  uint64_t reach = 0;
  for (uint32_t d = 0; d < part.dims; ++d) reach += (part.extent(d) - 1) * piece.strides[d];
  return reach;
}

// Adds both halves of a box of more than one element, cut across its outermost dimension.
void push_halves(const Box& box, std::vector<Box>& boxes) {
  uint32_t d = 0;
  while (box.extent(d) == 1) ++d;
  const uint64_t middle = box.begin[d] + box.extent(d) / 2;
  boxes.push_back(box);
  boxes.back().begin[d] = middle;
  boxes.push_back(box);
  boxes.back().end[d] = middle;
}

}  // namespace

std::string local_file_name(Rank rank) { return fmt::format("rank-{:05}.safetensors", rank); }

Result<LocalArrays> LocalArrays::make(const tensor::Layout& layout, Rank rank) {
  LocalArrays local;
  local.holding_ = layout.holding(rank);
  local.pieces_.resize(local.holding_.buffers.size());
  const std::vector<tensor::Piece>& pieces = local.holding_.pieces;
  for (size_t i = 0; i < pieces.size(); ++i) local.pieces_[pieces[i].buffer].push_back(i);
  std::map<std::string, size_t> uses;
  for (const tensor::LocalBuffer& buffer : local.holding_.buffers) ++uses[buffer.name];
  for (size_t i = 0; i < local.holding_.buffers.size(); ++i) {
    const tensor::LocalBuffer& buffer = local.holding_.buffers[i];
    std::string name = buffer.name;
    if (uses[name] > 1 && !local.pieces_[i].empty())
      name += " " + tensor::to_string(pieces[local.pieces_[i].front()].box);
    local.arrays_.push_back({std::move(name), buffer.dtype, buffer.shape});
    auto fill = element_of(buffer.dtype, buffer.is_padded ? buffer.fill : 0);
    if (fill.empty())
      return invalid(
          fmt::format("padding of '{}' is to hold {}, which cannot be written as {}; "
                      "give another fill in the layout",
                      buffer.name, buffer.fill, to_string(buffer.dtype)));
    local.fills_.push_back(std::move(fill));
  }
  return local;
}

Status LocalArrays::read(size_t array, uint64_t first, std::span<std::byte> to,
                         const ReadBox& read) const {
  const std::vector<std::byte>& fill = fills_[array];
  const uint64_t element = fill.size();
  const uint64_t end = first + to.size() / element;
  if (holding_.buffers[array].is_padded) {
    for (size_t at = 0; at < to.size(); at += element)
      std::memcpy(to.data() + at, fill.data(), element);
  }
  std::vector<Box> boxes;
  for (const size_t number : pieces_[array]) {
    const tensor::Piece& piece = holding_.pieces[number];
    boxes.assign(1, piece.box);
    while (!boxes.empty()) {
      const Box part = boxes.back();
      boxes.pop_back();
      const uint64_t begin = piece.offset_of(part);
      const uint64_t reach = reach_of(part, piece);
      if (begin >= end || begin + reach < first) continue;
      // What lies in one run, and all of it here, is read at once.
      if (begin >= first && begin + reach < end && reach + 1 == tensor::volume(part)) {
        const auto place = to.subspan((begin - first) * element, (reach + 1) * element);
        PLIANT_TRY(read(piece.tensor, part, place));
      } else {
        push_halves(part, boxes);
      }
    }
  }
  return {};
}

}  // namespace pliant::store
