#include "pliant/collective/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pliant/base/defect.h"
#include "pliant/collective/executor.h"

namespace pliant {
namespace {
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
  left_.store(false, std::memory_order_relaxed);
  poison_.reset();
  host_posted_ = false;
  direct_ = false;
  lanes_.clear();
  active_.clear();
  asked_.clear();
  next_lane_ = 0;
  lanes_left_ = 0;
  everybody_ = true;
  if (!host_only_) begin_messages();
  state_ = State::kLanes;
  if (schedule_->on_host) begin_host();
}

void Execution::run_alone() {
  host_only_ = true;
  host_posted_ = false;
  const bool divides = operation_.collective == Collective::kAllReduce &&
                       operation_.op == Op::kMean && operation_.mean_over != 1;
  if (divides || !left_behind_.empty()) {
    inputs_.assign(1, {.data = input_, .partial = false});
    for (const std::byte* data : left_behind_) inputs_.push_back({.data = data, .partial = false});
    reduce({.dtype = operation_.dtype,
            .op = operation_.op,
            .count = operation_.count,
            .inputs = inputs_,
            .outputs = {&output_, 1},
            .output_partial = false,
            .mean_over = operation_.mean_over,
            .stream = false});
  } else if (const size_t bytes = output_elements_ * size_of(operation_.dtype);
             bytes > 0 && output_ != input_) {
    std::memmove(output_, input_, bytes);
  }
  complete({});
}

void Execution::begin_messages() {
  const size_t members = static_cast<size_t>(group_->size());
  arrived_.assign(members, false);
  sends_me_.assign(members, false);
  for (const Block& block : schedule_->blocks)
    for (const Action& step : block.steps)
      if (step.kind == Action::Kind::kReduce || step.kind == Action::Kind::kReceive)
        for (const Rank peer : step.peers) sends_me_[static_cast<size_t>(peer)] = true;
  eager_ = operation_.count * size_of(operation_.dtype) <= kEagerBytes;
  enter_lanes();
  const bool pair = is_pair(operation_.collective);
  for (Rank rank = 0; rank < group_->size(); ++rank)
    if (sends_me_[static_cast<size_t>(rank)] && (!eager_ || pair))
      send_arrival(rank, Arrival::kHere);
  everybody_ = !needs_roll_call();
  if (everybody_) return;
  if (pair) {
    // The sender waits for the receiver's word; the receiver has the data, unless there is none.
    below_left_ = 1;
    if (group_->self == operation_.root && operation_.count == 0)
      send_arrival(partner_, Arrival::kHere);
    return;
  }
  begin_roll_call();
}

void Execution::begin_host() {
  state_ = State::kSettling;
  const HostArguments arguments{.key = key_,
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
                                .host_only = host_only_,
                                .mean_over = operation_.mean_over,
                                .left_behind = left_behind_,
                                .marked = operation_.mark != 0};
  const Status begun =
      host_.begin(*executor_->host_, *host_binding_, *group_, arguments, *schedule_);
  if (begun) {
    advance_settling();
    return;
  }
  // Without a channel only messages can tell the others not to wait for us.
  tell_others(begun.error());
  fail(begun.error(), Ending::kAgreed);
}

void Execution::enter_lanes() {
  lanes_.resize(schedule_->lanes());
  lanes_left_ = lanes_.size();
}

void Execution::poison(Error error, Ending ending) {
  if (poisoned_.load(std::memory_order_relaxed)) return;
  poison_ = std::move(error);
  poison_ending_ = ending;
  poisoned_.store(true, std::memory_order_release);
}

bool Execution::advance() {
  if (finished()) return false;
  if (poisoned_.load(std::memory_order_acquire)) [[unlikely]] {
    if (!last_look()) fail(*poison_, poison_ending_);
    return true;
  }
  switch (state_) {
    case State::kIdle: return false;
    case State::kSettling: return advance_settling();
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

// Whoever died or was left behind may have completed the call before that. Then it is complete for
// all: who has moved on may have changed its input since.
bool Execution::last_look() {
  if (!host_only_ || poison_ending_ != Ending::kAbandoned) return false;
  if (state_ == State::kMeeting && host_.meet() && host_.check(name_).ok()) {
    const HostCall::Mode mode = host_.choose_mode();
    output_ = host_.output();
    if (mode == HostCall::Mode::kInline) {
      host_.finish_inline();
      complete({});
      return true;
    }
    if (mode != HostCall::Mode::kDirect || !host_.anyone_reduces()) return false;
    state_ = State::kClaiming;
  }
  if (state_ != State::kClaiming || !host_.direct_done()) return false;
  complete({});
  return true;
}

bool Execution::advance_settling() {
  if (!host_.ready()) return false;
  if (const Status posted = host_.post(); !posted) {
    // A host_only call may run without the loop; there the refusal in shared memory is enough.
    if (!host_only_) tell_others(posted.error());
    fail(posted.error(), Ending::kAgreed);
    return true;
  }
  host_posted_ = true;
  state_ = State::kMeeting;
  return true;
}

bool Execution::advance_meeting() {
  if (!host_.meet()) return false;
  if (Status same = host_.check(name_); !same) {
    if (!host_only_) tell_others(same.error());
    fail(same.error(), Ending::kAgreed);
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
  // Staged lanes wait for all members of the host, so they take as many slots as there are.
  const bool staged = schedule_->on_host && !direct_;
  const size_t in_flight = staged ? kStageSlots : schedule_->in_flight;
  while (active_.size() < in_flight && next_lane_ < lanes_.size())
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
  if (!everybody_) return any;
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
    const Action& step = block.steps[lane.step];
    const bool message = step.kind == Action::Kind::kReduce ||
                         step.kind == Action::Kind::kReceive || step.kind == Action::Kind::kSend;
    if (!(message && range.count == 0) && !run_step(index, lane, step, range, block)) return any;
    if (finished()) return true;
    ++lane.step;
    any = true;
  }
  if (lane.sends > 0) return any;
  finish_lane(lane);
  return true;
}

bool Execution::run_step(size_t index, Lane& lane, const Action& step, const LaneRange& range,
                         const Block& block) {
  switch (step.kind) {
    case Action::Kind::kHostReduce: {
      const bool between_hosts = block.steps.size() > 2;
      return host_.host_reduce(index, lane.stage, between_hosts ? partial_of(lane) : nullptr) ==
             HostCall::Outcome::kDone;
    }
    case Action::Kind::kHostDeliver:
      return host_.host_deliver(index, lane.stage) == HostCall::Outcome::kDone;
    case Action::Kind::kReduce: return run_reduce(lane, step, range, block);
    case Action::Kind::kReceive: {
      const Incoming* incoming = find(lane, step.peers[0], Phase::kDown);
      return incoming != nullptr && incoming->complete;
    }
    case Action::Kind::kSend: return run_send(index, lane, step, range, block);
    case Action::Kind::kCopy: {
      const std::byte* from = bytes_of(Buffer::kInput, lane, range, block);
      auto* to = const_cast<std::byte*>(bytes_of(Buffer::kOutput, lane, range, block));
      if (from != to) std::memmove(to, from, bytes_in(Buffer::kOutput, range));
      return true;
    }
  }
  return true;
}

bool Execution::run_reduce(Lane& lane, const Action& step, const LaneRange& range,
                           const Block& block) {
  // The result would overwrite what is still being sent: the input of a call in place, or the
  // partial result of the round before.
  if ((step.into == Buffer::kOutput || step.from == step.into) && lane.sends > 0) return false;
  inputs_.clear();
  size_t own_place = 0;
  for (size_t i = 0; i < step.peers.size(); ++i) {
    const Incoming* incoming = find(lane, step.peers[i], Phase::kUp);
    if (incoming == nullptr || !incoming->complete) return false;
    if (step.ordered && step.peers[i] < group_->self) own_place = i + 1;
    inputs_.push_back({.data = incoming->data, .partial = step.partial[i]});
  }
  inputs_.insert(
      inputs_.begin() + static_cast<std::ptrdiff_t>(own_place),
      {.data = bytes_of(step.from, lane, range, block), .partial = step.from == Buffer::kPartial});
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
          .mean_over = operation_.mean_over,
          .stream = false});
  return true;
}

bool Execution::run_send(size_t index, Lane& lane, const Action& step, const LaneRange& range,
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
  if (host_posted_ && status_.ok()) host_.end();
  if (!on_done_) {
    finished_.store(true, std::memory_order_release);
    if (adopted_.load(std::memory_order_relaxed)) finished_.notify_all();
    return;
  }
  const Done done = std::move(on_done_);
  on_done_ = nullptr;
  finished_.store(true, std::memory_order_release);
  done(status_, output_);
  executor_->release(*this);
}

void Execution::fail(Error error, Ending ending) {
  if (!host_only_) free_messages();
  HostExchange* host = executor_->host_;
  if (ending == Ending::kAbandoned) {
    if (host_posted_) host_.withdraw();
  } else if (host != nullptr && group_->local.size() > 1 && !is_pair(operation_.collective)) {
    // Also if this rank's strategy does without shared memory: another's may not.
    host->leave(*host_binding_, *group_, {key_, sequence_, error.message});
  }
  complete(std::move(error));
}

// The transport may still hold memory of this call; the caller is about to get it back.
void Execution::free_messages() {
  Transport& transport = executor_->transport_;
  const size_t element = size_of(operation_.dtype);
  transport.forget({input_, input_elements_ * element});
  // The defect is one of results that stay; elsewhere it would be one of the test.
  if (test_defect() != Defect::kLateWrite || operation_.mark == 0)
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

void Execution::tell_others(const Error& error) {
  Frame head = frame(FrameType::kAbort);
  head.phase = static_cast<uint8_t>(error.code);
  head.count = error.peer.packed();
  if (is_pair(operation_.collective))
    return executor_->send_text(group_->peer(partner_), head, error.message);
  for (Rank rank = 0; rank < group_->size(); ++rank)
    if (rank != group_->self) executor_->send_text(group_->peer(rank), head, error.message);
}

void Execution::abort(const Error& error) {
  if (poisoned_.load(std::memory_order_relaxed)) return;
  tell_others(error);
  poison(error, Ending::kAgreed);
}

}  // namespace pliant
