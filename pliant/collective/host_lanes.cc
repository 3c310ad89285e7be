// The lanes of a HostCall: inline, direct and staged.
#include <algorithm>
#include <cstring>

#include "pliant/collective/host.h"

namespace pliant {

bool HostCall::reducer_is_self(const Block& block) const {
  return block.host.reducer == group_->self;
}

bool HostCall::receives(const Block& block) const {
  return block.host.receiver == HostPart::kEveryone || block.host.receiver == group_->self;
}

const std::byte* HostCall::own_input(const Block& block, const LaneRange& range) const {
  return call_.input + (block.input_offset + range.offset) * element_bytes_;
}

std::byte* HostCall::own_output(const Block& block, const LaneRange& range) const {
  return output_ + (block.output_offset + range.offset) * element_bytes_;
}

bool HostCall::in_place(const Block& block, const LaneRange& range, size_t source) const {
  return source == binding_->self && own_input(block, range) == own_output(block, range);
}

const std::byte* HostCall::registered_input(size_t member, const Block& block,
                                            const LaneRange& range) const {
  return binding_->peers[member].segment->at(post_of(member).input) +
         (block.input_offset + range.offset) * element_bytes_;
}

void HostCall::reduce_into(const LaneRange& range, bool partial) {
  reduce({.dtype = call_.dtype,
          .op = call_.op,
          .count = range.count,
          .inputs = inputs_,
          .outputs = outputs_,
          .output_partial = partial,
          .mean_over = call_.mean_over,
          .stream = stream_ && !partial});
}

void HostCall::add_left_behind(const Block& block, const LaneRange& range) {
  for (const std::byte* data : call_.left_behind)
    inputs_.push_back(
        {.data = data + (block.input_offset + range.offset) * element_bytes_, .partial = false});
}

// ---- Inline -----------------------------------------------------------------------------------

void HostCall::finish_inline() {
  const size_t parity = call_.sequence % 2;
  const auto inline_of = [&](size_t member) {
    // What was posted for the others may still be on its way out of this core.
    if (member == binding_->self) return call_.input;
    const HostPeer& peer = binding_->peers[member];
    return static_cast<const std::byte*>(
        ControlArea::of(peer.segment->control()).inline_data[peer.index][parity]);
  };
  for (const Block& block : schedule_->blocks) {
    if (block.count == 0 || !receives(block)) continue;
    const LaneRange all{.block = 0, .offset = 0, .count = block.count};
    if (block.host.reduce) {
      inputs_.clear();
      for (size_t i = 0; i < members(); ++i)
        inputs_.push_back(
            {.data = inline_of(i) + block.input_offset * element_bytes_, .partial = false});
      add_left_behind(block, all);
      outputs_.assign(1, own_output(block, all));
      stream_ = false;
      reduce_into(all, false);
    } else {
      const auto source =
          static_cast<size_t>(binding_->index_of_rank[static_cast<size_t>(block.host.reducer)]);
      if (in_place(block, all, source)) continue;
      std::memmove(own_output(block, all), inline_of(source) + block.input_offset * element_bytes_,
                   block.count * element_bytes_);
    }
  }
}

// ---- Direct -----------------------------------------------------------------------------------

bool HostCall::anyone_reduces() const {
  return schedule_->blocks[0].host.reducer == HostPart::kAnyone;
}

void HostCall::all_outputs(const Block& block, const LaneRange& range) {
  outputs_.clear();
  if (call_.shared_result || block.host.receiver != HostPart::kEveryone) {
    outputs_.push_back(own_output(block, range));
    return;
  }
  for (size_t i = 0; i < members(); ++i)
    outputs_.push_back(binding_->peers[i].segment->at(post_of(i).output) +
                       (block.output_offset + range.offset) * element_bytes_);
}

void HostCall::add_done(uint64_t parts) {
  const uint64_t tag = (uint64_t{call_.sequence} + 1) << 32;
  std::atomic<uint64_t>& word = leader().done;
  uint64_t seen = word.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    next = (seen >> 32 == tag >> 32 ? seen : tag) + parts;
  } while (!word.compare_exchange_weak(seen, next, std::memory_order_acq_rel));
  if (next == (tag | parts_)) host_->notify(*binding_);
}

bool HostCall::direct_done() const {
  const uint64_t tag = (uint64_t{call_.sequence} + 1) << 32;
  return parts_ == 0 || leader().done.load(std::memory_order_acquire) == (tag | parts_);
}

size_t HostCall::first_part() const {
  // Where processes share the cores, what a core's cache holds is there for whoever runs on it.
  const size_t place = takes_turns() ? binding_->self : host_->core().value_or(binding_->self);
  return place % claim_parts();
}

std::optional<size_t> HostCall::claim_lane(size_t part) {
  const uint64_t tag = (uint64_t{call_.sequence} + 1) << 32;
  const Split lanes = split(schedule_->lanes(), claim_parts(), part);
  std::atomic<uint64_t>& word = leader().claims[part].taken;
  uint64_t seen = word.load(std::memory_order_relaxed);
  uint64_t taken = 0;
  do {
    taken = seen >> 32 == tag >> 32 ? seen & 0xffffffff : 0;
    if (taken >= lanes.count) return std::nullopt;
  } while (!word.compare_exchange_weak(seen, tag | (taken + 1), std::memory_order_acq_rel));
  return lanes.offset + taken;
}

void HostCall::reduce_lane(size_t lane) {
  const LaneRange range = range_of(*schedule_, lane);
  const Block& block = schedule_->blocks[range.block];
  inputs_.clear();
  for (size_t member = 0; member < members(); ++member)
    inputs_.push_back({.data = registered_input(member, block, range), .partial = false});
  add_left_behind(block, range);
  all_outputs(block, range);
  reduce_into(range, false);
}

bool HostCall::claim_lanes(size_t lanes_max) {
  const size_t first = first_part();
  uint64_t claimed = 0;
  // Its own lanes, whose bytes its caches may hold from the call before; then those of workers that
  // are late.
  for (size_t i = 0; i < claim_parts() && claimed < lanes_max;) {
    const auto lane = claim_lane((first + i) % claim_parts());
    if (lane.has_value()) {
      reduce_lane(*lane);
      ++claimed;
    } else {
      ++i;
    }
  }
  if (claimed > 0) add_done(claimed);
  return claimed > 0;
}

HostCall::Outcome HostCall::host_reduce(size_t lane, uint8_t& stage, std::byte* partial) {
  if (mode_ == Mode::kStaged) return staged_reduce(lane, stage, partial);
  const LaneRange range = range_of(*schedule_, lane);
  const Block& block = schedule_->blocks[range.block];
  if (!block.host.reduce || !reducer_is_self(block)) return Outcome::kDone;
  inputs_.clear();
  for (size_t member = 0; member < members(); ++member)
    inputs_.push_back({.data = registered_input(member, block, range), .partial = false});
  if (partial != nullptr) {
    outputs_.assign(1, partial);
  } else {
    all_outputs(block, range);
  }
  reduce_into(range, partial != nullptr);
  // Tells the delivery whether the members' outputs have the result already.
  stage = partial != nullptr ? 1 : 2;
  return Outcome::kDone;
}

HostCall::Outcome HostCall::host_deliver(size_t lane, uint8_t& stage) {
  if (mode_ == Mode::kStaged) return staged_deliver(lane, stage);
  const LaneRange range = range_of(*schedule_, lane);
  const Block& block = schedule_->blocks[range.block];
  const size_t bytes = range.count * element_bytes_;
  if (block.host.reduce) {
    if (!reducer_is_self(block)) return Outcome::kDone;
    const std::byte* result = own_output(block, range);
    if (stage == 1) {
      all_outputs(block, range);
      for (std::byte* output : outputs_)
        if (output != result) copy_bytes(output, result, bytes, stream_);
    }
    add_done(1);
  } else if (receives(block)) {
    const auto source =
        static_cast<size_t>(binding_->index_of_rank[static_cast<size_t>(block.host.reducer)]);
    if (!in_place(block, range, source))
      copy_bytes(own_output(block, range), registered_input(source, block, range), bytes, stream_);
    add_done(1);
  }
  return Outcome::kDone;
}

// ---- Staged -----------------------------------------------------------------------------------

namespace {
enum Stage : uint8_t {
  kFresh = 0,
  kAwaitResult,    // not the reducer: contributed
  kAwaitDeposits,  // the reducer
  kAwaitDelivery,  // the reducer: its partial result is on the way between hosts
  kDelivered,      // the reducer: the result is in its slot
};
}  // namespace

StageSlot& HostCall::words(size_t lane) const {
  return leader().slots[(first_lane_ + lane) % kStageSlots];
}

std::byte* HostCall::slot_of(size_t member, size_t lane) const {
  const size_t slot = (first_lane_ + lane) % kStageSlots;
  return binding_->peers[member].segment->at(post_of(member).staging) +
         slot * schedule_->chunk_elements * element_bytes_;
}

void HostCall::write_slot(size_t lane, const std::byte* from, size_t bytes) {
  std::byte* const to = slot_of(binding_->self, lane);
  if (bytes < SlotWrites::kBytesMin) return copy_bytes(to, from, bytes, false);
  SlotWrites& writes = host_->slot_writes();
  const bool stream = writes.stream_next(call_bytes());
  const Instant begun = now();
  copy_bytes(to, from, bytes, stream);
  writes.took(call_bytes(), stream, bytes, now() - begun);
}

HostCall::Outcome HostCall::staged_reduce(size_t lane, uint8_t& stage, std::byte* partial) {
  const LaneRange range = range_of(*schedule_, lane);
  const Block& block = schedule_->blocks[range.block];
  const uint64_t others = members() - 1;
  const uint64_t use = use_of(lane);
  StageSlot& slot = words(lane);
  if (stage == kFresh) {
    // More than that: this is a block that is moved, and somebody has taken it already.
    if (slot.collected.load(std::memory_order_acquire) < use * others) return Outcome::kPending;
    const bool anyone = block.host.reducer == HostPart::kAnyone;
    bool mine = anyone ? lane % members() == binding_->self : reducer_is_self(block);
    if (anyone && !takes_turns()) {
      mine = slot.arrived.fetch_add(1, std::memory_order_acq_rel) == use * members() + others;
    } else if (mine) {
      slot.arrived.fetch_add(members(), std::memory_order_acq_rel);
    }
    if (!mine) {
      if (block.host.reduce) {
        write_slot(lane, own_input(block, range), range.count * element_bytes_);
        slot.deposited.fetch_add(1, std::memory_order_acq_rel);
        host_->notify(*binding_);
      }
      stage = kAwaitResult;
      return Outcome::kDone;
    }
    stage = kAwaitDeposits;
  }
  if (block.host.reduce) {
    if (slot.deposited.load(std::memory_order_acquire) != (use + 1) * others)
      return Outcome::kPending;
  } else {
    slot.deposited.fetch_add(others, std::memory_order_acq_rel);
  }
  stage_result(lane, partial);
  stage = partial != nullptr ? kAwaitDelivery : kDelivered;
  return Outcome::kDone;
}

// The reducer's work: its own input needs no slot, the others' inputs stand in theirs.
void HostCall::stage_result(size_t lane, std::byte* partial) {
  const LaneRange range = range_of(*schedule_, lane);
  const Block& block = schedule_->blocks[range.block];
  std::byte* own_slot = slot_of(binding_->self, lane);
  const bool others_receive =
      !call_.shared_result && members() > 1 && block.host.receiver != group_->self;
  if (block.host.reduce) {
    inputs_.clear();
    for (size_t member = 0; member < members(); ++member)
      inputs_.push_back(
          {.data = member == binding_->self ? own_input(block, range) : slot_of(member, lane),
           .partial = false});
    add_left_behind(block, range);
    outputs_.clear();
    if (partial != nullptr) {
      outputs_.push_back(partial);
    } else {
      if (receives(block)) outputs_.push_back(own_output(block, range));
      if (others_receive) outputs_.push_back(own_slot);
    }
    const bool stream = stream_;
    stream_ = host_->slot_writes().streams(call_bytes());
    reduce_into(range, partial != nullptr);
    stream_ = stream;
    if (partial != nullptr) return;
  } else {
    const size_t bytes = range.count * element_bytes_;
    const std::byte* from = own_input(block, range);
    if (others_receive) write_slot(lane, from, bytes);
    if (receives(block) && own_output(block, range) != from)
      copy_bytes(own_output(block, range), from, bytes, stream_);
  }
  words(lane).reduced.store((use_of(lane) + 1) << 16 | binding_->self, std::memory_order_release);
  host_->notify(*binding_);
}

HostCall::Outcome HostCall::staged_deliver(size_t lane, uint8_t& stage) {
  const LaneRange range = range_of(*schedule_, lane);
  const Block& block = schedule_->blocks[range.block];
  const size_t bytes = range.count * element_bytes_;
  StageSlot& slot = words(lane);
  if (stage == kDelivered) return Outcome::kDone;
  if (stage == kAwaitDelivery) {
    if (!call_.shared_result && members() > 1) write_slot(lane, own_output(block, range), bytes);
    slot.reduced.store((use_of(lane) + 1) << 16 | binding_->self, std::memory_order_release);
    host_->notify(*binding_);
    stage = kDelivered;
    return Outcome::kDone;
  }
  const uint64_t reduced = slot.reduced.load(std::memory_order_acquire);
  if (reduced >> 16 != use_of(lane) + 1) return Outcome::kPending;
  if (receives(block) && !call_.shared_result)
    copy_bytes(own_output(block, range), slot_of(reduced & 0xffff, lane), bytes, stream_);
  slot.collected.fetch_add(1, std::memory_order_acq_rel);
  host_->notify(*binding_);
  return Outcome::kDone;
}

}  // namespace pliant
