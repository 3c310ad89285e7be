// A Session: this process's membership in a job, and everything that a training loop calls.
//
// Opened once a process; alone (size 1) if nothing launched us, so the same program runs unchanged
// on a laptop. All calls may be made from any thread, several at once. Operations are matched by
// name: ranks may issue them in any order as long as the names agree; one name may be used again
// after it completed. Every wait has a deadline (SessionOptions::timeout); an error names the peer.
// The destructor cancels what is in flight and leaves nothing behind.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "pliant/collective/group.h"
#include "pliant/collective/operation.h"
#include "pliant/data/sampler.h"
#include "pliant/membership/view.h"
#include "pliant/policy/signals.h"
#include "pliant/runtime/options.h"
#include "pliant/runtime/snapshot.h"
#include "pliant/runtime/stored_value.h"

namespace pliant {

// An asynchronous operation. wait() returns its outcome; dropping it does not cancel it, so the
// buffers must outlive the operation, not this handle.
class Work {
 public:
  Work() = default;
  bool done() const;
  Status wait();

 private:
  friend class Session;
  struct State;
  std::shared_ptr<State> state_;
};

class Steps;

// How members keep registered memory.
enum class StateKind : uint8_t {
  kEqual,  // the same bytes on all members after each step: a newcomer gets parts of several copies
  kOwn,    // each its own: a newcomer gets that of one member whole, all such state of the same one
};
const char* to_string(StateKind kind);  // "equal", "own"

// A value on its way from a peer's store; see Session::start_request. It may be dropped before it
// is there. One thread at a time.
class Request {
 public:
  Request() = default;
  bool done() const;
  // Once. An error: kInvalid if the peer does not hold it, kPeerLost as soon as the peer is known
  // to be gone, kTimeout.
  Result<StoredValue> wait();

 private:
  friend class Session;
  explicit Request(std::shared_ptr<ValueRequest> request);
  std::shared_ptr<ValueRequest> request_;
};

// What a change of the view cost, as one member saw it.
struct StepTimes {
  Duration agree{};     // from the first sign to the agreement on what happens to the open step
  Duration redo{};      // from there to the next commit
  Duration transfer{};  // of the state, to newcomers
  uint64_t transfer_bytes = 0;
};

// True if the view that follows heals it: whoever runs operations between the steps of an elastic
// job goes on to the next step, which says itself what has become of it.
bool next_view_heals(const Error& error);

// How many members the job may have; a maximum of 0: it was not said.
struct SizeLimits {
  int members_min = 1;
  int members_max = 0;

  bool operator==(const SizeLimits&) const = default;
};

// Where the sampler stands, by the committed steps; the same on all members.
struct DataPosition {
  uint64_t epoch = 0;         // of the data, from 0; after the last one the number of epochs
  uint64_t consumed = 0;      // samples of it in committed steps
  uint64_t samples = 0;       // of an epoch
  uint64_t global_batch = 0;  // of the next step, all members of the view together

  bool operator==(const DataPosition&) const = default;
};

// One training step; see Session::begin_step. A handle: the session owns what it stands for.
class Step {
 public:
  Step() = default;
  // False: there is no further step for this member; Session::status() says why, if it is an error.
  explicit operator bool() const { return steps_ != nullptr; }

  // Counts from 1 over the life of the job, whoever its members were.
  uint64_t number() const;
  // True if all members of the view begin this step here and now. If not, some began it in an older
  // view and only have its end before them: whoever runs operations of the session inside steps,
  // such as reshape(), must do without them in this one, and go on to commit().
  bool begun_by_all() const;
  // The numbers of the samples that this member computes, if the session has a sampler; if there
  // are more(), of those alone.
  std::span<const uint64_t> samples() const;
  // The members of the view in which this step was first begun, by rank, and its number. All
  // members of the step know the same ones, also when the view changes inside it.
  const std::vector<PeerId>& begun_by() const;
  uint32_t begun_in() const;
  // The bytes of all inputs that this member has handed in.
  uint64_t handed_in_bytes() const;

  // The batch that the step was dealt out by, all members together; the last step of an epoch may
  // have fewer samples. The same on all members, also in a step during which the view changes: what
  // is derived from it, such as a learning rate, is too.
  uint64_t batch() const;

  // Hands in an input, which must not change before commit() has returned. All members hand in the
  // same names; one name once a step. With several, all but the last run while the next is being
  // computed. kMean divides by the number of members; with a sampler by that of the samples, so
  // hand in the sum over your samples. If `output` is given, commit() copies the result there.
  Status all_reduce(std::string_view name, const void* input, size_t count, DType dtype, Op op,
                    void* output = nullptr);
  // Begins with the input that was handed in last too, which otherwise waits for the next one or
  // for commit(): for a caller that still has to compute.
  void start();

  // Completes the step: on every member of the view that follows, or on none. When members were
  // lost meanwhile, the others finish it without them, from the inputs that they have handed in;
  // nothing is to be computed again. An error: this member is out (kCancelled), or cannot go on.
  Status commit();
  // With SamplerOptions::constant_batch: true if commit() did not end the step but dealt samples of
  // lost members to this one. Add their gradients to those that you have, hand all inputs in again,
  // and commit again:
  //   do { add up samples(); all_reduce(...); if (!commit()) break; } while (more());
  bool more() const;

  // After commit(), until the name is handed in again: the result, which ranks of a host share.
  Result<std::span<const std::byte>> result(std::string_view name) const;
  template <typename T>
  Result<std::span<const T>> result_of(std::string_view name) const {
    auto bytes = result(name);
    if (!bytes) return bytes.error();
    return std::span(reinterpret_cast<const T*>(bytes->data()), bytes->size() / sizeof(T));
  }
  // How many members' inputs are in it, and how many samples.
  int contributors() const;
  uint64_t contributed_samples() const;
  // The numbers of those samples, member by member.
  std::vector<uint64_t> committed_samples() const;

 private:
  friend class Session;
  explicit Step(Steps* steps) : steps_(steps) {}
  Steps* steps_ = nullptr;
};

class Session {
 public:
  // With no options: those of the environment that `pliant run` sets; see options.h. In an elastic
  // job SIGTERM is a notice while the session is open (termination.h): begin_step() ends the loop.
  static Result<std::unique_ptr<Session>> open();
  static Result<std::unique_ptr<Session>> open(const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Rank rank() const;
  Rank size() const;
  Rank local_rank() const;  // among the members on this host
  Rank local_size() const;
  int host_count() const;
  const View& view() const;

  // Memory that the peers of this host can reach: operations on it make no copy. Aligned to 64
  // bytes, zeroed. Any part of it may be used as a buffer. Freed by release() or with the session.
  Result<std::span<std::byte>> allocate(size_t bytes);
  // Makes whole pages of the caller's own registered memory, where they are and with what they
  // hold; see Segment::adopt. They are private again after unshare().
  Status share(std::span<std::byte> memory);
  Status unshare(std::byte* memory);
  bool is_registered(const void* memory, size_t bytes) const;
  void release(std::span<std::byte> memory);
  // Gives the pages of a part of such memory back before the rest; they read as zeroes then.
  void discard(std::span<std::byte> part);
  template <typename T>
  Result<std::span<T>> allocate_array(size_t count) {
    auto bytes = allocate(count * sizeof(T));
    if (!bytes) return bytes.error();
    return std::span<T>(reinterpret_cast<T*>(bytes->data()), count);
  }

  // Where such memory is, for the peers of this host: they read it at peer_memory(). Nothing if no
  // peer can reach it.
  std::optional<uint64_t> place_of(std::span<const std::byte> memory) const;
  // Memory that a peer has allocated, at a place that it has told; read-only. Null if it is of
  // another host or no such memory. Stays readable until the view has changed, even if its owner
  // dies or releases it: what is read then is worth nothing, but it can be read.
  const std::byte* peer_memory(Rank peer, uint64_t place, size_t bytes);

  // The members with these ranks of the view, in this order; the caller must be among them. Purely
  // local: every member of the group makes the same call.
  Result<Group> group(std::span<const Rank> ranks);
  const Group& world() const;

  // Runs one operation; returns when this rank's part is complete and its buffers are the caller's.
  Status run(const Operation& operation);
  Status run(const Operation& operation, const Group& group);
  // Starts one and returns at once.
  Work start(const Operation& operation);
  Work start(const Operation& operation, const Group& group);
  // For a thread that looks after many works: waits until the number of those that have ended is
  // not `known` any more, or for so long, and returns it. It helps them along meanwhile.
  uint64_t await_works(uint64_t known, Duration longest);

  // The common calls, over the world.
  Status all_reduce(std::string_view name, const void* input, void* output, size_t count,
                    DType dtype, Op op);
  Status broadcast(std::string_view name, void* buffer, size_t count, DType dtype, Rank root);
  Status all_gather(std::string_view name, const void* input, void* output, size_t count,
                    DType dtype);
  Status barrier(std::string_view name = "barrier");

  // An all-reduce whose result all ranks of a host share: read-only, valid until this rank uses the
  // same name again. The inputs stay intact.
  Result<std::span<const std::byte>> all_reduce_shared(std::string_view name, const void* input,
                                                       size_t count, DType dtype, Op op);

  // True if every member gave the same bytes.
  Result<bool> consensus(std::string_view name, std::span<const std::byte> bytes);

  // Switches the strategy of later operations ("ring", "auto", "tree:0,0,0,1", ...; see
  // docs/STRATEGIES.md). Collective: returns when all members have switched; an error on every
  // member, and no switch, if they do not agree.
  Status set_strategy(std::string_view strategy);
  std::string strategy() const;
  // Measures latency and bandwidth between the hosts anew and refits the cost model behind `auto`.
  // Collective.
  Status measure_links();
  // What the last measurement found, by the numbers of hosts; empty before the first. The same on
  // all members, newcomers included.
  std::vector<LinkSignals> links() const;
  // How many measurements there were in the life of the job.
  uint64_t links_measured() const;
  // What `auto` would do now and why: "ring: 16 MiB over 4 hosts, predicted 3.1 ms".
  std::string explain(Collective collective, size_t bytes);

  // ---- Elastic training. By one thread, the one that trains; the view changes only in
  // begin_step() and commit(). In a job that is not elastic, and alone, the same loop runs
  // unchanged.

  // Memory that members keep: model, optimizer, counters, seeds. Before the first step; the same
  // names, sizes, types and kinds on all members. A job begins with the state of rank 0, and
  // newcomers get that of the members; both verified by checksum. Fastest in memory of allocate().
  Status register_state(std::string_view name, std::span<std::byte> memory,
                        DType dtype = DType::kU8, StateKind kind = StateKind::kEqual);
  template <typename T>
  Status register_value(std::string_view name, T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return register_state(name, std::as_writable_bytes(std::span(&value, 1)));
  }
  // State without a fixed size: packed by one of the members when newcomers get the state, and
  // given to them. Before the first step; the same names on all members.
  Status register_note(std::string_view name, std::function<std::vector<std::byte>()> pack,
                       std::function<Status(std::span<const std::byte>)> adopt);
  // Deals out the numbers of samples so that every sample of an epoch is in exactly one committed
  // step, whoever comes and goes. Before the first step; equal on all members, and a newcomer that
  // has other options is refused by the name of what differs. With constant_batch every step but
  // the last of an epoch has exactly the global batch; see Step::more().
  Status use_sampler(const SamplerOptions& options);
  // From the next step on. All members make the same call between the same two steps: it is for
  // decisions that everybody makes alike. Newcomers take the members' batch, whatever they asked
  // for themselves. kInvalid inside a step, and for a sampler with a batch per member.
  Status set_global_batch(uint64_t samples);
  // Zeroes without a sampler. Inside a step: before that step.
  DataPosition data_position() const;
  uint64_t data_epoch() const { return data_position().epoch; }
  // The samples of this member in the k-th step after the open one (after the last one, if none is
  // open), provided that nothing changes until then: for reading ahead. What a step really has,
  // Step::samples() says. Empty for k = 0, and behind the last step.
  UpcomingSamples upcoming_samples(size_t steps_ahead) const;
  bool has_sampler() const;
  //   while (Step step = session.begin_step()) { ...; if (step.commit()) apply(); }
  // The state must be that after the last committed step: apply it first.
  Step begin_step();
  // For members that leave the loop together by a decision of their own, after the same step, and
  // not because begin_step() gave none: returns when all of them have committed it. Without it, who
  // leaves first takes its results with it, and a step that is not complete elsewhere is made again
  // without its inputs.
  void finish_steps();
  // Why begin_step() gave no step; ok if the training is complete or this member was asked to
  // leave.
  Status status() const;
  // What the last change of the view cost this member.
  const StepTimes& last_change() const;
  // Members that this one saw go without having been asked to, since it began.
  const std::vector<PeerId>& losses() const;
  bool elastic() const;
  SizeLimits size_limits() const;
  // Asks for another number of members; the job follows as soon as it can. kInvalid at once only if
  // the job is not elastic.
  Status propose_size(int members);

  // ---- Snapshots (docs/STORE.md). The host's agent keeps them, so that they outlive this process.

  // Copies pieces of tensors and returns; the hand-over goes on behind. The version of this step is
  // complete, and can be restored, once every member of this host has made the same call.
  Result<Snapshot> snapshot(uint64_t step, std::span<const SnapshotPiece> pieces);
  // The same with the registered state, of which each member of the host copies its share, and the
  // first of them all that is each member's own: name by name a tensor of one dimension.
  Result<Snapshot> snapshot(uint64_t step);
  // A complete version of this host in the store's own memory, from which any range of any tensor
  // can be read; kNewest is the one completed last.
  Result<store::Version::Shared> restore(uint64_t step);
  // The same with these ranges, of which other hosts send what this one does not have; without any,
  // with all that the members of any host handed over. kInvalid names what no host has any more.
  // If this host has no version at all, the newest is the others' of the latest epoch.
  Result<store::Version::Shared> gather(uint64_t step, std::span<const StoreRange> wanted = {});
  // Fills the registered state out of a version of snapshot(step), of which other hosts send what
  // this one does not have; returns the step. If it fails before anything was written, the message
  // says what does not fit.
  Result<uint64_t> restore_state(uint64_t step);

  // A versioned store of whole values: keeps the newest `store_window` versions of each name.
  Status save(std::string_view name, uint64_t version, std::span<const std::byte> value);
  // The same, of parts that stand behind each other in the value; keeps the newest `window`
  // versions, whose memory later ones use again.
  Status save_parts(std::string_view name, uint64_t version, std::span<const Bytes> parts,
                    int window);
  // Fetches a value saved by a peer; kInvalid if it does not hold that version (any more). The
  // version kNewest asks for the newest.
  static constexpr uint64_t kNewest = UINT64_MAX;
  Result<std::vector<std::byte>> request(Rank peer, std::string_view name, uint64_t version);
  // Asks for it and returns at once. A change of the view does not disturb it, unless the peer
  // goes.
  Request start_request(Rank peer, std::string_view name, uint64_t version);

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pliant
