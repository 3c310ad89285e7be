// The messages of an Execution: who has made the call, and where data goes.
#include <fmt/format.h>

#include <algorithm>

#include "pliant/collective/execution.h"
#include "pliant/collective/executor.h"

namespace pliant {
namespace {
// In larger groups a rank asks its neighbours in the tree of the roll call only.
constexpr Rank kAskedMax = 64;

// The tree of the roll call: independent of everything that calls could differ in.
Rank roll_parent(Rank rank) { return (rank - 1) / 2; }
std::vector<Rank> roll_children(Rank rank, Rank size) {
  std::vector<Rank> children;
  for (Rank child = 2 * rank + 1; child <= 2 * rank + 2 && child < size; ++child)
    children.push_back(child);
  return children;
}
}  // namespace

// ---- Who is here ------------------------------------------------------------------------------

// True if this rank could have its result although others made no call, or another one.
bool Execution::needs_roll_call() const {
  const auto is_empty = [](const Block& block) { return block.count == 0; };
  switch (operation_.collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier:
    case Collective::kAllToAll: return operation_.count == 0;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return std::any_of(schedule_->blocks.begin(), schedule_->blocks.end(), is_empty);
    case Collective::kSend: return group_->self == operation_.root || operation_.count == 0;
    default: return true;
  }
}

void Execution::begin_roll_call() {
  below_left_ = static_cast<int>(roll_children(group_->self, group_->size()).size());
  go_on_with_roll_call();
}

void Execution::go_on_with_roll_call() {
  if (below_left_ > 0) return;
  if (group_->self != 0) return send_arrival(roll_parent(group_->self), Arrival::kBelow);
  take_arrival(0, Arrival::kEverybody);
}

void Execution::take_arrival(Rank from, Arrival arrival) {
  if (everybody_) return;
  if (is_pair(operation_.collective)) {
    everybody_ = true;
  } else if (arrival == Arrival::kBelow && from != 0 && roll_parent(from) == group_->self) {
    if (--below_left_ == 0) go_on_with_roll_call();
  } else if (arrival == Arrival::kEverybody && from == roll_parent(group_->self)) {
    everybody_ = true;
    for (const Rank child : roll_children(group_->self, group_->size()))
      send_arrival(child, Arrival::kEverybody);
  }
}

void Execution::send_arrival(Rank to, Arrival arrival) {
  Frame head = frame(FrameType::kArrive);
  head.phase = static_cast<uint8_t>(arrival);
  executor_->transport_.send(group_->peer(to), head, {}, 0);
}

void Execution::ask_after_others() {
  asked_.clear();
  if (is_pair(operation_.collective)) {
    asked_ = {partner_};
  } else if (group_->size() <= kAskedMax) {
    for (Rank rank = 0; rank < group_->size(); ++rank)
      if (rank != group_->self) asked_.push_back(rank);
  } else {
    asked_ = roll_children(group_->self, group_->size());
    if (group_->self != 0) asked_.push_back(roll_parent(group_->self));
  }
  heard_.assign(static_cast<size_t>(group_->size()), false);
  for (const Rank rank : asked_) send_arrival(rank, Arrival::kQuestion);
}

std::vector<Rank> Execution::silent() const {
  std::vector<Rank> ranks;
  for (const Rank rank : asked_)
    if (!heard_[static_cast<size_t>(rank)]) ranks.push_back(rank);
  return ranks;
}

void Execution::check_left() {
  if (finished() || !left_.load(std::memory_order_acquire)) return;
  for (const Rank rank : awaited())
    if (const auto at = executor_->lost_.find(group_->peer(rank)); at != executor_->lost_.end()) {
      // Others may wait for us and not know that we wait for it.
      tell_others(at->second);
      return poison(at->second, Ending::kAbandoned);
    }
}

void Execution::check_deadline(Instant now) {
  if (finished() || now < std::min(next_question_, deadline_)) return;
  if (now >= next_question_) {
    ask_after_others();
    const Instant half = began_ + (deadline_ - began_) / 2;
    next_question_ = next_question_ < half ? half : Instant::max();
  }
  if (now < deadline_) return;
  const bool meeting = state_ == State::kMeeting;
  std::vector<Rank> blamed = silent();
  if (meeting || blamed.empty()) blamed = awaited();
  std::string who;
  for (const Rank rank : blamed)
    who += (who.empty() ? "" : ", ") + executor_->options_.describe(group_->peer(rank));
  const bool absent = meeting || (!host_only_ && !blamed.empty() &&
                                  std::none_of(blamed.begin(), blamed.end(), [&](Rank rank) {
                                    return arrived_[static_cast<size_t>(rank)];
                                  }));
  Error error{Code::kTimeout,
              fmt::format("{} '{}' did not complete within {:.1f} s: {} {}",
                          to_string(operation_.collective), name_, seconds(deadline_ - began_),
                          who.empty() ? "a peer" : who,
                          absent ? "did not make the same call" : "did not do its part"),
              blamed.empty() ? PeerId{} : group_->peer(blamed[0]), executor_->epoch_};
  if (executor_->broken_groups_.emplace(group_->id, error).second) tell_others(error);
  fail(std::move(error), Ending::kAbandoned);
}

std::vector<Rank> Execution::awaited() const {
  if (state_ == State::kSettling) return executor_->host_->unsettled(*host_binding_, key_);
  if (state_ == State::kMeeting) return host_.missing();
  if (state_ == State::kClaiming) return host_.lagging();
  std::vector<Rank> ranks;
  if (lanes_left_ == 0 && !everybody_) {
    if (is_pair(operation_.collective)) return {partner_};
    if (below_left_ > 0) return roll_children(group_->self, group_->size());
    return {roll_parent(group_->self)};
  }
  const auto add = [&](Rank rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  for (const uint32_t index : active_) {
    const Lane& lane = lanes_[index];
    const Block& block = schedule_->blocks[range_of(*schedule_, index).block];
    if (lane.done || lane.step >= block.steps.size()) continue;
    const Action& step = block.steps[lane.step];
    for (const Rank peer : step.peers) {
      const bool sends = step.kind == Action::Kind::kSend;
      const auto at = std::find_if(lane.incoming.begin(), lane.incoming.end(), [&](const auto& in) {
        return in.from == peer && in.phase == step.phase && in.complete;
      });
      if (sends ? !arrived_[static_cast<size_t>(peer)] : at == lane.incoming.end()) add(peer);
    }
    if (step.peers.empty() && schedule_->on_host)
      for (const Rank rank : host_.lagging()) add(rank);
  }
  if (lanes_left_ == 0 && schedule_->on_host && direct_) return host_.lagging();
  if (!ranks.empty()) return ranks;
  // All has come, and some of what was sent was not taken: its receivers do not take it.
  for (const uint32_t index : active_) {
    if (lanes_[index].done || lanes_[index].sends == 0) continue;
    for (const Action& step : schedule_->blocks[range_of(*schedule_, index).block].steps)
      if (step.kind == Action::Kind::kSend)
        for (const Rank peer : step.peers) add(peer);
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
  head.epoch = number(executor_->epoch_);
  head.sequence = sequence_;
  head.key = key_;
  head.count = operation_.count;
  head.root = operation_.root;
  head.shape = shape_;
  return head;
}

size_t Execution::bytes_in(Buffer buffer, const LaneRange& range) const {
  const DType dtype =
      buffer == Buffer::kPartial ? accumulator_of(operation_.dtype) : operation_.dtype;
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

const Action* Execution::receiver_of(size_t block, Rank from, Phase phase) const {
  const Action::Kind kind = phase == Phase::kUp ? Action::Kind::kReduce : Action::Kind::kReceive;
  for (const Action& step : schedule_->blocks[block].steps)
    if (step.kind == kind &&
        std::find(step.peers.begin(), step.peers.end(), from) != step.peers.end())
      return &step;
  return nullptr;
}

Result<std::byte*> Execution::place(Rank from, const Frame& head) {
  const auto phase = static_cast<Phase>(head.phase);
  const auto unexpected = [&] {
    return invalid(fmt::format(
        "a message of '{}' that this rank does not expect (lane {}, phase {}, {} bytes)", name_,
        head.lane, head.phase, head.payload_bytes));
  };
  if (head.lane >= lanes_.size() || head.phase > 1) return unexpected();
  // No result can come before this rank has done its part; before the meeting, `output_` may still
  // be another.
  if (phase == Phase::kDown && schedule_->on_host && state_ != State::kLanes) return unexpected();
  const LaneRange range = range_of(*schedule_, head.lane);
  const Block& block = schedule_->blocks[range.block];
  const Action* step = receiver_of(range.block, from, phase);
  Lane& lane = lanes_[head.lane];
  if (step == nullptr || lane.done || find(lane, from, phase) != nullptr) return unexpected();
  Incoming incoming{
      .from = from, .phase = phase, .data = nullptr, .scratch = false, .complete = false};
  size_t bytes = bytes_in(Buffer::kOutput, range);
  if (phase == Phase::kUp) {
    const auto index = static_cast<size_t>(std::find(step->peers.begin(), step->peers.end(), from) -
                                           step->peers.begin());
    if (step->partial[index]) bytes = bytes_in(Buffer::kPartial, range);
    if (head.payload_bytes != bytes) return unexpected();
    incoming.scratch = true;
    incoming.data = executor_->take_scratch(schedule_->chunk_elements *
                                            size_of(accumulator_of(operation_.dtype)));
  } else {
    if (head.payload_bytes != bytes) return unexpected();
    incoming.data = const_cast<std::byte*>(bytes_of(Buffer::kOutput, lane, range, block));
  }
  lane.incoming.push_back(incoming);
  return incoming.data;
}

void Execution::arrived(Rank from, const Frame& head) {
  const auto rank = static_cast<size_t>(from);
  if (adopted_ && !asked_.empty()) heard_[rank] = true;
  if (host_only_) return;
  arrived_[rank] = true;
  if (static_cast<FrameType>(head.type) == FrameType::kArrive)
    return take_arrival(from, static_cast<Arrival>(head.phase));
  // A message that did not match went to waste; the execution ends with that error.
  if (head.lane >= lanes_.size()) return;
  Incoming* incoming = find(lanes_[head.lane], from, static_cast<Phase>(head.phase));
  if (incoming != nullptr) incoming->complete = true;
}

}  // namespace pliant
