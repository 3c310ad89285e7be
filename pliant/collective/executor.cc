#include "pliant/collective/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "pliant/base/bytes.h"

namespace pliant {
namespace {
constexpr size_t kNameBytesMax = 256;
constexpr size_t kNamesMax = size_t{1} << 18;
constexpr size_t kEarlyBytesMax = size_t{256} << 20;
constexpr size_t kEarlyMessagesMax = size_t{1} << 16;
constexpr size_t kTextBytesMax = 4096;
// Marks the cookie of a text: no execution has this id.
constexpr uint64_t kTextCookie = uint64_t{0xffffffff} << 32;

bool is_pair(Collective collective) {
  return collective == Collective::kSend || collective == Collective::kReceive;
}

size_t total(const Operation& operation, const Group& group) {
  if (operation.counts.empty()) return operation.count * static_cast<size_t>(group.size());
  return std::accumulate(operation.counts.begin(), operation.counts.end(), size_t{0});
}

struct Sizes {
  size_t input = 0;
  size_t output = 0;
  size_t largest_input = 0;
};

Sizes sizes_of(const Operation& operation, const Group& group) {
  const size_t count = operation.count;
  const size_t all = total(operation, group);
  const bool root = operation.root == group.self;
  const bool unequal = !operation.counts.empty();
  const size_t own = unequal ? operation.counts[static_cast<size_t>(group.self)] : count;
  const size_t longest =
      unequal ? *std::max_element(operation.counts.begin(), operation.counts.end()) : count;
  switch (operation.collective) {
    case Collective::kAllReduce:
    case Collective::kBarrier: return {count, count, count};
    case Collective::kReduce: return {count, root ? count : 0, count};
    case Collective::kBroadcast: return {root ? count : 0, count, count};
    case Collective::kAllGather: return {own, all, longest};
    case Collective::kGather: return {own, root ? all : 0, longest};
    case Collective::kScatter: return {root ? all : 0, own, all};
    case Collective::kReduceScatter: return {all, own, all};
    case Collective::kAllToAll: return {all, all, all};
    case Collective::kSend: return {count, 0, count};
    case Collective::kReceive: return {0, count, count};
  }
  return {};
}

uint64_t key_of(const Operation& operation, const Group& group) {
  uint64_t seed = group.id;
  if (is_pair(operation.collective)) {
    const bool sends = operation.collective == Collective::kSend;
    const std::array<Rank, 2> pair = {sends ? group.self : operation.root,
                                      sends ? operation.root : group.self};
    seed = hash64(std::as_bytes(std::span(pair)), seed);
  }
  return std::max<uint64_t>(1, hash64(operation.name, seed));
}
}  // namespace

Executor::Executor(Transport& transport, HostExchange* host, Options options)
    : transport_(transport), host_(host), options_(std::move(options)) {}

Executor::~Executor() = default;

// ---- Calls ------------------------------------------------------------------------------------

Status Executor::check(const Operation& operation, const Group& group) const {
  const auto wrong = [&](const std::string& what) {
    return invalid(fmt::format("{} '{}': {}", to_string(operation.collective), operation.name,
                               what));
  };
  const bool reduces = operation.collective == Collective::kAllReduce ||
                       operation.collective == Collective::kReduce ||
                       operation.collective == Collective::kReduceScatter;
  if (operation.name.empty() || operation.name.size() > kNameBytesMax)
    return wrong(fmt::format("a name has 1 to {} characters", kNameBytesMax));
  if (static_cast<int>(operation.dtype) >= kDTypes || static_cast<int>(operation.op) >= kOps)
    return wrong("unknown type or operator");
  if (reduces && operation.dtype == DType::kBool)
    return wrong("bool can be moved, not reduced; use u8 with min or max");
  if (operation.root < 0 || operation.root >= group.size())
    return wrong(fmt::format("there is no rank {} among {}", operation.root, group.size()));
  if (!operation.counts.empty() &&
      operation.counts.size() != static_cast<size_t>(group.size()))
    return wrong(fmt::format("{} counts for {} ranks", operation.counts.size(), group.size()));
  if (is_pair(operation.collective) && operation.root == group.self)
    return wrong("a rank cannot send to itself");
  if (operation.collective == Collective::kAllToAll && group.size() > 1 && operation.count > 0 &&
      operation.input == operation.output)
    return wrong("needs an output other than its input");
  const Sizes sizes = sizes_of(operation, group);
  const bool barrier = operation.collective == Collective::kBarrier;
  if (!barrier && sizes.output > 0 && operation.output == nullptr && !operation.shared_result)
    return wrong("the output is missing");
  if (!barrier && sizes.input > 0 && operation.input == nullptr && operation.output == nullptr)
    return wrong("the input is missing");
  if (sizes.input > SIZE_MAX / 16 || sizes.output > SIZE_MAX / 16)
    return wrong("the count is too large");
  for (const auto& [peer, error] : lost_)
    if (std::find(group.members.begin(), group.members.end(), peer) != group.members.end())
      return Error{error.code, error.message, peer, options_.epoch};
  if (const auto at = broken_groups_.find(group.id); at != broken_groups_.end())
    return Error{at->second.code,
                 "an earlier operation of this group failed: " + at->second.message,
                 at->second.peer, options_.epoch};
  return {};
}

Result<Execution*> Executor::begin(const Operation& operation, const Group& group,
                                   Execution::Done done) {
  PLIANT_TRY(check(operation, group));
  const uint64_t key = key_of(operation, group);
  auto& slot = bindings_[key];
  if (slot == nullptr) {
    if (bindings_.size() > kNamesMax) {
      bindings_.erase(key);
      return Error{Code::kOverloaded,
                   fmt::format("more than {} names of operations; use names again", kNamesMax), {},
                   {}};
    }
    slot = std::make_unique<Binding>();
    slot->group = std::make_shared<const Group>(group);
    slot->name = operation.name;
  }
  Binding& binding = *slot;
  Execution& execution = binding.execution;
  if (execution.busy_.exchange(true))
    return invalid(fmt::format("operation '{}' is already in flight on this rank; wait for it, or "
                               "use another name", operation.name));
  execution.host_.release_staging();
  refresh_plan(binding, operation);
  prepare(binding, operation);
  execution.key_ = key;
  execution.on_done_ = std::move(done);
  if (group.size() == 1) {
    execution.host_only_ = true;
    const size_t bytes = execution.output_elements_ * size_of(execution.operation_.dtype);
    if (bytes > 0 && execution.output_ != execution.input_)
      std::memmove(execution.output_, execution.input_, bytes);
    execution.host_begun_ = false;
    execution.complete({});
    return &execution;
  }
  if (!execution.host_only_) {
    execution.id_ = next_id_++;
    by_id_[execution.id_] = &execution;
  }
  execution.begin();
  if (!execution.host_only_) take_early(execution);
  execution.advance();
  return &execution;
}

void Executor::refresh_plan(Binding& binding, const Operation& operation) {
  Signature& known = binding.signature;
  const bool barrier = operation.collective == Collective::kBarrier;
  const size_t count = barrier ? 1 : operation.count;
  const DType dtype = barrier ? DType::kU8 : operation.dtype;
  if (binding.plan_version == plan_version_ && known.collective == operation.collective &&
      known.count == count && known.dtype == dtype && known.root == operation.root &&
      std::equal(known.counts.begin(), known.counts.end(), operation.counts.begin(),
                 operation.counts.end()))
    return;
  known.collective = operation.collective;
  known.count = count;
  known.dtype = dtype;
  known.root = operation.root;
  known.counts.assign(operation.counts.begin(), operation.counts.end());
  binding.plan_version = plan_version_;
  if (binding.group->size() == 1) return;
  const Plan plan = options_.plan(known, *binding.group);
  binding.schedule = make_schedule(known, *binding.group, plan.strategy, plan.chunk_bytes);
  const std::string text = fmt::format("{} {} {}", to_string(plan.strategy), plan.chunk_bytes,
                                       fmt::join(known.counts, ","));
  binding.plan_digest = static_cast<uint32_t>(hash64(text));
}

void Executor::prepare(Binding& binding, const Operation& operation) {
  Execution& execution = binding.execution;
  const Group& group = *binding.group;
  execution.executor_ = this;
  if (execution.group_ == nullptr) {
    execution.group_ = binding.group;
    execution.name_ = binding.name;
  }
  execution.host_binding_ = &binding.host;
  execution.schedule_ = &binding.schedule;
  execution.sequence_ = binding.calls++;
  execution.shape_ = binding.plan_digest;
  Operation& mine = execution.operation_;
  mine = operation;
  mine.name = {};
  mine.counts = {};
  mine.count = binding.signature.count;
  mine.dtype = binding.signature.dtype;
  const Sizes sizes = sizes_of(operation, group);
  execution.input_elements_ = sizes.input;
  execution.output_elements_ = sizes.output;
  execution.largest_input_ = sizes.largest_input;
  execution.input_ = static_cast<const std::byte*>(
      operation.input != nullptr ? operation.input : operation.output);
  execution.output_ = static_cast<std::byte*>(operation.output);
  if (operation.collective == Collective::kBarrier) {
    execution.input_ = &execution.barrier_[0];
    execution.output_ = &execution.barrier_[1];
    execution.input_elements_ = execution.output_elements_ = execution.largest_input_ = 1;
    mine.op = Op::kMax;
    mine.root = 0;
  }
  if (is_pair(operation.collective)) {
    mine.root = operation.collective == Collective::kSend ? group.self : operation.root;
    mine.collective = Collective::kSend;
  }
  execution.host_only_ = binding.schedule.on_host && group.one_host();
  // A result that is small, or that no other rank of the host can reach, is not worth sharing.
  const HostArguments small{.dtype = mine.dtype, .largest_input = sizes.largest_input};
  if (mine.shared_result && (!binding.schedule.on_host || group.size() == 1 ||
                             (execution.host_only_ && fits_inline(small, group)))) {
    mine.shared_result = false;
    binding.own_result.resize(sizes.output * size_of(mine.dtype));
    execution.output_ = binding.own_result.data();
  }
}

void Executor::adopt(Execution& execution, Instant now) {
  if (execution.adopted_ || execution.finished()) return;
  execution.began_ = now;
  execution.deadline_ = now + options_.timeout;
  execution.adopted_ = true;
  adopted_.push_back(&execution);
}

void Executor::release(Execution& execution) {
  PLIANT_CHECK(execution.finished(), "an operation in flight cannot be released");
  if (execution.release_needs_loop()) {
    by_id_.erase(execution.id_);
    execution.host_.release_staging();
    if (execution.adopted_) {
      std::erase(adopted_, &execution);
      execution.adopted_ = false;
    }
  }
  execution.busy_.store(false, std::memory_order_release);
}

bool Executor::advance_all(Instant now) {
  bool any = false;
  // An execution that ends may start others, so the list may grow.
  for (size_t i = 0; i < adopted_.size(); ++i) {
    any |= adopted_[i]->advance();
    adopted_[i]->check_left();
    adopted_[i]->check_deadline(now);
  }
  std::erase_if(adopted_, [&](Execution* execution) {
    if (!execution->finished()) return false;
    execution->adopted_ = false;
    return true;
  });
  return any;
}

bool Executor::waits_for_host() const {
  return std::any_of(adopted_.begin(), adopted_.end(),
                     [](const Execution* execution) { return execution->schedule_->on_host; });
}

void Executor::lost(PeerId peer, const Error& error) {
  const bool in_order = leaving_.contains(peer);
  const Error told{error.code,
                   in_order ? fmt::format("{} has left the job", options_.describe(peer))
                            : error.message,
                   peer, options_.epoch};
  if (!lost_.emplace(peer, told).second) return;
  for (const auto& [key, binding] : bindings_) {
    const auto& members = binding->group->members;
    if (!binding->execution.busy_.load() ||
        std::find(members.begin(), members.end(), peer) == members.end())
      continue;
    if (!in_order) {
      binding->execution.poison(told);
    } else {
      binding->execution.left_.store(peer.packed(), std::memory_order_release);
    }
  }
}

void Executor::say_goodbye(std::span<const PeerId> peers) {
  Frame frame;
  frame.type = static_cast<uint8_t>(FrameType::kGoodbye);
  frame.epoch = number(options_.epoch);
  for (const PeerId peer : peers)
    if (transport_.linked(peer)) send_text(peer, frame, "");
}

void Executor::cancel_all(const Error& error) {
  for (const auto& [key, binding] : bindings_)
    if (binding->execution.busy_.load()) binding->execution.poison(error);
}

// ---- Messages ---------------------------------------------------------------------------------

Execution* Executor::find(const Frame& frame) {
  const auto at = bindings_.find(frame.key);
  if (at == bindings_.end()) return nullptr;
  Execution& execution = at->second->execution;
  const bool running = execution.busy_.load() && !execution.finished() && !execution.host_only_ &&
                       execution.sequence_ == frame.sequence;
  return running ? &execution : nullptr;
}

std::byte* Executor::waste(size_t bytes) {
  // The smaller ones are kept: a transport may be writing into them.
  if (waste_.empty() || waste_.back().size() < bytes) waste_.emplace_back(bytes * 2 + 1);
  return waste_.back().data();
}

Result<std::byte*> Executor::place(PeerId from, const Frame& frame) {
  const bool goodbye = frame.type == static_cast<uint8_t>(FrameType::kGoodbye);
  if (frame.epoch != number(options_.epoch) || goodbye) return waste(frame.payload_bytes);
  if (Execution* execution = find(frame)) return place_in(*execution, from, frame);
  const auto at = bindings_.find(frame.key);
  // A call that has ended here, with an error: nobody wants the rest of its data.
  if (at != bindings_.end() && frame.sequence < at->second->calls)
    return waste(frame.payload_bytes);
  return place_early(from, frame);
}

Result<std::byte*> Executor::place_in(Execution& execution, PeerId from, const Frame& frame) {
  const auto type = static_cast<FrameType>(frame.type);
  const auto& members = execution.group_->members;
  const auto at = std::find(members.begin(), members.end(), from);
  if (at == members.end()) return invalid("a message from a peer outside the operation's group");
  const auto rank = static_cast<Rank>(at - members.begin());
  if (type == FrameType::kAbort) return waste(frame.payload_bytes);
  const Frame mine = execution.frame(type);
  const auto describe = [](const Frame& head) {
    return fmt::format("{} of {} x {} {} (root {})",
                       to_string(static_cast<Collective>(head.collective)), head.count,
                       to_string(static_cast<DType>(head.dtype)),
                       to_string(static_cast<Op>(head.op)), head.root);
  };
  if (frame.count != mine.count || frame.collective != mine.collective ||
      frame.dtype != mine.dtype || frame.op != mine.op || frame.root != mine.root ||
      frame.shape != mine.shape) {
    const Error error = invalid(fmt::format(
        "operation '{}' differs between ranks: rank {} calls {}, rank {} calls {}{}",
        execution.name_, rank, describe(frame), execution.group_->self, describe(mine),
        describe(frame) == describe(mine) ? " with other counts or another strategy" : ""));
    execution.tell_others(error);
    execution.poison(error);
    return waste(frame.payload_bytes);
  }
  if (type == FrameType::kArrive) return waste(frame.payload_bytes);
  return execution.place(rank, frame);
}

Result<std::byte*> Executor::place_early(PeerId from, const Frame& frame) {
  if (early_bytes_ + frame.payload_bytes > kEarlyBytesMax || early_count_ >= kEarlyMessagesMax)
    return Error{Code::kOverloaded,
                 fmt::format("{} sends messages of operations that this rank has not called",
                             options_.describe(from)), from, options_.epoch};
  auto early = std::make_unique<Early>();
  early->from = from;
  early->frame = frame;
  early->payload.resize(std::max<size_t>(1, frame.payload_bytes));
  early_bytes_ += frame.payload_bytes;
  ++early_count_;
  std::byte* data = early->payload.data();
  early_[frame.key].push_back(std::move(early));
  return data;
}

void Executor::arrived(PeerId from, const Frame& frame, std::byte* payload) {
  if (frame.epoch != number(options_.epoch)) return;
  if (frame.type == static_cast<uint8_t>(FrameType::kGoodbye)) {
    leaving_.insert(from);
    return;
  }
  if (const auto queue = early_.find(frame.key); queue != early_.end()) {
    for (const auto& early : queue->second) {
      if (early->payload.data() != payload) continue;
      early->complete = true;
      if (Execution* execution = find(frame)) take_early(*execution);
      return;
    }
  }
  if (Execution* execution = find(frame)) arrived_in(*execution, from, frame, payload);
}

void Executor::arrived_in(Execution& execution, PeerId from, const Frame& frame,
                          const std::byte* payload) {
  const auto& members = execution.group_->members;
  const auto rank =
      static_cast<Rank>(std::find(members.begin(), members.end(), from) - members.begin());
  if (static_cast<FrameType>(frame.type) == FrameType::kAbort) {
    const size_t bytes = std::min<size_t>(frame.payload_bytes, kTextBytesMax);
    execution.poison(invalid(std::string(reinterpret_cast<const char*>(payload), bytes)));
  } else {
    execution.arrived(rank, frame);
  }
  execution.advance();
}

void Executor::take_early(Execution& execution) {
  const auto queue = early_.find(execution.key_);
  if (queue == early_.end()) return;
  std::deque<std::unique_ptr<Early>> rest;
  std::deque<std::unique_ptr<Early>> all = std::move(queue->second);
  early_.erase(queue);
  for (auto& early : all) {
    if (!early->complete || early->frame.sequence != execution.sequence_) {
      rest.push_back(std::move(early));
      continue;
    }
    early_bytes_ -= early->frame.payload_bytes;
    --early_count_;
    if (execution.finished()) continue;
    auto to = place_in(execution, early->from, early->frame);
    if (!to) {
      execution.poison(to.error());
      continue;
    }
    if (early->frame.payload_bytes > 0)
      std::memcpy(*to, early->payload.data(), early->frame.payload_bytes);
    arrived_in(execution, early->from, early->frame, *to);
  }
  if (!rest.empty()) early_[execution.key_] = std::move(rest);
}

void Executor::sent(uint64_t cookie) {
  if (cookie >= kTextCookie) {
    texts_.erase(cookie);
    return;
  }
  const auto at = by_id_.find(static_cast<uint32_t>(cookie >> 32));
  if (cookie == 0 || at == by_id_.end()) return;
  Execution::Lane& lane = at->second->lanes_[(cookie & 0xffffffff) - 1];
  PLIANT_CHECK(lane.sends > 0, "a message is sent once");
  --lane.sends;
}

void Executor::send_text(PeerId to, Frame frame, const std::string& text) {
  const uint64_t cookie = kTextCookie | (next_text_++ & 0xffffffff);
  const std::string& kept =
      texts_.emplace(cookie, text.substr(0, kTextBytesMax)).first->second;
  frame.payload_bytes = kept.size();
  transport_.send(to, frame, std::as_bytes(std::span(kept)), cookie);
}

std::byte* Executor::take_scratch(size_t bytes) {
  auto& idle = scratch_[bytes];
  if (idle.empty()) return new std::byte[bytes];
  std::byte* memory = idle.back().release();
  idle.pop_back();
  return memory;
}

void Executor::give_scratch(std::byte* memory, size_t bytes) {
  scratch_[bytes].emplace_back(memory);
}

}  // namespace pliant
