// An Execution: one operation in flight. A state machine over the lanes of its schedule.
//
// Owned by its Binding (a name has at most one call in flight), driven by one thread at a time:
// either the caller alone (runs_alone(): nothing but shared memory is touched), or whoever holds
// the loop. advance() never blocks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/collective/host.h"
#include "pliant/collective/operation.h"
#include "pliant/collective/strategy.h"
#include "pliant/transport/transport.h"

namespace pliant {

class Executor;

// The types of Frame that belong to collectives.
enum class FrameType : uint8_t {
  kData = 1,
  kArrive,   // "I have made this call"; Frame::phase says what follows from it, see Arrival
  kAbort,    // "this call fails": the error's code is in Frame::phase, its peer in Frame::count
  kGoodbye,  // "I end in order": my closed connection is no failure
};

// Each says that its sender has made the call: large data may be sent to it.
enum class Arrival : uint8_t {
  kHere = 0,
  // The roll call of operations in which a rank could end before others have begun: up and down a
  // binary tree over the ranks, whatever the strategy. Without it, a rank could not learn that
  // another made a different call.
  kBelow,  // "and so has everybody below me"
  kEverybody,
  // "Have you?", when a call takes long. It brings out calls that differ but send each other
  // nothing, and who does not answer is the one to blame at the deadline.
  kQuestion,
};

// How a call that fails ends for the others.
enum class Ending : uint8_t {
  kAbandoned,  // this rank gives up; the group cannot be used again
  kAgreed,     // all members end it with an error; the name can be used again
};

class Execution {
 public:
  // The outcome, and where the result stands.
  using Done = std::function<void(const Status&, const std::byte*)>;

  // Asked by whoever begins it, with the loop held. A call that could not be posted yet still needs
  // memory for that, which calls share.
  bool runs_alone() const { return host_only_ && state_ != State::kSettling; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // Blocks until finished; only after Executor::adopt(), and without the loop.
  void wait_finished() const { finished_.wait(false, std::memory_order_acquire); }
  // The outcome, once finished; to be taken once.
  Status take_status() { return std::move(status_); }
  // Where the result stands (differs from the operation's output for shared results).
  const std::byte* result() const { return output_; }

  // True if release() needs the loop; otherwise the caller may release it alone.
  bool release_needs_loop() const {
    return !host_only_ || host_.holds_staging() || adopted_.load(std::memory_order_acquire);
  }

  // Does what can be done now; true if anything was.
  bool advance();
  // Fails it with kTimeout if its deadline has passed; asks after the others before that.
  void check_deadline(Instant now);
  // Fails it if it waits for a peer that has left in order.
  void check_left();
  // Ends it with an error, at the next advance(). The first call counts.
  void poison(Error error, Ending ending);

 private:
  friend class Executor;

  struct Incoming {
    Rank from = 0;
    Phase phase = Phase::kUp;
    std::byte* data = nullptr;
    bool scratch = false;  // data is ours, not the caller's output
    bool complete = false;
  };
  struct Lane {
    uint16_t step = 0;
    uint8_t stage = 0;  // HostCall's
    bool done = false;
    uint32_t sends = 0;  // not yet taken by the transport
    std::byte* partial = nullptr;
    std::vector<Incoming> incoming;
  };
  enum class State : uint8_t {
    kIdle,
    kSettling,  // members of the host are still in an earlier call, which failed
    kMeeting,   // until all members of the host have posted
    kClaiming,  // in shared memory: whoever comes first does a lane
    kLanes,
  };

  void begin();
  // The whole call of a group of one.
  void run_alone();
  void begin_messages();
  void begin_host();
  bool last_look();
  bool advance_settling();
  bool advance_meeting();
  void enter_lanes();
  bool advance_lanes();
  bool advance_lane(size_t index, Lane& lane);
  bool run_step(size_t index, Lane& lane, const Action& step, const LaneRange& range,
                const Block& block);
  bool run_reduce(Lane& lane, const Action& step, const LaneRange& range, const Block& block);
  bool run_send(size_t index, Lane& lane, const Action& step, const LaneRange& range,
                const Block& block);
  void finish_lane(Lane& lane);
  void complete(Status status);
  void fail(Error error, Ending ending);
  void free_messages();
  void tell_others(const Error& error);
  // Makes the call fail on all ranks. With the loop held.
  void abort(const Error& error);
  bool needs_roll_call() const;
  void begin_roll_call();
  void go_on_with_roll_call();
  void take_arrival(Rank from, Arrival arrival);
  void send_arrival(Rank to, Arrival arrival);
  void ask_after_others();
  Frame frame(FrameType type) const;
  const std::byte* bytes_of(Buffer buffer, const Lane& lane, const LaneRange& range,
                            const Block& block) const;
  size_t bytes_in(Buffer buffer, const LaneRange& range) const;
  std::byte* partial_of(Lane& lane);
  Incoming* find(Lane& lane, Rank from, Phase phase);
  // The step of this rank that takes a message, or null.
  const Action* receiver_of(size_t block, Rank from, Phase phase) const;
  Result<std::byte*> place(Rank from, const Frame& frame);
  void arrived(Rank from, const Frame& frame);
  std::vector<Rank> awaited() const;
  std::vector<Rank> silent() const;

  Executor* executor_ = nullptr;
  std::shared_ptr<const Group> group_;
  std::string name_;
  HostBinding* host_binding_ = nullptr;
  const Schedule* schedule_ = nullptr;

  Operation operation_;  // its name and counts are not kept: see name_ and schedule_
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  size_t input_elements_ = 0;
  size_t output_elements_ = 0;
  size_t largest_input_ = 0;
  uint64_t key_ = 0;
  uint32_t sequence_ = 0;
  uint32_t shape_ = 0;
  uint32_t id_ = 0;   // of this execution in send cookies
  Rank partner_ = 0;  // of a send or receive
  Instant deadline_;
  Instant began_;
  Instant next_question_;
  Done on_done_;

  State state_ = State::kIdle;
  bool host_only_ = false;
  std::atomic<bool> busy_ = false;
  std::atomic<bool> adopted_ = false;
  bool eager_ = true;
  bool direct_ = false;  // the host part runs directly, without stages
  std::atomic<bool> finished_ = false;
  std::atomic<bool> poisoned_ = false;
  std::atomic<bool> left_ = false;  // a member has left in order since the call began
  Status status_;
  HostCall host_;
  bool host_posted_ = false;
  std::vector<Lane> lanes_;
  size_t lanes_left_ = 0;
  size_t next_lane_ = 0;
  std::vector<uint32_t> active_;
  std::vector<bool> arrived_;   // members that have sent anything
  std::vector<bool> sends_me_;  // members whose data this rank receives
  std::vector<bool> heard_;     // members that have sent anything since the last question
  std::vector<Rank> asked_;
  int below_left_ = 0;           // of the roll call: children that have not reported
  bool everybody_ = false;       // all members are known to have made this call
  std::optional<Error> poison_;  // written before poisoned_ is set, like the next
  Ending poison_ending_ = Ending::kAbandoned;
  std::byte barrier_[2] = {};        // a barrier is an all-reduce of one byte
  std::vector<ReduceInput> inputs_;  // scratch
  std::vector<const std::byte*> left_behind_;
};

}  // namespace pliant
