// The messages of an Executor: which call they belong to, and what is too much.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "pliant/base/bytes.h"
#include "pliant/base/defect.h"
#include "pliant/collective/executor.h"

namespace pliant {
namespace {
constexpr size_t kEarlyBytesMax = size_t{256} << 20;
constexpr size_t kEarlyMessagesMax = size_t{1} << 16;
constexpr size_t kTextBytesMax = 4096;
// What may come in one message that nobody wants: more than a chunk has.
constexpr size_t kWasteBytesMax = size_t{64} << 20;
// Marks the cookie of a text: no execution has this id.
constexpr uint64_t kTextCookie = uint64_t{0x7fffffff} << 32;

bool is_question(const Frame& frame) {
  return frame.type == static_cast<uint8_t>(FrameType::kArrive) &&
         frame.phase == static_cast<uint8_t>(Arrival::kQuestion);
}
}  // namespace

Execution* Executor::find(const Frame& frame) {
  const auto at = bindings_.find(frame.key);
  if (at == bindings_.end()) return nullptr;
  Execution& execution = at->second->execution;
  const bool running =
      execution.busy_.load() && !execution.finished() && execution.sequence_ == frame.sequence;
  return running ? &execution : nullptr;
}

bool Executor::is_past(const Frame& frame) const {
  const auto at = bindings_.find(frame.key);
  return at != bindings_.end() && frame.sequence < at->second->calls;
}

Result<std::byte*> Executor::waste(PeerId from, const Frame& frame) {
  const uint64_t bytes = frame.payload_bytes;
  if (bytes > kWasteBytesMax)
    return Error{Code::kOverloaded,
                 fmt::format("{} sends a message of {} that no operation awaits",
                             options_.describe(from), human_bytes(bytes)),
                 from, epoch_};
  // The smaller ones are kept: a transport may be writing into them.
  if (waste_.empty() || waste_.back().size() < bytes)
    waste_.emplace_back(std::bit_ceil(std::max<size_t>(bytes, 4096)));
  return waste_.back().data();
}

Result<std::byte*> Executor::place(PeerId from, const Frame& frame) {
  const auto type = static_cast<FrameType>(frame.type);
  spoken_.insert(from);
  if (type < FrameType::kData || type > FrameType::kGoodbye)
    return invalid(
        fmt::format("{} sends a message of unknown type {}", options_.describe(from), frame.type));
  if (type != FrameType::kData && frame.payload_bytes > kTextBytesMax)
    return invalid(fmt::format("{} sends {} where a short text belongs", options_.describe(from),
                               human_bytes(frame.payload_bytes)));
  const bool stale = frame.epoch < number(epoch_) && test_defect() != Defect::kNoEpochFence;
  if (stale || type == FrameType::kGoodbye) return waste(from, frame);
  // The sender has a newer view than this rank, which will get it too.
  if (frame.epoch > number(epoch_)) return place_early(from, frame);
  if (Execution* execution = find(frame)) return place_in(*execution, from, frame);
  // A call that has ended here, with an error: nobody wants the rest of its data.
  if (is_past(frame)) return waste(from, frame);
  return place_early(from, frame);
}

Result<std::byte*> Executor::place_in(Execution& execution, PeerId from, const Frame& frame) {
  const auto type = static_cast<FrameType>(frame.type);
  const auto& members = execution.group_->members;
  const auto at = std::find(members.begin(), members.end(), from);
  if (at == members.end()) return invalid("a message from a peer outside the operation's group");
  const auto rank = static_cast<Rank>(at - members.begin());
  if (type == FrameType::kAbort) {
    std::vector<std::byte>& reason = reasons_[from];
    reason.resize(kTextBytesMax);
    return reason.data();
  }
  const Frame mine = execution.frame(type);
  const auto describe = [](const Frame& head) {
    return describe_call(head.collective, head.count, head.dtype, head.op, head.root);
  };
  if (frame.count != mine.count || frame.collective != mine.collective ||
      frame.dtype != mine.dtype || frame.op != mine.op || frame.root != mine.root ||
      frame.shape != mine.shape) {
    execution.abort(invalid(fmt::format(
        "operation '{}' differs between ranks: rank {} calls {}, rank {} calls {}{}",
        execution.name_, rank, describe(frame), execution.group_->self, describe(mine),
        describe(frame) == describe(mine) ? " with other counts or another strategy" : "")));
    return waste(from, frame);
  }
  if (type == FrameType::kArrive) return waste(from, frame);
  // Equal calls have equal plans: where one needs no messages, no other sends any.
  if (execution.host_only_) return invalid("data for an operation in shared memory");
  return execution.place(rank, frame);
}

Result<std::byte*> Executor::place_early(PeerId from, const Frame& frame) {
  if (frame.payload_bytes > kEarlyBytesMax - early_bytes_ || early_count_ >= kEarlyMessagesMax)
    return Error{Code::kOverloaded,
                 fmt::format("{} sends messages of operations that this rank has not called",
                             options_.describe(from)),
                 from, epoch_};
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
  if (frame.type == static_cast<uint8_t>(FrameType::kGoodbye)) {
    // It may know of a loss that has not come to us yet, and that is what we must name.
    const PeerId cause = PeerId::unpack(frame.count);
    if (cause != PeerId{} && cause != options_.self && !leaving_.contains(cause))
      lost(cause,
           {Code::kPeerLost,
            fmt::format("{} is lost, says {}", options_.describe(cause), options_.describe(from)),
            cause, epoch_});
    leaving_.insert(from);
    return;
  }
  const bool stale = frame.epoch < number(epoch_) && test_defect() != Defect::kNoEpochFence;
  Execution* execution = stale || frame.epoch > number(epoch_) ? nullptr : find(frame);
  if (const auto queue = early_.find(frame.key); queue != early_.end()) {
    for (const auto& early : queue->second) {
      if (early->payload.data() != payload) continue;
      early->complete = true;
      if (execution != nullptr) {
        take_early(*execution);
      } else if (stale || is_past(frame)) {
        drop_early(frame.key, frame.sequence);
      }
      return;
    }
  }
  if (execution != nullptr) {
    arrived_in(*execution, from, frame, payload);
  } else if (!stale && is_question(frame) && is_past(frame)) {
    answer(from, frame);  // who has ended a call had made it
  }
}

void Executor::arrived_in(Execution& execution, PeerId from, const Frame& frame,
                          const std::byte* payload) {
  if (static_cast<FrameType>(frame.type) == FrameType::kAbort) {
    const size_t bytes = std::min<size_t>(frame.payload_bytes, kTextBytesMax);
    std::string text(reinterpret_cast<const char*>(payload), bytes);
    if (text.empty()) text = fmt::format("{} ended the operation", options_.describe(from));
    take_abort(execution, frame, std::move(text));
  } else {
    if (is_question(frame)) answer(from, frame);
    const auto& members = execution.group_->members;
    execution.arrived(
        static_cast<Rank>(std::find(members.begin(), members.end(), from) - members.begin()),
        frame);
  }
  // One that is host_only may be in its caller's hands.
  if (!execution.host_only_) execution.advance();
}

void Executor::take_abort(Execution& execution, const Frame& frame, std::string text) {
  const auto code = static_cast<Code>(frame.phase);
  if (code != Code::kPeerLost && code != Code::kTimeout)
    return execution.poison(invalid(std::move(text)), Ending::kAgreed);
  const Error error{code, std::move(text), PeerId::unpack(frame.count), epoch_};
  if (code == Code::kTimeout) broken_groups_.emplace(execution.group_->id, error);
  execution.poison(error, Ending::kAbandoned);
}

void Executor::answer(PeerId from, const Frame& question) {
  Frame frame = question;
  frame.phase = static_cast<uint8_t>(Arrival::kHere);
  frame.payload_bytes = 0;
  transport_.send(from, frame, {}, 0);
}

void Executor::take_early(Execution& execution) {
  drop_early(execution.key_, execution.sequence_ - 1);
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
      execution.abort(to.error());
      continue;
    }
    if (early->frame.payload_bytes > 0)
      std::memcpy(*to, early->payload.data(), early->frame.payload_bytes);
    arrived_in(execution, early->from, early->frame, *to);
  }
  if (!rest.empty()) early_[execution.key_] = std::move(rest);
}

// Forgets messages for calls up to this one, except those that are still being received.
void Executor::drop_early(uint64_t key, uint32_t sequence_max) {
  const auto queue = early_.find(key);
  if (queue == early_.end() || sequence_max == UINT32_MAX) return;
  std::erase_if(queue->second, [&](const std::unique_ptr<Early>& early) {
    if (!early->complete || early->frame.sequence > sequence_max) return false;
    early_bytes_ -= early->frame.payload_bytes;
    --early_count_;
    return true;
  });
  if (queue->second.empty()) early_.erase(queue);
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
  // Nobody would tell us that it was sent.
  if (lost_.contains(to)) return;
  const uint64_t cookie = kTextCookie | (next_text_++ & 0xffffffff);
  const std::string& kept =
      texts_.emplace(cookie, Text{to, text.substr(0, kTextBytesMax)}).first->second.text;
  frame.payload_bytes = kept.size();
  transport_.send(to, frame, std::as_bytes(std::span(kept)), cookie);
}

}  // namespace pliant
