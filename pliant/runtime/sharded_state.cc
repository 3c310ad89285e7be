#include "pliant/runtime/sharded_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "pliant/base/bf16.h"
#include "pliant/base/bytes.h"
#include "pliant/base/check.h"
#include "pliant/tensor/layout_json.h"

namespace pliant {
namespace {

using tensor::Holding;
using tensor::LocalBuffer;
using tensor::Piece;

bool same_form(const LocalBuffer& a, const LocalBuffer& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.is_flat == b.is_flat &&
         a.is_padded == b.is_padded &&
         (!a.is_padded || std::bit_cast<uint64_t>(a.fill) == std::bit_cast<uint64_t>(b.fill));
}

// For each buffer, the pieces in it.
std::vector<std::vector<const Piece*>> pieces_by_buffer(const Holding& holding) {
  std::vector<std::vector<const Piece*>> pieces(holding.buffers.size());
  for (const Piece& piece : holding.pieces) pieces[piece.buffer].push_back(&piece);
  return pieces;
}

template <typename T>
void fill_with(std::span<std::byte> memory, T value) {
  for (size_t at = 0; at + sizeof value <= memory.size(); at += sizeof value)
    std::memcpy(memory.data() + at, &value, sizeof value);
}

// The memory is zero when it comes.
Status fill_padding(std::span<std::byte> memory, const LocalBuffer& buffer) {
  const double value = buffer.fill;
  if (std::bit_cast<uint64_t>(value) == 0) return {};
  switch (buffer.dtype) {
    case DType::kI8: fill_with(memory, static_cast<int8_t>(value)); break;
    case DType::kI16: fill_with(memory, static_cast<int16_t>(value)); break;
    case DType::kI32: fill_with(memory, static_cast<int32_t>(value)); break;
    case DType::kI64: fill_with(memory, static_cast<int64_t>(value)); break;
    case DType::kU8: fill_with(memory, static_cast<uint8_t>(value)); break;
    case DType::kU16: fill_with(memory, static_cast<uint16_t>(value)); break;
    case DType::kU32: fill_with(memory, static_cast<uint32_t>(value)); break;
    case DType::kU64: fill_with(memory, static_cast<uint64_t>(value)); break;
    case DType::kBool: fill_with(memory, static_cast<uint8_t>(value != 0)); break;
    case DType::kBF16: fill_with(memory, to_bf16(static_cast<float>(value))); break;
    case DType::kF32: fill_with(memory, static_cast<float>(value)); break;
    case DType::kF64: fill_with(memory, value); break;
    default:
      return invalid(fmt::format("'{}': padding of {} can be filled with 0 alone, not with {}",
                                 buffer.name, to_string(buffer.dtype), value));
  }
  return {};
}

bool same_piece(const Piece& a, const tensor::Collection& tensors_a, const Piece& b,
                const tensor::Collection& tensors_b) {
  return a.box == b.box && a.offset == b.offset && a.strides == b.strides &&
         tensors_a[a.tensor].name == tensors_b[b.tensor].name;
}

// The elements of a buffer that a tensor lies in; those of different tensors are apart.
struct Extent {
  size_t buffer = 0;
  size_t tensor = 0;
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
};

// By buffer, as they follow each other.
std::vector<Extent> extents_of(const Holding& holding) {
  std::vector<Extent> extents;
  for (const Piece& piece : holding.pieces) {
    tensor::Box last = piece.box;
    for (uint32_t d = 0; d < last.dims; ++d) last.begin[d] = last.end[d] - 1;
    if (extents.empty() || extents.back().buffer != piece.buffer ||
        extents.back().tensor != piece.tensor)
      extents.push_back({.buffer = piece.buffer, .tensor = piece.tensor});
    Extent& extent = extents.back();
    extent.begin = std::min(extent.begin, piece.offset);
    extent.end = std::max(extent.end, piece.offset_of(last) + 1);
  }
  std::ranges::sort(extents, {}, [](const Extent& e) { return std::pair(e.buffer, e.begin); });
  return extents;
}

}  // namespace

Result<std::vector<Rank>> ShardedState::seats(const Session& session, const tensor::Mesh& mesh,
                                              std::span<const Rank> ranks) {
  const Rank members = session.size();
  std::vector<Rank> seats(ranks.begin(), ranks.end());
  if (seats.empty() && mesh.size() == static_cast<uint32_t>(members))
    for (Rank rank = 0; rank < members; ++rank) seats.push_back(rank);
  if (seats.size() != mesh.size())
    return invalid(
        fmt::format("the layout is for {} ranks, but {}; use a layout for as many, or say which "
                    "member is which "
                    "rank of it",
                    mesh.size(),
                    ranks.empty() ? fmt::format("the view has {} members", members)
                                  : fmt::format("{} members are named for them", ranks.size())));
  std::vector<bool> taken(static_cast<size_t>(members));
  for (size_t r = 0; r < seats.size(); ++r) {
    if (seats[r] < 0 || seats[r] >= members)
      return invalid(
          fmt::format("rank {} of the layout is to be member {}, but the view has 0 to {}", r,
                      seats[r], members - 1));
    if (taken[static_cast<size_t>(seats[r])])
      return invalid(
          fmt::format("member {} is to be two ranks of the layout, one of them {}", seats[r], r));
    taken[static_cast<size_t>(seats[r])] = true;
  }
  return seats;
}

ShardedState::Part ShardedState::make_part(const Session& session, const tensor::Layout& layout,
                                           std::span<const Rank> seats) {
  Part part{.layout = layout};
  for (size_t r = 0; r < seats.size(); ++r) {
    part.peers.push_back(session.world().peer(seats[r]));
    if (seats[r] == session.rank()) part.rank = static_cast<Rank>(r);
  }
  part.digest = hash64(tensor::to_json({.spec = layout.spec(), .collection = layout.collection()}));
  for (const PeerId peer : part.peers)
    part.digest = hash64(std::as_bytes(std::span(&peer, 1)), part.digest);
  return part;
}

Result<ShardedState> ShardedState::allocate(Session& session, const tensor::Layout& layout,
                                            std::span<const Rank> ranks) {
  auto seated = seats(session, layout.mesh(), ranks);
  if (!seated) return seated.error();
  ShardedState state(session);
  Part part = make_part(session, layout, *seated);
  PLIANT_TRY(state.fill_part(part));
  state.parts_.push_back(std::move(part));
  state.generation_ = 1;
  return state;
}

std::optional<size_t> ShardedState::find(std::string_view name) const {
  const auto& buffers = holding().buffers;
  const auto found = std::ranges::find(buffers, name, &LocalBuffer::name);
  if (found == buffers.end()) return std::nullopt;
  return static_cast<size_t>(found - buffers.begin());
}

bool ShardedState::is_split() const { return parts_.size() > 1 || (next_ && next_->known > 0); }

const ShardedState::Part& ShardedState::whole() const {
  PLIANT_CHECK(!empty() && !is_split(), "the state is in one layout");
  return parts_[0];
}

bool ShardedState::holds_anything() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.rank >= 0; });
}

Status ShardedState::fill_part(Part& part) {
  if (part.rank < 0) return {};
  // What was given back must be there again.
  if (release_.joinable()) release_.join();
  part.holding = part.layout.holding(part.rank);
  struct Former {
    const Part* part = nullptr;
    std::shared_ptr<Buffer> memory = {};
    const LocalBuffer* buffer = nullptr;
    std::vector<const Piece*> pieces = {};
  };
  std::multimap<std::string_view, Former> former;
  for (const Part& old : parts_) {
    auto pieces = pieces_by_buffer(old.holding);
    for (size_t b = 0; b < old.holding.buffers.size(); ++b) {
      const LocalBuffer& buffer = old.holding.buffers[b];
      // What has lost a tensor to another part is of no use any more.
      if (std::ranges::all_of(pieces[b],
                              [&](const Piece* piece) { return old.has(piece->tensor); }))
        former.emplace(buffer.name, Former{&old, old.buffers[b], &buffer, std::move(pieces[b])});
    }
  }
  const auto pieces = pieces_by_buffer(part.holding);
  const auto is_same = [&](size_t b, const Former& old) {
    return same_form(part.holding.buffers[b], *old.buffer) &&
           std::ranges::equal(pieces[b], old.pieces, [&](const Piece* x, const Piece* y) {
             return same_piece(*x, part.layout.collection(), *y, old.part->layout.collection());
           });
  };
  for (size_t b = 0; b < part.holding.buffers.size(); ++b) {
    const LocalBuffer& buffer = part.holding.buffers[b];
    const auto [first, last] = former.equal_range(buffer.name);
    const auto same =
        std::find_if(first, last, [&](const auto& f) { return is_same(b, f.second); });
    if (same != last) {
      part.buffers.push_back(same->second.memory);
      continue;
    }
    auto memory = take_memory(buffer);
    if (!memory) return memory.error();
    part.buffers.push_back(std::move(*memory));
  }
  return {};
}

Result<std::shared_ptr<ShardedState::Buffer>> ShardedState::take_memory(const LocalBuffer& buffer) {
  const size_t bytes = buffer.elements * size_of(buffer.dtype);
  const auto spare =
      std::ranges::find_if(spare_, [&](const auto& kept) { return kept->memory.size() == bytes; });
  std::shared_ptr<Buffer> taken;
  if (spare != spare_.end()) {
    taken = std::move(*spare);
    spare_.erase(spare);
    if (buffer.is_padded) std::ranges::fill(taken->memory, std::byte{});
  } else {
    auto memory = session_->allocate(bytes);
    // What is kept for later is worth less than what is needed now.
    if (!memory && !spare_.empty()) {
      spare_.clear();
      memory = session_->allocate(bytes);
    }
    if (!memory) return memory.error();
    taken = std::make_shared<Buffer>(*session_, *memory);
  }
  if (buffer.is_padded) PLIANT_TRY(fill_padding(taken->memory, buffer));
  return taken;
}

bool ShardedState::Part::uses(const std::shared_ptr<Buffer>& buffer) const {
  return buffer.use_count() > 1 && std::ranges::find(buffers, buffer) != buffers.end();
}

uint64_t ShardedState::own_bytes(const Part& part) const {
  uint64_t bytes = 0;
  for (const Extent& extent : extents_of(part.holding))
    if (part.has(extent.tensor) && (!next_ || !next_->part.uses(part.buffers[extent.buffer])))
      bytes += (extent.end - extent.begin) * size_of(part.holding.buffers[extent.buffer].dtype);
  return bytes;
}

uint64_t ShardedState::discard(const Part& part, const std::vector<bool>& tensors,
                               std::span<const Part> others) {
  const std::vector<Extent> extents = extents_of(part.holding);
  uint64_t discarded = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    const std::shared_ptr<Buffer>& buffer = part.buffers[extent.buffer];
    if (!tensors[extent.tensor] ||
        std::ranges::any_of(others, [&](const Part& other) { return other.uses(buffer); }))
      continue;
    uint64_t begin = extent.begin;
    uint64_t end = extent.end;
    const size_t element = size_of(part.holding.buffers[extent.buffer].dtype);
    discarded += (end - begin) * element;
    // A page in which two tensors meet goes with the second of them.
    const auto is_gone = [&](size_t at) {
      return at < extents.size() && extents[at].buffer == extent.buffer &&
             !part.has(extents[at].tensor);
    };
    if (buffer.use_count() == 1 && is_gone(i - 1)) begin = extents[i - 1].begin;
    if (buffer.use_count() == 1 && is_gone(i + 1)) end = extents[i + 1].end;
    session_->discard(buffer->memory.subspan(begin * element, (end - begin) * element));
  }
  return discarded;
}

uint64_t ShardedState::pass_batch() {
  const Part& next = next_->part;
  uint64_t discarded = 0;
  for (Part& part : parts_) {
    const tensor::Collection& tensors = part.layout.collection();
    if (part.tensors.empty()) part.tensors.assign(tensors.size(), true);
    std::vector<bool> leave(tensors.size());
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const size_t new_tensor = next.layout.collection().find(tensors[tensor].name).value();
      leave[tensor] = part.has(tensor) && next_->is_in(new_tensor, next_->known);
      if (leave[tensor]) part.tensors[tensor] = false;
    }
    discarded += discard(part, leave, {&next, 1});
  }
  ++next_->known;
  return discarded;
}

std::vector<ShardedState::Part> ShardedState::take_next(uint32_t batches) {
  PLIANT_CHECK(next_ && next_->own >= batches, "this member has all batches that count");
  std::vector<Part> former;
  if (batches == next_->batches) {
    former = std::move(parts_);
    parts_.clear();
  } else {
    while (next_->known < batches) pass_batch();
    const auto is_done = [](const Part& part) {
      return std::ranges::count(part.tensors, true) == 0;
    };
    for (Part& part : parts_)
      if (is_done(part)) former.push_back(std::move(part));
    std::erase_if(parts_, is_done);
    Part& next = next_->part;
    for (const uint32_t batch : next_->batch_of) next.tensors.push_back(batch < batches);
    // What this member has beyond that is of no use: others may not have it.
    std::vector<bool> useless = next.tensors;
    useless.flip();
    (void)discard(next, useless, parts_);
  }
  parts_.push_back(std::move(next_->part));
  next_.reset();
  ++generation_;
  passed_ = batches;
  return former;
}

void ShardedState::retire(std::vector<Part> parts, bool keeps_memory) {
  if (release_.joinable()) release_.join();
  std::vector<std::shared_ptr<Buffer>> former;
  for (Part& part : parts)
    former.insert(former.end(), std::make_move_iterator(part.buffers.begin()),
                  std::make_move_iterator(part.buffers.end()));
  // Two of them may share one.
  std::ranges::sort(former);
  former.erase(std::ranges::unique(former).begin(), former.end());
  // Those that the new layout has taken over stay anyway.
  std::erase_if(former, [](const auto& buffer) { return buffer.use_count() > 1; });
  std::swap(former, spare_);
  if (!keeps_memory)
    former.insert(former.end(), std::make_move_iterator(spare_.begin()),
                  std::make_move_iterator(spare_.end()));
  if (!keeps_memory) spare_.clear();
  if (!former.empty())
    release_ = std::jthread([former = std::move(former)]() mutable { former.clear(); });
}

}  // namespace pliant
