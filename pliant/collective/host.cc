#include "pliant/collective/host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace pliant {

// ---- HostExchange -----------------------------------------------------------------------------

namespace {
// A post that is no call: its rank cannot make it, and the reason stands in its inline data.
constexpr uint8_t kRefusal = 0xff;

void clear_slots(Channel& channel) {
  for (StageSlot& slot : channel.slots)
    for (auto* word : {&slot.arrived, &slot.deposited, &slot.reduced, &slot.collected})
      word->store(0, std::memory_order_relaxed);
}
}  // namespace

bool HostExchange::resolve(HostPeer& peer, uint64_t key) const {
  if (peer.segment == nullptr) peer.segment = memory_.segment_of(peer.id);
  if (peer.segment == nullptr) return false;
  ControlArea& control = ControlArea::of(peer.segment->control());
  if (peer.channel != nullptr && control.keys[peer.index].load(std::memory_order_acquire) == key)
    return true;
  const int index = control.find(key);
  if (index < 0) return false;
  peer.index = static_cast<size_t>(index);
  peer.channel = &control.channels[index];
  return true;
}

bool HostExchange::all_finished(const std::vector<HostPeer>& peers, uint64_t key,
                                uint64_t calls) const {
  return std::all_of(peers.begin(), peers.end(), [&](const HostPeer& peer) {
    // Asked for anew: of a peer that departed it may be gone, while somebody still held the call.
    Segment* const segment = memory_.segment_of(peer.id);
    if (segment == nullptr) return true;
    const ControlArea& control = ControlArea::of(segment->control());
    const int index = control.find(key);
    // A peer that gave the channel up had finished with it.
    return index < 0 || control.channels[index].finished.load(std::memory_order_acquire) >= calls;
  });
}

bool HostExchange::may_be_in_use(const HostBinding& binding, uint64_t key) const {
  const Channel& channel = control().channels[binding.channel];
  return binding.busy.load(std::memory_order_acquire) || binding.abandoned ||
         binding.settle_at != 0 ||  // peers have yet to see that we left
         !all_finished(binding.peers, key, channel.finished.load(std::memory_order_relaxed));
}

int HostExchange::free_channel(uint64_t key) {
  end_quarantines();
  ControlArea& area = control();
  const size_t first = ControlArea::first_way(key);
  for (size_t i = first; i < first + kChannelWays; ++i)
    if (area.keys[i].load(std::memory_order_relaxed) == 0 && !quarantined_[i])
      return static_cast<int>(i);
  for (size_t i = first; i < first + kChannelWays; ++i) {
    HostBinding* const owner = owners_[i].binding;
    if (owner == nullptr || may_be_in_use(*owner, owners_[i].key)) continue;
    owner->channel = -1;
    return static_cast<int>(i);
  }
  return -1;
}

Status HostExchange::bind(HostBinding& binding, const Group& group, uint64_t key, uint32_t calls) {
  if (binding.peers.empty()) {
    binding.index_of_rank.assign(static_cast<size_t>(group.size()), -1);
    for (const Rank rank : group.local) {
      if (rank == group.self) binding.self = binding.peers.size();
      binding.index_of_rank[static_cast<size_t>(rank)] = static_cast<int>(binding.peers.size());
      // Found now, so that the first post already wakes a peer that sleeps.
      binding.peers.push_back({.rank = rank,
                               .id = group.peer(rank),
                               .segment = memory_.segment_of(group.peer(rank)),
                               .channel = nullptr,
                               .index = 0});
    }
  }
  if (binding.channel >= 0) return {};
  const int index = free_channel(key);
  if (index < 0)
    return Error{
        Code::kOverloaded,
        fmt::format("more than {} operations are in flight at once; wait for some", kChannelWays),
        {},
        {}};
  Channel& channel = control().channels[index];
  control().keys[index].store(0, std::memory_order_release);
  for (Channel::Entry& entry : channel.entries) entry.posted.store(0, std::memory_order_relaxed);
  channel.finished.store(calls, std::memory_order_relaxed);
  for (Claims& claims : channel.claims) claims.taken.store(0, std::memory_order_relaxed);
  channel.done.store(0, std::memory_order_relaxed);
  clear_slots(channel);
  control().keys[index].store(key, std::memory_order_release);
  owners_[static_cast<size_t>(index)] = {&binding, key};
  binding.channel = index;
  binding.lanes_staged = 0;
  HostPeer& self = binding.peers[binding.self];
  self.segment = memory_.own;
  self.channel = &channel;
  self.index = static_cast<size_t>(index);
  return {};
}

void HostExchange::leave(HostBinding& binding, const Group& group, const Leaving& leaving) {
  // Without a channel, the peers learn of it by message or at their deadline.
  if (!bind(binding, group, leaving.key, leaving.sequence).ok()) return;
  const uint64_t calls = uint64_t{leaving.sequence} + 1;
  Channel& channel = control().channels[binding.channel];
  // A slow peer may still read the post before the last; it has left when this holds.
  const bool settled = binding.settle_at == 0 || unsettled(binding, leaving.key).empty();
  Channel::Entry& entry = channel.entries[leaving.sequence % 2];
  if (settled && entry.posted.load(std::memory_order_relaxed) != calls) {
    std::byte* text = control().inline_data[binding.channel][leaving.sequence % 2];
    entry.post = {};
    entry.post.key = leaving.key;
    entry.post.collective = kRefusal;
    entry.post.count = std::min(leaving.reason.size(), kInlineBytes);
    std::memcpy(text, leaving.reason.data(), entry.post.count);
    entry.posted.store(calls, std::memory_order_release);
  }
  binding.settle_at = calls;
  channel.finished.store(calls, std::memory_order_release);
  notify(binding);
}

std::vector<Rank> HostExchange::unsettled(HostBinding& binding, uint64_t key) const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < binding.peers.size(); ++i) {
    HostPeer& peer = binding.peers[i];
    if (i != binding.self &&
        (!resolve(peer, key) ||
         peer.channel->finished.load(std::memory_order_acquire) < binding.settle_at))
      ranks.push_back(peer.rank);
  }
  return ranks;
}

void HostExchange::notify(const HostBinding& binding) const {
  // Pairs with the fence of a peer that goes to sleep: it sees our change, or we see its flag.
  light_fence(fences_joined_);
  for (size_t i = 0; i < binding.peers.size(); ++i) {
    const HostPeer& peer = binding.peers[i];
    if (i == binding.self || peer.segment == nullptr) continue;
    if (peer.segment->header().asleep.load(std::memory_order_relaxed) & kWakeForHost)
      memory_.wake(peer.id);
  }
}

std::optional<size_t> HostExchange::core() const {
  return memory_.core ? std::optional<size_t>(memory_.core()) : std::nullopt;
}

Result<std::span<std::byte>> HostExchange::take_staging(size_t bytes) {
  std::erase_if(waiting_staging_, [&](const Waiting& waiting) {
    if (!all_finished(waiting.peers, waiting.key, waiting.calls)) return false;
    idle_staging_.push_back(waiting.memory);
    return true;
  });
  const auto at = std::find_if(idle_staging_.begin(), idle_staging_.end(),
                               [&](const auto& memory) { return memory.size() >= bytes; });
  if (at == idle_staging_.end()) return own().allocate(bytes);
  const std::span<std::byte> memory = *at;
  idle_staging_.erase(at);
  return memory;
}

void HostExchange::return_staging(std::span<std::byte> memory, const HostBinding& binding,
                                  uint64_t key, uint64_t calls) {
  waiting_staging_.push_back({memory, binding.peers, key, calls});
}

HandedIn HostExchange::handed_in(PeerId peer, uint64_t key, uint32_t sequence, size_t count) const {
  Segment* const segment = memory_.segment_of(peer);
  if (segment == nullptr) return {};
  const ControlArea& area = ControlArea::of(segment->control());
  const int index = area.find(key);
  if (index < 0) return {};
  const Channel& channel = area.channels[index];
  const Channel::Entry& entry = channel.entries[sequence % 2];
  if (entry.posted.load(std::memory_order_acquire) != uint64_t{sequence} + 1) return {};
  if (entry.post.key != key || entry.post.count != count || entry.post.collective == kRefusal)
    return {};
  HandedIn given;
  given.finished = channel.finished.load(std::memory_order_acquire) > sequence;
  if (entry.post.input != kNotRegistered) {
    given.data = segment->at(entry.post.input);
  } else if (entry.post.staging == kNotRegistered) {
    given.data = area.inline_data[index][sequence % 2];  // small ones stand beside the post
  }  // staged ones pass through slots and are gone
  return given;
}

bool fits_inline(const HostArguments& call, const Group& group) {
  // Every rank reads every input, so the work grows with the square of the members.
  constexpr size_t kReadBytesMax = size_t{32} << 10;
  const size_t bytes = call.largest_input * size_of(call.dtype);
  return bytes <= kInlineBytes && bytes * static_cast<size_t>(group.size()) <= kReadBytesMax;
}

// ---- HostCall: meeting ------------------------------------------------------------------------

namespace {
constexpr size_t kCacheBytes = size_t{48} << 20;

// What the largest cache is likely to hold of a call: measured, half as much again as its size.
size_t largest_cache_bytes() {
  static const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) * 3 / 2 : 0;
}
}  // namespace

Channel& HostCall::own_channel() const { return *binding_->peers[binding_->self].channel; }

Status HostCall::begin(HostExchange& host, HostBinding& binding, const Group& group,
                       const HostArguments& arguments, const Schedule& schedule) {
  host_ = &host;
  binding_ = &binding;
  group_ = &group;
  schedule_ = &schedule;
  call_ = arguments;
  output_ = call_.output;
  element_bytes_ = size_of(call_.dtype);
  met_ = 0;
  staging_ = {};
  binding.busy.store(true, std::memory_order_relaxed);
  return host.bind(binding, group, call_.key, call_.sequence);
}

bool HostCall::ready() {
  return binding_->settle_at == 0 || host_->unsettled(*binding_, call_.key).empty();
}

Status HostCall::post() {
  if (binding_->settle_at != 0) {
    // The failed call may have left the slots half-way. All members are out of it, and none uses a
    // slot before the leader has posted.
    if (binding_->self == 0) clear_slots(own_channel());
    binding_->lanes_staged = 0;
    binding_->settle_at = 0;
  }
  const size_t parity = call_.sequence % 2;
  Channel::Entry& entry = own_channel().entries[parity];
  Post post;
  post.key = call_.key;
  post.count = call_.count;
  post.shape = call_.shape;
  post.root = call_.root;
  post.collective = static_cast<uint8_t>(call_.collective);
  post.dtype = static_cast<uint8_t>(call_.dtype);
  post.op = static_cast<uint8_t>(call_.op);
  post.shared_result = call_.shared_result ? 1 : 0;
  if (call_.host_only && !call_.shared_result && fits_inline(call_, *group_)) {
    mode_ = Mode::kInline;
    const size_t bytes = call_.input_elements * element_bytes_;
    if (bytes > 0)
      std::memcpy(host_->control().inline_data[binding_->channel][parity], call_.input, bytes);
  } else {
    mode_ = Mode::kStaged;
    PLIANT_TRY(post_buffers(post));
    PLIANT_TRY(post_result(post));
    post.first_lane = binding_->lanes_staged;
  }
  if (!(entry.post == post)) entry.post = post;
  entry.posted.store(uint64_t{call_.sequence} + 1, std::memory_order_release);
  host_->notify(*binding_);
  return {};
}

// Where the peers find this rank's memory, and the slots for what they cannot reach.
Status HostCall::post_buffers(Post& post) {
  Segment& own = host_->own();
  const size_t input_bytes = call_.input_elements * element_bytes_;
  const size_t output_bytes = call_.output_elements * element_bytes_;
  if (own.contains(call_.input, input_bytes)) post.input = own.offset_of(call_.input);
  if (own.contains(call_.output, output_bytes)) post.output = own.offset_of(call_.output);
  const bool input_is_registered = input_bytes == 0 || post.input != kNotRegistered;
  const bool output_is_registered =
      output_bytes == 0 || call_.shared_result || post.output != kNotRegistered;
  registered_ = input_is_registered && output_is_registered;
  const size_t staging_bytes = kStageSlots * schedule_->chunk_elements * element_bytes_;
  if (!registered_) {
    auto memory = host_->take_staging(staging_bytes);
    if (!memory) return memory.error();
    staging_ = *memory;
  } else if (binding_->own_staging.size() < staging_bytes) {
    // Only used if a peer's buffers are not registered, so it usually stays untouched.
    auto memory = own.allocate(staging_bytes);
    if (!memory) return memory.error();
    if (!binding_->own_staging.empty()) binding_->retired.push_back(binding_->own_staging);
    binding_->own_staging = *memory;
  }
  post.staging = own.offset_of(registered_ ? binding_->own_staging.data() : staging_.data());
  return {};
}

Status HostCall::post_result(Post& post) {
  const size_t bytes = call_.count * element_bytes_;
  if (!call_.shared_result || binding_->self != 0 || bytes == 0) return {};
  PLIANT_TRY(provide_result(bytes));
  post.result_owner = binding_->result.owner.packed();
  post.result = *host_->offset_of(binding_->result);
  return {};
}

Status HostCall::provide_result(size_t bytes) {
  ResultMemory& result = binding_->result;
  ResultMemory& next = binding_->next_result;
  const bool inherited = result.owner != PeerId{};
  if (result.bytes.size() < bytes || !host_->offset_of(result)) {
    auto memory = host_->take_result(bytes, *binding_, call_.marked);
    if (!memory) return memory.error();
    if (!inherited && !result.bytes.empty()) binding_->retired.push_back(result.bytes);
    if (!next.bytes.empty()) binding_->retired.push_back(std::exchange(next, {}).bytes);
    result = std::move(*memory);
    return {};
  }
  if (!inherited) return {};
  if (next.bytes.size() >= bytes) {
    if (next.filled->load(std::memory_order_acquire)) result = std::exchange(next, {});
    return {};
  }
  // Not with the first call, which members that have lost somebody are waiting for. Without room
  // for it, the predecessor's stays.
  auto memory = host_->fill_result(bytes);
  if (!memory) return {};
  if (!next.bytes.empty()) binding_->retired.push_back(next.bytes);
  next = std::move(*memory);
  return {};
}

const Post& HostCall::post_of(size_t member) const {
  return binding_->peers[member].channel->entries[call_.sequence % 2].post;
}

bool HostCall::meet() {
  const uint64_t wanted = uint64_t{call_.sequence} + 1;
  for (; met_ < members(); ++met_) {
    HostPeer& peer = binding_->peers[met_];
    if (met_ == binding_->self) continue;
    if (!host_->resolve(peer, call_.key)) return false;
    const Channel::Entry& entry = peer.channel->entries[call_.sequence % 2];
    if (entry.posted.load(std::memory_order_acquire) != wanted || entry.post.key != call_.key)
      return false;
  }
  return true;
}

std::vector<Rank> HostCall::missing() const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < members(); ++i) {
    HostPeer& peer = binding_->peers[i];
    if (i == binding_->self) continue;
    // meet() stops at the first that is missing, so those behind it may not have been looked for.
    const Channel::Entry* entry =
        host_->resolve(peer, call_.key) ? &peer.channel->entries[call_.sequence % 2] : nullptr;
    if (entry == nullptr ||
        entry->posted.load(std::memory_order_acquire) != uint64_t{call_.sequence} + 1)
      ranks.push_back(peer.rank);
  }
  return ranks;
}

std::vector<Rank> HostCall::lagging() const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < members(); ++i) {
    const HostPeer& peer = binding_->peers[i];
    const bool finished = peer.channel != nullptr &&
                          peer.channel->finished.load(std::memory_order_acquire) > call_.sequence;
    if (i != binding_->self && !finished) ranks.push_back(peer.rank);
  }
  return ranks;
}

namespace {
std::string describe(const Post& post) {
  return describe_call(post.collective, post.count, post.dtype, post.op, post.root) +
         (post.shared_result ? " with a shared result" : "");
}
bool same_call(const Post& a, const Post& b) {
  return a.count == b.count && a.collective == b.collective && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root && a.shape == b.shape && a.shared_result == b.shared_result;
}
}  // namespace

Status HostCall::check(std::string_view name) const {
  for (size_t i = 0; i < members(); ++i) {
    if (post_of(i).collective != kRefusal) continue;
    const HostPeer& peer = binding_->peers[i];
    const std::byte* text =
        ControlArea::of(peer.segment->control()).inline_data[peer.index][call_.sequence % 2];
    return invalid(std::string(reinterpret_cast<const char*>(text),
                               std::min<size_t>(post_of(i).count, kInlineBytes)));
  }
  for (size_t i = 1; i < members(); ++i) {
    if (same_call(post_of(0), post_of(i))) continue;
    const bool look_alike = describe(post_of(0)) == describe(post_of(i));
    return invalid(fmt::format(
        "operation '{}' differs between ranks: rank {} calls {}, rank {} calls {}{}", name,
        binding_->peers[0].rank, describe(post_of(0)), binding_->peers[i].rank,
        describe(post_of(i)), look_alike ? " with other counts or another strategy" : ""));
  }
  return {};
}

HostCall::Mode HostCall::choose_mode() {
  if (mode_ == Mode::kInline) return mode_;
  for (const std::span<std::byte> memory : binding_->retired) host_->own().release(memory.data());
  binding_->retired.clear();
  first_lane_ = post_of(0).first_lane;
  if (call_.shared_result && post_of(0).result != kNotRegistered)
    output_ = host_->find_result(*binding_, call_bytes(), post_of(0));

  const bool reduces = schedule_->blocks[0].host.reduce;
  const bool everyone_receives = schedule_->blocks[0].host.receiver == HostPart::kEveryone;
  bool direct = true;
  for (size_t i = 0; i < members(); ++i) {
    // Only contributors must have registered inputs; a moved block's receiver copies by itself.
    const bool contributes =
        reduces || post_of(i).input != kNotRegistered ||
        std::any_of(schedule_->blocks.begin(), schedule_->blocks.end(), [&](const Block& block) {
          return block.host.reducer == binding_->peers[i].rank;
        });
    if (contributes && call_.largest_input > 0 && post_of(i).input == kNotRegistered)
      direct = false;
    const bool others_write = reduces && everyone_receives && !call_.shared_result;
    if (others_write && (host_->private_outputs() || post_of(i).output == kNotRegistered))
      direct = false;
  }
  mode_ = direct ? Mode::kDirect : Mode::kStaged;
  const size_t copies = reduces ? members() + 1 : 2;
  // In place, the lines of the result have just been read, unless they had to wait for other hosts;
  // a shared result is a third stream.
  const bool just_read = call_.input == call_.output && call_.host_only;
  const size_t cache_bytes = call_.shared_result ? kCacheBytes * 2 / 3
                             : just_read         ? std::max(kCacheBytes, largest_cache_bytes())
                                                 : kCacheBytes;
  stream_ = call_.count * element_bytes_ * copies > cache_bytes;
  if (mode_ == Mode::kStaged) {
    binding_->lanes_staged = first_lane_ + schedule_->lanes();
    return mode_;
  }
  parts_ = 0;
  for (size_t lane = 0; lane < schedule_->lanes(); ++lane) {
    const LaneRange range = range_of(*schedule_, lane);
    if (range.count == 0) continue;
    const HostPart& part = schedule_->blocks[range.block].host;
    parts_ += !part.reduce && part.receiver == HostPart::kEveryone ? members() : 1;
  }
  return mode_;
}

void HostCall::end() {
  own_channel().finished.store(uint64_t{call_.sequence} + 1, std::memory_order_release);
}

void HostCall::release_staging() {
  if (!staging_.empty())
    host_->return_staging(staging_, *binding_, call_.key, uint64_t{call_.sequence} + 1);
  staging_ = {};
}

void HostCall::withdraw() {
  if (binding_ == nullptr || binding_->channel < 0) return;
  own_channel().entries[call_.sequence % 2].posted.store(0, std::memory_order_release);
  binding_->abandoned = true;
  // The staging of a failed call is not given out again: a peer may still be reading it.
  staging_ = {};
}

}  // namespace pliant
