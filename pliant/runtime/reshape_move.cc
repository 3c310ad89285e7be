// Both layouts side by side, and the way from one to the other.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
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
  if (options_.extra_bytes_max) state_.drop_spare();
  ShardedState::Next& next = state_.next_.emplace(ShardedState::Next{
      .part = std::move(*part_), .batch_of = batches_.of_tensor, .batches = batches_.count});
  PLIANT_TRY(state_.fill_part(next.part));
  std::vector<std::byte*> buffers;
  std::vector<bool> is_kept;
  for (const auto& buffer : next.part.buffers) {
    buffers.push_back(buffer->memory.data());
    is_kept.push_back(buffer.use_count() > 1);
  }
  for (Origin& origin : origins_) {
    ReshapeScene& scene = origin.scene.emplace(
        ReshapeScene{.session = session_, .plan = origin.plan, .from = origin.layout});
    scene.givers = origin.givers;
    scene.takers = seats_;
    scene.old_rank = origin.part.rank;
    scene.new_rank = next.part.rank;
    scene.target = &next.part.holding;
    scene.target_buffers = buffers;
    scene.is_kept = is_kept;
    if (next.part.rank < 0) continue;
    for (const tensor::Move& move : origin.plan.moves_to(next.part.rank)) {
      const tensor::Piece* const piece =
          next.part.holding.find(move.tensor, origin.plan.boxes[move.box]);
      if (piece != nullptr && !is_kept[piece->buffer]) total_bytes_ += origin.plan.bytes_of(move);
    }
  }
  return state_.holds_anything() ? tell_places() : Status{};
}

// The table begins with the place in it at which each origin's buffers begin.
Status Reshape::tell_places() {
  std::vector<uint64_t> places(origins_.size());
  for (size_t i = 0; i < origins_.size(); ++i) {
    places[i] = places.size();
    for (const auto& buffer : origins_[i].part.buffers)
      places.push_back(session_.place_of(buffer->memory).value_or(0));
  }
  auto memory = session_.allocate(places.size() * sizeof places[0]);
  if (!memory) return memory.error();
  table_.emplace(session_, *memory);
  std::memcpy(memory->data(), places.data(), memory->size());
  return {};
}

// Everybody knows from what was said who can read whom.
Status Reshape::map_sources(const std::vector<ReshapeVerdict>& verdicts) {
  const Group& world = session_.world();
  std::vector<bool> shares;
  for (const ReshapeVerdict& verdict : verdicts) shares.push_back(verdict.table != 0);
  for (size_t i = 0; i < origins_.size(); ++i) {
    origins_[i].scene->is_reachable = [&world, shares](Rank giver, Rank taker) {
      return world.host(giver) == world.host(taker) && shares[static_cast<size_t>(giver)];
    };
    PLIANT_TRY(map_sources(i, verdicts));
  }
  return {};
}

Status Reshape::map_sources(size_t index, const std::vector<ReshapeVerdict>& verdicts) {
  const Origin& origin = origins_[index];
  ReshapeScene& scene = *origins_[index].scene;
  for (size_t old = 0; old < scene.givers.size(); ++old) {
    const auto old_rank = static_cast<Rank>(old);
    const Rank giver = scene.givers[old];
    if (giver < 0) continue;
    if (giver == session_.rank()) {
      ReadableMemory& own = scene.sources[old_rank];
      own.holding = origin.part.holding;
      for (const auto& buffer : origin.part.buffers) own.buffers.push_back(buffer->memory.data());
      continue;
    }
    if (!scene.is_reachable(giver, session_.rank())) continue;
    ReadableMemory& source = scene.sources[old_rank];
    source.holding = origin.layout.holding(old_rank);
    const uint64_t table = verdicts[static_cast<size_t>(giver)].table;
    // Null as soon as something of it is gone.
    const auto read = [&](uint64_t entry) -> std::optional<uint64_t> {
      uint64_t value = 0;
      const std::byte* const at =
          session_.peer_memory(giver, table + entry * sizeof value, sizeof value);
      if (at == nullptr) return std::nullopt;
      std::memcpy(&value, at, sizeof value);
      return value;
    };
    const auto first = read(index);
    for (size_t b = 0; b < source.holding.buffers.size(); ++b) {
      const tensor::LocalBuffer& buffer = source.holding.buffers[b];
      const auto place = first ? read(*first + b) : std::nullopt;
      source.buffers.push_back(
          session_.peer_memory(giver, place.value_or(0), buffer.elements * size_of(buffer.dtype)));
      if (source.buffers.back() == nullptr)
        return Error{Code::kPeerLost,
                     fmt::format("the memory of {} cannot be read any more", describe(giver)),
                     session_.world().peer(giver), session_.view().epoch};
    }
  }
  return {};
}

// Batch by batch; if memory is not short there is one. The new layout's memory is there from the
// beginning, but costs nothing until it is written to; that of the old one goes page by page.
Status Reshape::move() {
  const ShardedState::Next& next = *state_.next_;
  for (const Part& part : state_.parts_) held_bytes_ += state_.own_bytes(part);
  uint64_t new_bytes = 0;
  for (const auto& buffer : next.part.buffers)
    if (buffer.use_count() == 1) new_bytes += buffer->memory.size();
  const uint64_t needed = std::max(held_bytes_, new_bytes);
  for (uint32_t batch = 0; batch < next.batches; ++batch) {
    PLIANT_TRY(move_batch(batch));
    // After the last one everything of the old layout goes.
    if (batch + 1 < next.batches) held_bytes_ -= state_.pass_batch();
  }
  report_.peak_extra_bytes = largest_bytes_ > needed ? largest_bytes_ - needed : 0;
  return {};
}

Status Reshape::move_batch(uint32_t batch) {
  ShardedState::Next& next = *state_.next_;
  std::deque<ReshapeWork> works;
  for (const Origin& origin : origins_) {
    const auto& work = works.emplace_back(*origin.scene, TensorChoice{next.batch_of, batch});
    held_bytes_ += work.bytes().to_move();
  }
  largest_bytes_ = std::max(largest_bytes_, held_bytes_);
  Status moved = run_works(works);
  // Whoever has failed says so to those who wait.
  auto verdicts = exchange("pliant/reshape/done", verdict_of(moved));
  lap(report_.seconds.verify);
  if (!moved.ok()) return moved;
  // This member has it, and others may know that all have: the next reshape() will tell.
  if (!verdicts) {
    next.own = batch + 1;
    return verdicts.error();
  }
  PLIANT_TRY(judge(*verdicts));
  next.own = batch + 1;
  return {};
}

Status Reshape::run_works(std::deque<ReshapeWork>& works) {
  const size_t threads =
      options_.threads > 0 ? static_cast<size_t>(options_.threads) : default_threads(session_);
  for (ReshapeWork& work : works) {
    report_.bytes_kept += work.bytes().kept;
    report_.bytes_in_place += work.bytes().in_place;
    report_.bytes_inside += work.bytes().inside;
    report_.bytes_messages += work.bytes().messages;
    report_.bytes_given += work.bytes().given;
    ReshapeWork::Progress on_progress;
    if (options_.on_progress)
      on_progress = [this, before = done_bytes_](uint64_t done, uint64_t) {
        options_.on_progress(before + done, total_bytes_);
      };
    PLIANT_TRY(work.run(threads, on_progress));
    done_bytes_ += work.bytes().to_move();
  }
  lap(report_.seconds.copy);
  // A member that has found damage still gives its sums to the others.
  Status first;
  for (const ReshapeWork& work : works) {
    Status verified = verify(work);
    if (!verified.ok() && first.ok()) first = std::move(verified);
  }
  return first;
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

// From here on the new layout counts. Whoever does not hear of that any more has all of it, and
// learns it from the next reshape().
void Reshape::commit() {
  std::vector<Part> former = state_.take_next(state_.next_->batches);
  // The release of memory is not to hold up those who are behind.
  (void)session_.barrier("pliant/reshape/end");
  // Of a change with little memory there is nothing left to keep.
  state_.retire(std::move(former), options_.keeps_memory && !options_.extra_bytes_max);
}

}  // namespace pliant
