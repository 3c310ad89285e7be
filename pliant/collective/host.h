// HostExchange: the part of an operation that runs in the shared memory of one host.
//
// It meets the other members (post, then wait for their posts), checks that all made the same call,
// and then moves each lane in one of three ways, chosen alike by all from what was posted:
//   inline   small inputs are posted with the call; each rank computes its own output. One meeting.
//   direct   all buffers are registered: a lane is reduced once, straight from the inputs into
//   every
//            output, by whoever claims it. No copies.
//   staged   some memory is private: contributions and results pass through slots in shared memory.
// Whoever reduces combines in the order of ranks, so the bits do not depend on who does it.
//
// HostExchange is a resource of one Executor; HostCall is the state of one call, owned by its
// execution. Driven by one thread at a time; never blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "pliant/base/fence.h"
#include "pliant/collective/channel.h"
#include "pliant/collective/group.h"
#include "pliant/collective/reduce.h"
#include "pliant/collective/schedule.h"
#include "pliant/collective/slot_writes.h"
#include "pliant/transport/shm/segment.h"

namespace pliant {

// The segments of a host, as this process has them mapped. Borrowed.
struct HostMemory {
  Segment* own = nullptr;
  std::function<Segment*(PeerId)> segment_of;  // null while it is not there yet
  std::function<void(PeerId)> wake;            // announces a change to a sleeping peer
  // Has another thread run a task; false if that one has too much to do already.
  std::function<bool(std::function<void()>)> aside;
  std::function<unsigned()> core = {};  // that this process runs on now; none: it cannot be told
};

// What a call brings; equal to Operation, resolved.
struct HostArguments {
  uint64_t key = 0;
  uint32_t sequence = 0;
  uint32_t shape = 0;
  Collective collective = Collective::kAllReduce;
  DType dtype = DType::kF32;
  Op op = Op::kSum;
  Rank root = 0;
  size_t count = 0;
  bool shared_result = false;
  const std::byte* input = nullptr;
  size_t input_elements = 0;
  std::byte* output = nullptr;
  size_t output_elements = 0;
  size_t largest_input = 0;  // elements; over all members
  bool host_only = true;     // false: the lanes also pass between hosts
  int mean_over = 1;
  std::span<const std::byte* const> left_behind = {};  // see Operation
  bool marked = false;  // by steps, which all members make one after the other
};

// A peer's channel, once found.
struct HostPeer {
  Rank rank = 0;  // in the group
  PeerId id;
  Segment* segment = nullptr;
  Channel* channel = nullptr;
  size_t index = 0;  // of the channel
};

// Memory for shared results. To have pages of its own zeroed by the kernel takes longer than to
// fill them, so a leader begins with what its predecessor has left, which the members have in use.
struct ResultMemory {
  PeerId owner = {};  // in whose segment it is; none: in the own
  std::span<std::byte> bytes = {};
  std::vector<PeerId> seen_by = {};  // those who have the segment, if its owner has departed
  // Null, or it says whether the pages are there; whoever fills it stops when nobody asks any more.
  std::shared_ptr<std::atomic<bool>> filled = {};
};

// What a name keeps from call to call. Stays at one address.
struct HostBinding {
  int channel = -1;                // in the own segment
  std::vector<HostPeer> peers;     // the group's members on this host, this process included
  std::vector<int> index_of_rank;  // -1: on another host
  size_t self = 0;                 // this process's index among the peers
  uint64_t lanes_staged = 0;       // the leader's count
  ResultMemory result;             // where the leader has put the last shared one
  ResultMemory next_result;        // the leader's own, to follow that of a predecessor
  std::atomic<uint64_t> inherited_from = 0;   // packed: the predecessor whose memory is in use
  std::vector<std::span<std::byte>> retired;  // former results that peers may still read
  std::span<std::byte> own_staging;           // kept by names whose buffers are registered
  // After a call that failed on all members: what their channels must say before the next post. One
  // that is slow to learn of the failure still reads our posts and works on the leader's slots.
  uint64_t settle_at = 0;  // calls; 0: settled
  // Its last call failed on this rank alone: peers may be in it for as long as its view lasts.
  bool abandoned = false;
  // From begin() to the release of the call: its caller may be using the channel without the loop.
  std::atomic<bool> busy = false;
};

// Who may still be in a call of a former view, of this host.
struct FormerPeers {
  // Left out of the view; they may run on until they are gone.
  std::span<const PeerId> at_large = {};
  // Of the new view too, which they may not know yet.
  std::span<const PeerId> members = {};
};

class HostExchange {
 public:
  explicit HostExchange(HostMemory memory) : memory_(std::move(memory)), owners_(kChannels) {}

  // Finds or makes the channel of a key and the way to the peers. `calls`: made so far.
  // kOverloaded if all channels are in use by calls in flight.
  Status bind(HostBinding& binding, const Group& group, uint64_t key, uint32_t calls);
  // Leaves a call that fails on all members. If it was not posted, posts a refusal in its place, so
  // that nobody waits for it.
  struct Leaving {
    uint64_t key;
    uint32_t sequence;
    std::string_view reason;
  };
  void leave(HostBinding& binding, const Group& group, const Leaving& leaving);
  // Members that are still in a call which failed; empty: the next call can be posted.
  std::vector<Rank> unsettled(HostBinding& binding, uint64_t key) const;
  // Announces a change in shared memory to the peers that sleep until there is one.
  void notify(const HostBinding& binding) const;

  // The names of former views end. Their channels and results can be used again, but not while a
  // peer may still read or write them.
  void retire(std::span<HostBinding* const> bindings, Epoch epoch, const FormerPeers& peers);
  // This process has left all calls of views before this one.
  void enter(Epoch epoch);
  void peer_gone(PeerId peer);
  // See Executor.
  HandedIn handed_in(PeerId peer, uint64_t key, uint32_t sequence, size_t count) const;
  // Memory for a shared result, from former ones if one fits. `may_inherit`: also from those of
  // departed leaders.
  Result<ResultMemory> take_result(size_t bytes, const HostBinding& binding, bool may_inherit);
  // The same, new, of the own segment; its pages come by and by.
  Result<ResultMemory> fill_result(size_t bytes);
  // Of its owner's segment; nothing if that is gone.
  std::optional<uint64_t> offset_of(const ResultMemory& memory) const;
  // The memory in which a call puts its shared result.
  std::byte* find_result(HostBinding& binding, size_t bytes, const Post& leader);
  // Results of departed leaders that are not in use by now never will be.
  void forget_departed();
  // Peers write only to what they share by intent, never to each other's outputs: one that was
  // stopped and goes on later must not find a buffer of a newer view. For elastic sessions.
  void keep_outputs_private() { private_outputs_ = true; }
  bool private_outputs() const { return private_outputs_; }

  // The core that this process runs on now, if that can be told.
  std::optional<size_t> core() const;

  SlotWrites& slot_writes() { return slot_writes_; }
  Segment& own() const { return *memory_.own; }
  ControlArea& control() const { return ControlArea::of(memory_.own->control()); }
  // Finds a peer's channel for the key; false while it has none.
  bool resolve(HostPeer& peer, uint64_t key) const;

  // Memory of the own segment for the slots of one call, and its return. Peers may read it until
  // they have finished the call too, so it is given out again only then.
  Result<std::span<std::byte>> take_staging(size_t bytes);
  void return_staging(std::span<std::byte> memory, const HostBinding& binding, uint64_t key,
                      uint64_t calls);

 private:
  struct Waiting {
    std::span<std::byte> memory;
    std::vector<HostPeer> peers;
    uint64_t key;
    uint64_t calls;
  };
  struct Owner {
    HostBinding* binding = nullptr;
    uint64_t key = 0;
  };
  // True if no peer is still in one of the first `calls` calls of the key.
  bool all_finished(const std::vector<HostPeer>& peers, uint64_t key, uint64_t calls) const;
  bool may_be_in_use(const HostBinding& binding, uint64_t key) const;
  int free_channel(uint64_t key);

  // What belongs to former views while one of their members may still be running.
  struct Quarantine {
    Epoch epoch{};                 // of the view that followed
    std::vector<PeerId> at_large;  // until they are gone
    std::vector<PeerId> members;   // until they have entered the view, or are gone
    std::vector<size_t> channels;
    std::vector<ResultMemory> results;
    std::vector<std::span<std::byte>> staging;
  };
  void retire_result(Quarantine& batch, HostBinding& binding);
  template <typename Which>
  void drop_results(Which which);
  // Frees what nobody can be using any more.
  void end_quarantines();

  HostMemory memory_;
  const bool fences_joined_ = join_heavy_fences();
  bool private_outputs_ = false;
  std::vector<Owner> owners_;
  std::vector<bool> quarantined_ = std::vector<bool>(kChannels, false);
  std::vector<Quarantine> quarantines_;
  std::vector<ResultMemory> idle_results_;
  std::vector<PeerId> members_;            // of this host and of this view and the one before
  std::atomic<bool> met_results_ = false;  // a call of this view has got to its result
  std::vector<std::span<std::byte>> idle_staging_;
  std::vector<Waiting> waiting_staging_;
  SlotWrites slot_writes_;
};

// One call. begin(), then ready() until it is true, then post(); meet() until it is true, then
// check() and choose_mode(); then the part that the mode asks for; then end(), or withdraw() if the
// call failed on this rank, or HostExchange::leave() if it fails on all.
class HostCall {
 public:
  enum class Mode : uint8_t { kInline, kDirect, kStaged };
  enum class Outcome : uint8_t { kPending, kDone };

  // The arguments' buffers and everything borrowed stay until the call ends.
  Status begin(HostExchange& host, HostBinding& binding, const Group& group,
               const HostArguments& arguments, const Schedule& schedule);
  // True when the call can be posted.
  bool ready();
  Status post();
  // True when every member of the host has posted.
  bool meet();
  // The error if the members did not make the same call; equal on all of them.
  Status check(std::string_view name) const;
  Mode choose_mode();
  // Members that have not posted, for messages.
  std::vector<Rank> missing() const;
  // Members whose part is awaited after the meeting; all others if that cannot be told.
  std::vector<Rank> lagging() const;
  // Where the result goes: the shared one if that was asked for, the caller's otherwise.
  std::byte* output() const { return output_; }

  // kInline: computes this rank's output.
  void finish_inline();
  // kDirect where anyone may reduce: does up to `lanes_max` lanes; true if it did any.
  bool claim_lanes(size_t lanes_max);
  // kDirect: true when all parts of all lanes are done, by whomever.
  bool direct_done() const;
  bool anyone_reduces() const;

  // The host steps of one lane; `stage` is the lane's memory, 0 at first. `partial`: the reducer
  // leaves an unfinished result there, for the exchange between hosts, and has the finished one in
  // its output when it delivers; null: the reducer finishes it at once.
  Outcome host_reduce(size_t lane, uint8_t& stage, std::byte* partial);
  Outcome host_deliver(size_t lane, uint8_t& stage);

  // Ends the call; release_staging() follows, then or before the next begin().
  void end();
  void withdraw();
  bool holds_staging() const { return !staging_.empty(); }
  void release_staging();

 private:
  Channel& own_channel() const;
  Channel& leader() const { return *binding_->peers[0].channel; }
  const Post& post_of(size_t member) const;
  Status post_buffers(Post& post);
  Status post_result(Post& post);
  // The leader's memory for a shared result.
  Status provide_result(size_t bytes);
  size_t members() const { return binding_->peers.size(); }
  bool reducer_is_self(const Block& block) const;
  // All members can work at once: the lanes that anyone may reduce go round.
  bool takes_turns() const { return schedule_->workers >= members(); }
  // In how many parts the lanes are claimed, and with which one this process begins.
  size_t claim_parts() const { return std::min(schedule_->workers, kClaimsMax); }
  size_t first_part() const;
  std::optional<size_t> claim_lane(size_t part);
  void reduce_lane(size_t lane);
  bool receives(const Block& block) const;
  std::byte* slot_of(size_t member, size_t lane) const;
  StageSlot& words(size_t lane) const;
  uint64_t use_of(size_t lane) const { return (first_lane_ + lane) / kStageSlots; }
  const std::byte* own_input(const Block& block, const LaneRange& range) const;
  std::byte* own_output(const Block& block, const LaneRange& range) const;
  // What `source` has is there already; its owner may be reading it, so it is not written again.
  bool in_place(const Block& block, const LaneRange& range, size_t source) const;
  const std::byte* registered_input(size_t member, const Block& block,
                                    const LaneRange& range) const;
  void all_outputs(const Block& block, const LaneRange& range);
  void add_left_behind(const Block& block, const LaneRange& range);
  void reduce_into(const LaneRange& range, bool partial);
  void add_done(uint64_t parts);
  Outcome staged_reduce(size_t lane, uint8_t& stage, std::byte* partial);
  Outcome staged_deliver(size_t lane, uint8_t& stage);
  void stage_result(size_t lane, std::byte* partial);
  void write_slot(size_t lane, const std::byte* from, size_t bytes);
  size_t call_bytes() const { return call_.count * element_bytes_; }

  HostExchange* host_ = nullptr;
  HostBinding* binding_ = nullptr;
  const Group* group_ = nullptr;
  const Schedule* schedule_ = nullptr;
  HostArguments call_;
  Mode mode_ = Mode::kInline;
  std::byte* output_ = nullptr;
  std::span<std::byte> staging_;
  size_t element_bytes_ = 1;
  size_t met_ = 0;           // the first members that are known to have posted
  uint64_t first_lane_ = 0;  // lanes staged on the leader's channel before this call
  uint64_t parts_ = 0;       // kDirect: what `done` must reach
  bool stream_ = false;      // the call outgrows the caches
  bool registered_ = false;
  std::vector<ReduceInput> inputs_;  // scratch, kept to save allocations
  std::vector<std::byte*> outputs_;
};

// True if a call is small enough for kInline; equal on all members.
bool fits_inline(const HostArguments& call, const Group& group);

}  // namespace pliant
