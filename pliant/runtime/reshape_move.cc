// Both layouts side by side, and the way from one to the other.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "pliant/runtime/reshape_call.h"

namespace pliant {
namespace {

size_t default_threads(const Session& session) {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return static_cast<size_t>(std::max(1, cores / std::max(1, session.local_size())));
}

}  // namespace

Status Reshape::prepare() {
  ReshapeVerdict mine = verdict_of(allocate());
  if (table_ && mine.failed == 0) {
    if (const auto place = session_.place_of(table_->memory)) mine.table = *place;
  }
  auto verdicts = exchange("pliant/reshape/ready", mine);
  if (!verdicts) return verdicts.error();
  PLIANT_TRY(judge(*verdicts));
  return map_sources(*verdicts);
}

Status Reshape::allocate() {
  part_->generation = newest_ + 1;
  if (options_.extra_bytes_max) state_.drop_spare();
  PLIANT_TRY(state_.fill_part(*part_));
  scene_->target = &part_->holding;
  for (const auto& buffer : part_->buffers) {
    const bool is_kept = buffer.use_count() > 1;
    scene_->target_buffers.push_back(buffer->memory.data());
    scene_->is_kept.push_back(is_kept);
    if (!is_kept) report_.peak_extra_bytes += buffer->memory.size();
  }
  if (part_->rank >= 0)
    for (const tensor::Move& move : plan_.moves_to(part_->rank)) {
      const tensor::Piece* const piece = part_->holding.find(move.tensor, plan_.boxes[move.box]);
      if (piece != nullptr && !scene_->is_kept[piece->buffer]) total_bytes_ += plan_.bytes_of(move);
    }
  if (before() == nullptr) return {};
  // What stays while the larger of both is needed anyway.
  uint64_t released = 0;
  for (const auto& buffer : before()->buffers)
    if (buffer.use_count() == 1) released += buffer->memory.size();
  report_.peak_extra_bytes = std::min(report_.peak_extra_bytes, released);
  const size_t count = before()->buffers.size();
  auto memory = session_.allocate(std::max<size_t>(1, count) * sizeof(uint64_t));
  if (!memory) return memory.error();
  table_.emplace(session_, *memory);
  for (size_t b = 0; b < count; ++b) {
    const uint64_t place = session_.place_of(before()->buffers[b]->memory).value_or(0);
    std::memcpy(memory->data() + b * sizeof place, &place, sizeof place);
  }
  return {};
}

// Everybody knows from what was said who can read whom.
Status Reshape::map_sources(const std::vector<ReshapeVerdict>& verdicts) {
  const Group& world = session_.world();
  std::vector<bool> shares;
  for (const ReshapeVerdict& verdict : verdicts) shares.push_back(verdict.table != 0);
  scene_->is_reachable = [&world, shares](Rank giver, Rank taker) {
    return world.host(giver) == world.host(taker) && shares[static_cast<size_t>(giver)];
  };
  for (size_t old = 0; old < scene_->givers.size(); ++old) {
    const auto old_rank = static_cast<Rank>(old);
    const Rank giver = scene_->givers[old];
    if (giver < 0) continue;
    if (giver == session_.rank()) {
      ReadableMemory& own = scene_->sources[old_rank];
      own.holding = before()->holding;
      for (const auto& buffer : before()->buffers) own.buffers.push_back(buffer->memory.data());
      continue;
    }
    if (!scene_->is_reachable(giver, session_.rank())) continue;
    ReadableMemory& source = scene_->sources[old_rank];
    source.holding = from_->holding(old_rank);
    const ReshapeVerdict& verdict = verdicts[static_cast<size_t>(giver)];
    const size_t table_bytes = source.holding.buffers.size() * sizeof(uint64_t);
    const std::byte* const table = session_.peer_memory(giver, verdict.table, table_bytes);
    for (size_t b = 0; b < source.holding.buffers.size(); ++b) {
      const tensor::LocalBuffer& buffer = source.holding.buffers[b];
      uint64_t place = 0;
      if (table != nullptr) std::memcpy(&place, table + b * sizeof place, sizeof place);
      source.buffers.push_back(
          session_.peer_memory(giver, place, buffer.elements * size_of(buffer.dtype)));
      if (source.buffers.back() == nullptr)
        return Error{Code::kPeerLost,
                     fmt::format("the memory of {} cannot be read any more", describe(giver)),
                     world.peer(giver), session_.view().epoch};
    }
  }
  return {};
}

Status Reshape::run_work(ReshapeWork& work) {
  report_.bytes_kept += work.bytes().kept;
  report_.bytes_in_place += work.bytes().in_place;
  report_.bytes_inside += work.bytes().inside;
  report_.bytes_messages += work.bytes().messages;
  report_.bytes_given += work.bytes().given;
  const size_t threads =
      options_.threads > 0 ? static_cast<size_t>(options_.threads) : default_threads(session_);
  ReshapeWork::Progress on_progress;
  if (options_.on_progress)
    on_progress = [this, before = done_bytes_](uint64_t done, uint64_t) {
      options_.on_progress(before + done, total_bytes_);
    };
  Status moved = work.run(threads, on_progress);
  done_bytes_ += work.bytes().to_move();
  lap(report_.seconds.copy);
  return moved.ok() ? verify(work) : std::move(moved);
}

Status Reshape::move() {
  ReshapeWork work(*scene_);
  Status moved = run_work(work);
  // Whoever has failed says so to those who wait.
  auto verdicts = exchange("pliant/reshape/done", verdict_of(moved));
  lap(report_.seconds.verify);
  if (!moved.ok()) return moved;
  if (!verdicts) {
    // This member has everything, and others may know that all have: the next view will tell.
    state_.other_ = std::move(part_);
    return verdicts.error();
  }
  return judge(*verdicts);
}

// Batch by batch. The new layout's memory is there from the beginning, but costs nothing until it
// is written to; that of the old one goes page by page.
Status Reshape::stream() {
  uint64_t held = 0;  // of both layouts, without what they share
  uint64_t largest = 0;
  uint64_t new_bytes = 0;
  for (size_t b = 0; b < part_->buffers.size(); ++b)
    if (!scene_->is_kept[b]) new_bytes += part_->buffers[b]->memory.size();
  if (before() != nullptr)
    for (const auto& buffer : before()->buffers)
      if (buffer.use_count() == 1) held += buffer->memory.size();
  const uint64_t needed = std::max(held, new_bytes);
  for (uint32_t i = 0; i < batches_.count; ++i) {
    const TensorChoice choice{batches_.of_tensor, i};
    ReshapeWork work(*scene_, choice);
    held += work.bytes().to_move();
    largest = std::max(largest, held);
    const Status moved = run_work(work);
    auto verdicts = exchange("pliant/reshape/done", verdict_of(moved));
    lap(report_.seconds.verify);
    Status status;
    if (!moved.ok()) {
      status = moved.error();
    } else {
      status = verdicts ? judge(*verdicts) : Status(verdicts.error());
    }
    if (!status.ok()) {
      // The last batch may have been agreed on; before the first nothing was consumed.
      if (i + 1 == batches_.count && moved.ok() && !verdicts) state_.other_ = std::move(part_);
      if (i > 0) state_.current_.reset();
      return status;
    }
    held -= discard_sources(choice);
  }
  report_.peak_extra_bytes = largest > needed ? largest - needed : 0;
  return {};
}

// What of the old layout's memory all members have read; the bytes.
uint64_t Reshape::discard_sources(TensorChoice choice) {
  if (before() == nullptr) return 0;
  struct Extent {
    uint64_t begin = UINT64_MAX;
    uint64_t end = 0;
  };
  std::map<std::pair<size_t, size_t>, Extent> extents;  // by buffer and tensor
  for (const tensor::Piece& piece : before()->holding.pieces) {
    const auto tensor = plan_.collection->find(from_->collection()[piece.tensor].name);
    if (!choice.contains(tensor.value())) continue;
    if (before()->buffers[piece.buffer].use_count() > 1) continue;
    tensor::Box last = piece.box;
    for (uint32_t d = 0; d < last.dims; ++d) last.begin[d] = last.end[d] - 1;
    Extent& extent = extents[{piece.buffer, piece.tensor}];
    extent.begin = std::min(extent.begin, piece.offset);
    extent.end = std::max(extent.end, piece.offset_of(last) + 1);
  }
  uint64_t discarded = 0;
  for (const auto& [place, extent] : extents) {
    const size_t element = size_of(before()->holding.buffers[place.first].dtype);
    const std::span<std::byte> memory = before()->buffers[place.first]->memory;
    const uint64_t bytes = (extent.end - extent.begin) * element;
    session_.discard(memory.subspan(extent.begin * element, bytes));
    discarded += bytes;
  }
  return discarded;
}

Status Reshape::verify(const ReshapeWork& work) {
  const std::vector<size_t>& counts = work.sum_counts();
  std::vector<uint64_t> all(std::accumulate(counts.begin(), counts.end(), size_t{0}));
  if (all.empty()) return {};
  Operation exchange;
  exchange.collective = Collective::kAllGather;
  exchange.name = "pliant/reshape/sums";
  exchange.input = work.own_sums().data();
  exchange.output = all.data();
  exchange.dtype = DType::kU64;
  exchange.counts = counts;
  PLIANT_TRY(session_.run(exchange));
  return work.compare(all);
}

// From here on the new layout counts. The old one goes when all know that.
Status Reshape::commit() {
  state_.other_ = std::move(state_.current_);
  state_.current_ = std::move(part_);
  const Status all_know = session_.barrier("pliant/reshape/end");
  if (all_know.ok() && state_.other_) {
    // Of a change with little memory there is nothing left to keep.
    state_.retire(std::move(*state_.other_), options_.keeps_memory && !options_.extra_bytes_max);
    state_.other_.reset();
  }
  return {};
}

}  // namespace pliant
