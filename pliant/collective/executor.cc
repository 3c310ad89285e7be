#include "pliant/collective/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pliant/base/bytes.h"
#include "pliant/base/defect.h"
#include "pliant/collective/call.h"

namespace pliant {
namespace {
constexpr size_t kNameBytesMax = 256;
constexpr size_t kNamesMax = size_t{1} << 18;
// Ids stay below it; the highest bit of a cookie belongs to the peer store.
constexpr uint32_t kIdMax = 0x7ffffffe;
// A call that takes longer than this asks whether the others have made it too.
constexpr Duration kQuestionAfter = std::chrono::milliseconds(100);
}  // namespace

Executor::Executor(Transport& transport, HostExchange* host, Options options)
    : transport_(transport), host_(host), options_(std::move(options)), epoch_(options_.epoch) {}

Executor::~Executor() {
  for (const auto& [key, binding] : bindings_)
    for (Execution::Lane& lane : binding->execution.lanes_)
      if (!lane.done) binding->execution.finish_lane(lane);
}

// ---- Calls ------------------------------------------------------------------------------------

Status Executor::check_group(const Group& group) const {
  const std::pair<const PeerId, Error>* found = nullptr;
  for (const auto& entry : lost_) {
    const auto& members = group.members;
    if (std::find(members.begin(), members.end(), entry.first) == members.end()) continue;
    // Whoever left in order may have done so because of the one that did not.
    if (found == nullptr || !leaving_.contains(entry.first)) found = &entry;
  }
  if (found != nullptr)
    return Error{found->second.code, found->second.message, found->first, epoch_};
  if (const auto at = broken_groups_.find(group.id); at != broken_groups_.end())
    return Error{at->second.code,
                 "an earlier operation of this group failed: " + at->second.message,
                 at->second.peer, epoch_};
  return {};
}

Result<Executor::Binding*> Executor::bind(const Operation& operation, const Group& group) {
  const auto wrong = [&](const std::string& what) {
    return invalid(
        fmt::format("{} '{}': {}", to_string(operation.collective), operation.name, what));
  };
  if (static_cast<int>(operation.collective) >= kCollectives) return wrong("no such collective");
  if (operation.name.empty() || operation.name.size() > kNameBytesMax)
    return wrong(fmt::format("a name has 1 to {} characters", kNameBytesMax));
  if (is_pair(operation.collective)) {
    if (operation.root < 0 || operation.root >= group.size())
      return wrong(fmt::format("there is no rank {} among {}", operation.root, group.size()));
    if (operation.root == group.self) return wrong("a rank cannot send to itself");
  }
  // Most programs use one name again and again. Both sides of a pair may be of one name.
  if (newest_ != nullptr && newest_->group->id == group.id && newest_->name == operation.name &&
      !is_pair(operation.collective))
    return newest_;
  const uint64_t key = key_of(operation, group);
  auto& slot = bindings_[key];
  if (!is_pair(operation.collective)) newest_ = slot.get();
  if (slot != nullptr) return slot.get();
  if (bindings_.size() > kNamesMax) {
    bindings_.erase(key);
    return Error{Code::kOverloaded,
                 fmt::format("more than {} names of operations; use names again", kNamesMax),
                 {},
                 {}};
  }
  slot = std::make_unique<Binding>();
  slot->group = std::make_shared<const Group>(group);
  slot->name = operation.name;
  slot->execution.executor_ = this;
  slot->execution.group_ = slot->group;
  slot->execution.name_ = slot->name;
  slot->execution.host_binding_ = &slot->host;
  slot->execution.schedule_ = &slot->schedule;
  slot->execution.key_ = key;
  return slot.get();
}

Result<Execution*> Executor::begin(const Operation& operation, const Group& group,
                                   Execution::Done done) {
  const auto bound = bind(operation, group);
  if (!bound) return bound.error();
  Binding& binding = **bound;
  Execution& execution = binding.execution;
  PLIANT_TRY(check_group(group));
  if (!lingering_.empty()) [[unlikely]]
    enter_view();
  if (execution.busy_.exchange(true))
    return invalid(
        fmt::format("operation '{}' is already in flight on this rank; wait for it, or "
                    "use another name",
                    operation.name));
  execution.host_.release_staging();
  if (binding.plan_version == plan_version_ && repeats(operation, binding.last)) {
    prepare_again(binding, operation);
  } else if (const Status right = check_and_prepare(binding, operation); !right) {
    refuse(binding, operation, right.error());
    execution.busy_.store(false);
    return right.error();
  }
  execution.on_done_ = std::move(done);
  if (group.size() == 1) {
    execution.run_alone();
    return &execution;
  }
  if (!execution.host_only_) {
    execution.id_ = next_id_;
    next_id_ = next_id_ % kIdMax + 1;
    by_id_[execution.id_] = &execution;
  }
  execution.begin();
  if (!early_.empty()) take_early(execution);
  execution.advance();
  return &execution;
}

Status Executor::check_and_prepare(Binding& binding, const Operation& operation) {
  binding.last = {};
  PLIANT_TRY(check_call(operation, *binding.group));
  const Operation call = essence(operation, *binding.group);
  PLIANT_TRY(refresh_plan(binding, call));
  prepare(binding, call);
  if (operation.counts.empty() && operation.left_behind.empty()) {
    binding.last = operation;
    binding.last.name = {};
  }
  return {};
}

void Executor::refuse(Binding& binding, const Operation& operation, const Error& error) {
  const Group& group = *binding.group;
  if (group.size() == 1) return;
  Frame frame;
  frame.type = static_cast<uint8_t>(FrameType::kAbort);
  frame.epoch = number(epoch_);
  frame.key = binding.execution.key_;
  frame.sequence = binding.calls++;
  drop_early(frame.key, frame.sequence);
  const std::string text = fmt::format("rank {}: {}", group.self, error.message);
  if (is_pair(operation.collective)) return send_text(group.peer(operation.root), frame, text);
  for (Rank rank = 0; rank < group.size(); ++rank)
    if (rank != group.self) send_text(group.peer(rank), frame, text);
  if (host_ != nullptr && group.local.size() > 1)
    host_->leave(binding.host, group, {frame.key, frame.sequence, text});
}

Status Executor::refresh_plan(Binding& binding, const Operation& call) {
  Signature& known = binding.signature;
  if (binding.plan_version == plan_version_ && known.collective == call.collective &&
      known.count == call.count && known.dtype == call.dtype && known.root == call.root &&
      known.plain_plan == call.plain_plan &&
      std::equal(known.counts.begin(), known.counts.end(), call.counts.begin(), call.counts.end()))
    return {};
  known.collective = call.collective;
  known.count = call.count;
  known.dtype = call.dtype;
  known.root = call.root;
  known.plain_plan = call.plain_plan;
  known.counts.assign(call.counts.begin(), call.counts.end());
  binding.plan_version = 0;
  const Group& group = *binding.group;
  if (group.size() > 1) {
    const CallPlan plan = options_.plan(known, group);
    PLIANT_TRY(check_strategy(plan.strategy, group));
    binding.schedule = make_schedule(known, group, plan);
    if (binding.schedule.on_host && host_ == nullptr)
      return invalid(fmt::format("strategy {} needs shared memory", to_string(plan.strategy)));
    // The two sides of a pair may have planned differently; only the chunks matter to them.
    const std::string text = fmt::format(
        "{} {} {} {}", is_pair(call.collective) ? "" : to_string(plan.strategy), plan.chunk_bytes,
        is_pair(call.collective) ? 0 : plan.cores, fmt::join(known.counts, ","));
    binding.plan_digest = static_cast<uint32_t>(hash64(text));
  }
  binding.plan_version = plan_version_;
  return {};
}

void Executor::prepare(Binding& binding, const Operation& call) {
  Execution& execution = binding.execution;
  const Group& group = *binding.group;
  execution.sequence_ = binding.calls++;
  execution.shape_ = binding.plan_digest + static_cast<uint32_t>(call.left_behind.size());
  execution.partner_ = call.root;
  Operation& mine = execution.operation_;
  mine = call;
  mine.name = {};
  mine.counts = {};
  mine.left_behind = {};
  execution.left_behind_.assign(call.left_behind.begin(), call.left_behind.end());
  if (mine.mean_over == 0)
    mine.mean_over = group.size() + static_cast<int>(call.left_behind.size());
  const Sizes sizes = sizes_of(call, group);
  execution.input_elements_ = sizes.input;
  execution.output_elements_ = sizes.output;
  execution.largest_input_ = sizes.largest_input;
  execution.input_ = static_cast<const std::byte*>(call.input);
  execution.output_ = static_cast<std::byte*>(call.output);
  if (call.input == nullptr && call.output != nullptr)
    execution.input_ = execution.output_ + in_place(call, group).input;
  if (call.collective == Collective::kBarrier) {
    execution.input_ = &execution.barrier_[0];
    execution.output_ = &execution.barrier_[1];
  }
  if (is_pair(call.collective)) {
    mine.root = call.collective == Collective::kSend ? group.self : call.root;
    mine.collective = Collective::kSend;
  }
  execution.host_only_ = binding.schedule.on_host && group.one_host();
  // A result that is small, or that no other rank of the host can reach, is not worth sharing.
  HostArguments small;
  small.dtype = mine.dtype;
  small.largest_input = sizes.largest_input;
  if (mine.shared_result && (!binding.schedule.on_host || group.size() == 1 ||
                             (execution.host_only_ && fits_inline(small, group)))) {
    mine.shared_result = false;
    if (call.output == nullptr) {
      binding.own_result.resize(sizes.output * size_of(mine.dtype));
      execution.output_ = binding.own_result.data();
    }
  }
}

void Executor::prepare_again(Binding& binding, const Operation& operation) {
  Execution& execution = binding.execution;
  execution.sequence_ = binding.calls++;
  execution.operation_.mark = operation.mark;
  execution.operation_.mean_over =
      operation.mean_over == 0 ? binding.group->size() : operation.mean_over;
  execution.input_ = static_cast<const std::byte*>(operation.input);
  execution.output_ = static_cast<std::byte*>(operation.output);
  if (operation.output == nullptr && !execution.operation_.shared_result)
    execution.output_ = binding.own_result.data();
}

void Executor::adopt(Execution& execution, Instant now) {
  if (execution.finished()) return;
  execution.began_ = now;
  execution.deadline_ = now + options_.timeout;
  execution.next_question_ = now + std::min<Duration>(kQuestionAfter, options_.timeout / 8);
  if (!execution.adopted_.exchange(true)) adopted_.push_back(&execution);
}

void Executor::release(Execution& execution) {
  PLIANT_CHECK(execution.finished(), "an operation in flight cannot be released");
  if (execution.release_needs_loop()) {
    by_id_.erase(execution.id_);
    execution.host_.release_staging();
    // Its place stays for advance_all(), which may be looking at it.
    if (execution.adopted_.exchange(false))
      std::replace(adopted_.begin(), adopted_.end(), &execution, static_cast<Execution*>(nullptr));
  }
  execution.host_binding_->busy.store(false, std::memory_order_release);
  execution.busy_.store(false, std::memory_order_release);
}

bool Executor::advance_all(Instant now) {
  bool any = false;
  // An execution that ends may start others, so the list may grow.
  for (size_t i = 0; i < adopted_.size(); ++i) {
    if (adopted_[i] != nullptr) any |= adopted_[i]->advance();
    if (adopted_[i] != nullptr) adopted_[i]->check_left();
    if (adopted_[i] != nullptr) adopted_[i]->check_deadline(now);
  }
  std::erase_if(adopted_, [&](Execution* execution) {
    if (execution == nullptr) return true;
    if (!execution->finished()) return false;
    execution->adopted_.store(false, std::memory_order_release);
    return true;
  });
  return any;
}

bool Executor::waits_for_host() const {
  return std::any_of(adopted_.begin(), adopted_.end(), [](const Execution* execution) {
    return execution != nullptr && execution->schedule_->on_host;
  });
}

void Executor::lost(PeerId peer, const Error& error) {
  const bool in_order = leaving_.contains(peer);
  // Whatever broke the link, the reaction is to go on without the peer.
  const bool silent = error.code == Code::kTimeout || error.code == Code::kCancelled;
  const Error told{
      silent ? error.code : Code::kPeerLost,
      in_order ? fmt::format("{} has left the job", options_.describe(peer)) : error.message, peer,
      epoch_};
  if (!lost_.emplace(peer, told).second) return;
  std::erase_if(texts_, [&](const auto& entry) { return entry.second.to == peer; });
  for (auto& [key, queue] : early_)
    std::erase_if(queue, [&](const std::unique_ptr<Early>& early) {
      if (early->from != peer || early->complete) return false;
      early_bytes_ -= early->frame.payload_bytes;
      --early_count_;
      return true;
    });
  for (const auto& [key, binding] : bindings_) {
    const auto& members = binding->group->members;
    if (!binding->execution.busy_.load() ||
        std::find(members.begin(), members.end(), peer) == members.end())
      continue;
    if (!in_order) {
      binding->execution.poison(told, Ending::kAbandoned);
    } else {
      binding->execution.left_.store(true, std::memory_order_release);
    }
  }
}

void Executor::say_goodbye(std::span<const PeerId> peers, PeerId cause) {
  Frame frame;
  frame.type = static_cast<uint8_t>(FrameType::kGoodbye);
  frame.epoch = number(epoch_);
  frame.count = cause.packed();
  for (const PeerId peer : peers)
    if (transport_.linked(peer) || spoken_.contains(peer)) send_text(peer, frame, "");
}

void Executor::cancel_all(const Error& error) {
  for (const auto& [key, binding] : bindings_)
    if (binding->execution.busy_.load()) binding->execution.poison(error, Ending::kAbandoned);
}

// ---- Epochs -----------------------------------------------------------------------------------

void Executor::interrupt(const Error& error) {
  if (test_defect() == Defect::kLostWakeUp) return;
  for (const auto& [key, binding] : bindings_)
    if (binding->execution.busy_.load()) binding->execution.poison(error, Ending::kAbandoned);
}

void Executor::install(Epoch epoch, const FormerPeers& peers) {
  PLIANT_CHECK(epoch >= epoch_, "epochs only grow");
  epoch_ = epoch;
  newest_ = nullptr;
  // One that is still in its caller's hands goes at the next change.
  lingering_.clear();
  std::vector<HostBinding*> former;
  for (const auto& [key, binding] : bindings_) {
    if (binding->execution.busy_.load())
      lingering_.push_back(&binding->execution);
    else
      former.push_back(&binding->host);
  }
  if (host_ != nullptr) host_->retire(former, epoch, peers);
  std::erase_if(bindings_, [&](const auto& entry) {
    return std::find(lingering_.begin(), lingering_.end(), &entry.second->execution) ==
           lingering_.end();
  });
  enter_view();
  for (auto& [key, queue] : early_)
    std::erase_if(queue, [&](const std::unique_ptr<Early>& early) {
      if (!early->complete || early->frame.epoch >= number(epoch_)) return false;
      early_bytes_ -= early->frame.payload_bytes;
      --early_count_;
      return true;
    });
  std::erase_if(early_, [](const auto& entry) { return entry.second.empty(); });
  broken_groups_.clear();
}

void Executor::enter_view() {
  std::erase_if(lingering_, [](const Execution* execution) { return execution->finished(); });
  if (lingering_.empty() && host_ != nullptr) host_->enter(epoch_);
}

std::vector<PeerId> Executor::forget_departed(const Group& group) {
  std::vector<PeerId> in_use;
  if (host_ == nullptr) return in_use;
  host_->forget_departed();
  for (const auto& [key, binding] : bindings_)
    if (const uint64_t owner = binding->host.inherited_from.load(std::memory_order_relaxed);
        owner != 0 && binding->group->id == group.id)
      in_use.push_back(PeerId::unpack(owner));
  return in_use;
}

HandedIn Executor::handed_in(PeerId peer, const Operation& operation, const Group& group) const {
  if (host_ == nullptr) return {};
  const uint64_t key = key_of(operation, group);
  const auto at = bindings_.find(key);
  if (at == bindings_.end() || at->second->calls == 0) return {};
  // This rank may not have got so far as to make the call: the newest is then an older one.
  if (at->second->execution.operation_.mark != operation.mark) return {};
  return host_->handed_in(peer, key, at->second->calls - 1, operation.count);
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
