#include "pliant/collective/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pliant/collective/executor.h"

namespace pliant {
namespace {
// Lanes in flight at once: enough to keep a link busy, few enough to stay in the caches.
constexpr size_t kWindow = kStageSlots;
// Calls up to this size are sent without asking whether the receiver has made its call yet.
constexpr size_t kEagerBytes = size_t{64} << 10;
// Lanes between two looks at the rest of the world.
constexpr size_t kClaimsAtOnce = 4;
}  // namespace

void Execution::begin() {
  state_ = State::kIdle;
  status_ = {};
  finished_.store(false, std::memory_order_relaxed);
  poisoned_.store(false, std::memory_order_relaxed);
  left_.store(0, std::memory_order_relaxed);
  poison_.reset();
  host_begun_ = false;
  sends_pending_ = 0;
  lanes_.clear();
  active_.clear();
  next_lane_ = 0;
  lanes_left_ = 0;
  if (!host_only_) {
    const size_t members = static_cast<size_t>(group_->size());
    arrived_.assign(members, false);
    sends_me_.assign(members, false);
    for (const Block& block : schedule_->blocks)
      for (const Step& step : block.steps)
        if (step.kind == Step::Kind::kReduce || step.kind == Step::Kind::kReceive)
          for (const Rank peer : step.peers) sends_me_[static_cast<size_t>(peer)] = true;
    eager_ = operation_.count * size_of(operation_.dtype) <= kEagerBytes;
    enter_lanes();
    for (Rank rank = 0; !eager_ && rank < group_->size(); ++rank)
      if (sends_me_[static_cast<size_t>(rank)])
        executor_->transport_.send(group_->peer(rank), frame(FrameType::kArrive), {}, 0);
  }
  if (!schedule_->on_host) {
    state_ = State::kLanes;
    return;
  }
  state_ = State::kMeeting;
  HostArguments arguments{.key = key_,
                          .sequence = sequence_,
                          .shape = shape_,
                          .collective = operation_.collective,
                          .dtype = operation_.dtype,
                          .op = operation_.op,
                          .root = operation_.root,
                          .count = operation_.count,
                          .shared_result = operation_.shared_result,
                          .input = input_,
                          .input_elements = input_elements_,
                          .output = output_,
                          .output_elements = output_elements_,
                          .largest_input = largest_input_,
                          .host_only = host_only_};
  Status begun =
      host_.begin(*executor_->host_, *host_binding_, *group_, arguments, *schedule_);
  if (!begun) return complete(std::move(begun));
  host_begun_ = true;
}

void Execution::enter_lanes() {
  lanes_.resize(schedule_->lanes());
  lanes_left_ = lanes_.size();
}

void Execution::poison(Error error) {
  if (poisoned_.load(std::memory_order_relaxed)) return;
  poison_ = std::move(error);
  poisoned_.store(true, std::memory_order_release);
}

bool Execution::advance() {
  if (finished()) return false;
  if (poisoned_.load(std::memory_order_acquire)) [[unlikely]] {
    fail(*poison_);
    return true;
  }
  switch (state_) {
    case State::kIdle: return false;
    case State::kMeeting: return advance_meeting();
    case State::kClaiming: {
      const bool any = host_.claim_lanes(kClaimsAtOnce);
      if (!host_.direct_done()) return any;
      complete({});
      return true;
    }
    case State::kLanes: return advance_lanes();
  }
  return false;
}

bool Execution::advance_meeting() {
  if (!host_.meet()) return false;
  if (Status same = host_.check(name_); !same) {
    if (!host_only_) tell_others(same.error());
    complete(std::move(same));
    return true;
  }
  const HostCall::Mode mode = host_.choose_mode();
  output_ = host_.output();
  if (mode == HostCall::Mode::kInline) {
    host_.finish_inline();
    complete({});
  } else if (mode == HostCall::Mode::kDirect && host_.anyone_reduces()) {
    state_ = State::kClaiming;
    advance();
  } else {
    if (host_only_) enter_lanes();
    direct_ = mode == HostCall::Mode::kDirect;
    state_ = State::kLanes;
    advance_lanes();
  }
  return true;
}

bool Execution::advance_lanes() {
  bool any = false;
  while (active_.size() < kWindow && next_lane_ < lanes_.size())
    active_.push_back(static_cast<uint32_t>(next_lane_++));
  for (size_t i = 0; i < active_.size();) {
    Lane& lane = lanes_[active_[i]];
    any |= advance_lane(active_[i], lane);
    if (finished()) return true;
    if (!lane.done) {
      ++i;
      continue;
    }
    --lanes_left_;
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    if (next_lane_ < lanes_.size()) active_.push_back(static_cast<uint32_t>(next_lane_++));
  }
  if (lanes_left_ > 0 || (schedule_->on_host && direct_ && !host_.direct_done())) return any;
  complete({});
  return true;
}

bool Execution::advance_lane(size_t index, Lane& lane) {
  const LaneRange range = range_of(*schedule_, index);
  const Block& block = schedule_->blocks[range.block];
  bool any = false;
  // A lane without elements exists only to keep the stage slots in step.
  const bool skip = range.count == 0 && !(schedule_->on_host && !direct_);
  while (!skip && lane.step < block.steps.size()) {
    const Step& step = block.steps[lane.step];
    const bool message = step.kind == Step::Kind::kReduce || step.kind == Step::Kind::kReceive ||
                         step.kind == Step::Kind::kSend;
    if (!(message && range.count == 0) && !run_step(index, lane, step, range, block)) return any;
    if (finished()) return true;
    ++lane.step;
    any = true;
  }
  if (lane.sends > 0) return any;
  finish_lane(lane);
  return true;
}

bool Execution::run_step(size_t index, Lane& lane, const Step& step, const LaneRange& range,
                         const Block& block) {
  switch (step.kind) {
    case Step::Kind::kHostReduce: {
      const bool between_hosts = block.steps.size() > 2;
      return host_.host_reduce(index, lane.stage, between_hosts ? partial_of(lane) : nullptr) ==
             HostCall::Outcome::kDone;
    }
    case Step::Kind::kHostDeliver:
      return host_.host_deliver(index, lane.stage) == HostCall::Outcome::kDone;
    case Step::Kind::kReduce: return run_reduce(lane, step, range, block);
    case Step::Kind::kReceive: {
      const Incoming* incoming = find(lane, step.peers[0], Phase::kDown);
      return incoming != nullptr && incoming->complete;
    }
    case Step::Kind::kSend: return run_send(index, lane, step, range, block);
    case Step::Kind::kCopy: {
      const std::byte* from = bytes_of(Buffer::kInput, lane, range, block);
      auto* to = const_cast<std::byte*>(bytes_of(Buffer::kOutput, lane, range, block));
      if (from != to) std::memmove(to, from, bytes_in(Buffer::kOutput, range));
      return true;
    }
  }
  return true;
}

bool Execution::run_reduce(Lane& lane, const Step& step, const LaneRange& range,
                           const Block& block) {
  inputs_.clear();
  inputs_.push_back({.data = bytes_of(step.from, lane, range, block),
                     .partial = step.from == Buffer::kPartial});
  for (size_t i = 0; i < step.peers.size(); ++i) {
    const Incoming* incoming = find(lane, step.peers[i], Phase::kUp);
    if (incoming == nullptr || !incoming->complete) return false;
    inputs_.push_back({.data = incoming->data, .partial = step.partial[i]});
  }
  const bool partial = step.into == Buffer::kPartial;
  std::byte* const output =
      partial ? partial_of(lane)
              : const_cast<std::byte*>(bytes_of(Buffer::kOutput, lane, range, block));
  reduce({.dtype = operation_.dtype,
          .op = operation_.op,
          .count = range.count,
          .inputs = inputs_,
          .outputs = {&output, 1},
          .output_partial = partial,
          .mean_over = group_->size(),
          .stream = false});
  return true;
}

bool Execution::run_send(size_t index, Lane& lane, const Step& step, const LaneRange& range,
                         const Block& block) {
  if (!eager_)
    for (const Rank peer : step.peers)
      if (!arrived_[static_cast<size_t>(peer)]) return false;
  Frame head = frame(FrameType::kData);
  head.lane = static_cast<uint32_t>(index);
  head.phase = static_cast<uint8_t>(step.phase);
  head.stream = static_cast<uint8_t>(index);
  const size_t bytes = bytes_in(step.from, range);
  head.payload_bytes = bytes;
  const std::byte* data = bytes_of(step.from, lane, range, block);
  lane.sends += static_cast<uint32_t>(step.peers.size());
  const uint64_t cookie = uint64_t{id_} << 32 | (index + 1);
  for (const Rank peer : step.peers)
    executor_->transport_.send(group_->peer(peer), head, {data, bytes}, cookie);
  return true;
}

void Execution::finish_lane(Lane& lane) {
  const size_t bytes = schedule_->chunk_elements * size_of(accumulator_of(operation_.dtype));
  for (const Incoming& incoming : lane.incoming)
    if (incoming.scratch) executor_->give_scratch(incoming.data, bytes);
  lane.incoming.clear();
  if (lane.partial != nullptr) executor_->give_scratch(lane.partial, bytes);
  lane.partial = nullptr;
  lane.done = true;
}

void Execution::complete(Status status) {
  status_ = std::move(status);
  if (host_begun_) {
    // Members that disagree have all met: the channel stays in step and can be used again.
    if (status_.ok() || status_.code() == Code::kInvalid) {
      host_.end();
    } else {
      host_.withdraw();
    }
  }
  if (!on_done_) {
    finished_.store(true, std::memory_order_release);
    if (adopted_) finished_.notify_all();
    return;
  }
  const Done done = std::move(on_done_);
  on_done_ = nullptr;
  finished_.store(true, std::memory_order_release);
  done(status_);
  executor_->release(*this);
}

void Execution::fail(Error error) {
  if (!host_only_) {
    // The transport may still hold these; the caller is about to get them back.
    Transport& transport = executor_->transport_;
    const size_t element = size_of(operation_.dtype);
    transport.forget({input_, input_elements_ * element});
    transport.forget({output_, output_elements_ * element});
    const size_t scratch = schedule_->chunk_elements * size_of(accumulator_of(operation_.dtype));
    for (Lane& lane : lanes_) {
      if (lane.done) continue;
      for (const Incoming& incoming : lane.incoming)
        if (incoming.scratch) transport.forget({incoming.data, scratch});
      if (lane.partial != nullptr) transport.forget({lane.partial, scratch});
      finish_lane(lane);
    }
  }
  complete(std::move(error));
}

void Execution::tell_others(const Error& error) {
  for (Rank rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->self) continue;
    executor_->send_text(group_->peer(rank), frame(FrameType::kAbort), error.message);
  }
}

void Execution::check_left() {
  const PeerId peer = PeerId::unpack(left_.load(std::memory_order_acquire));
  if (finished() || peer == PeerId{}) return;
  for (const Rank rank : awaited())
    if (group_->peer(rank) == peer) return poison(executor_->lost_.at(peer));
}

void Execution::check_deadline(Instant now) {
  if (finished() || now < deadline_) return;
  const auto awaited_ranks = awaited();
  std::string who;
  for (const Rank rank : awaited_ranks) {
    if (!who.empty()) who += ", ";
    who += executor_->options_.describe(group_->peer(rank));
  }
  const bool meeting = state_ == State::kMeeting;
  Error error{Code::kTimeout,
              fmt::format("{} '{}' did not complete within {:.1f} s: {} {}",
                          to_string(operation_.collective), name_, seconds(deadline_ - began_),
                          who.empty() ? "a peer" : who,
                          meeting ? "did not make the same call" : "did not do its part"),
              awaited_ranks.empty() ? PeerId{} : group_->peer(awaited_ranks[0]), {}};
  executor_->broken_groups_.emplace(group_->id, error);
  fail(std::move(error));
}

std::vector<Rank> Execution::awaited() const {
  if (state_ == State::kMeeting) return host_.missing();
  std::vector<Rank> ranks;
  const auto add = [&](Rank rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  for (const uint32_t index : active_) {
    const Lane& lane = lanes_[index];
    const Block& block = schedule_->blocks[range_of(*schedule_, index).block];
    if (lane.done || lane.step >= block.steps.size()) continue;
    const Step& step = block.steps[lane.step];
    for (const Rank peer : step.peers) {
      const bool sends = step.kind == Step::Kind::kSend;
      const auto at = std::find_if(lane.incoming.begin(), lane.incoming.end(), [&](const auto& in) {
        return in.from == peer && in.phase == step.phase && in.complete;
      });
      if (sends ? !arrived_[static_cast<size_t>(peer)] : at == lane.incoming.end()) add(peer);
    }
    if (step.peers.empty() && schedule_->on_host)
      for (const Rank rank : host_.lagging()) add(rank);
  }
  return ranks;
}

// ---- Messages ---------------------------------------------------------------------------------

Frame Execution::frame(FrameType type) const {
  Frame head;
  head.type = static_cast<uint8_t>(type);
  head.collective = static_cast<uint8_t>(operation_.collective);
  head.dtype = static_cast<uint8_t>(operation_.dtype);
  head.op = static_cast<uint8_t>(operation_.op);
  head.epoch = number(executor_->options_.epoch);
  head.sequence = sequence_;
  head.key = key_;
  head.count = operation_.count;
  head.root = operation_.root;
  head.shape = shape_;
  return head;
}

size_t Execution::bytes_in(Buffer buffer, const LaneRange& range) const {
  const DType dtype = buffer == Buffer::kPartial ? accumulator_of(operation_.dtype)
                                                 : operation_.dtype;
  return range.count * size_of(dtype);
}

const std::byte* Execution::bytes_of(Buffer buffer, const Lane& lane, const LaneRange& range,
                                     const Block& block) const {
  const size_t element = size_of(operation_.dtype);
  switch (buffer) {
    case Buffer::kInput: return input_ + (block.input_offset + range.offset) * element;
    case Buffer::kOutput: return output_ + (block.output_offset + range.offset) * element;
    case Buffer::kPartial: return lane.partial;
  }
  return nullptr;
}

std::byte* Execution::partial_of(Lane& lane) {
  if (lane.partial == nullptr)
    lane.partial = executor_->take_scratch(schedule_->chunk_elements *
                                           size_of(accumulator_of(operation_.dtype)));
  return lane.partial;
}

Execution::Incoming* Execution::find(Lane& lane, Rank from, Phase phase) {
  for (Incoming& incoming : lane.incoming)
    if (incoming.from == from && incoming.phase == phase) return &incoming;
  return nullptr;
}

const Step* Execution::receiver_of(size_t block, Rank from, Phase phase) const {
  const Step::Kind kind = phase == Phase::kUp ? Step::Kind::kReduce : Step::Kind::kReceive;
  for (const Step& step : schedule_->blocks[block].steps)
    if (step.kind == kind && std::find(step.peers.begin(), step.peers.end(), from) !=
                                 step.peers.end())
      return &step;
  return nullptr;
}

Result<std::byte*> Execution::place(Rank from, const Frame& head) {
  const auto phase = static_cast<Phase>(head.phase);
  const Error unexpected = invalid(
      fmt::format("a message of '{}' that this rank does not expect (lane {}, phase {}, {} bytes)",
                  name_, head.lane, head.phase, head.payload_bytes));
  if (head.lane >= lanes_.size() || head.phase > 1) return unexpected;
  const LaneRange range = range_of(*schedule_, head.lane);
  const Block& block = schedule_->blocks[range.block];
  const Step* step = receiver_of(range.block, from, phase);
  Lane& lane = lanes_[head.lane];
  if (step == nullptr || lane.done || find(lane, from, phase) != nullptr) return unexpected;
  Incoming incoming{.from = from, .phase = phase, .data = nullptr, .scratch = false,
                    .complete = false};
  size_t bytes = bytes_in(Buffer::kOutput, range);
  if (phase == Phase::kUp) {
    const auto index = static_cast<size_t>(
        std::find(step->peers.begin(), step->peers.end(), from) - step->peers.begin());
    if (step->partial[index]) bytes = bytes_in(Buffer::kPartial, range);
    if (head.payload_bytes != bytes) return unexpected;
    incoming.scratch = true;
    incoming.data = executor_->take_scratch(schedule_->chunk_elements *
                                            size_of(accumulator_of(operation_.dtype)));
  } else {
    if (head.payload_bytes != bytes) return unexpected;
    incoming.data = const_cast<std::byte*>(bytes_of(Buffer::kOutput, lane, range, block));
  }
  lane.incoming.push_back(incoming);
  return incoming.data;
}

void Execution::arrived(Rank from, const Frame& head) {
  if (static_cast<FrameType>(head.type) == FrameType::kArrive) {
    arrived_[static_cast<size_t>(from)] = true;
    return;
  }
  // A message that did not match went to waste; the execution ends with that error.
  if (head.lane >= lanes_.size()) return;
  Incoming* incoming = find(lanes_[head.lane], from, static_cast<Phase>(head.phase));
  if (incoming != nullptr) incoming->complete = true;
}

}  // namespace pliant
