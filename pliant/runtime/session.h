// A Session: this process's membership in a job, and everything that a training loop calls.
//
// Opened once a process; alone (size 1) if nothing launched us, so the same program runs unchanged
// on a laptop. All calls may be made from any thread, several at once. Operations are matched by
// name: ranks may issue them in any order as long as the names agree; one name may be used again
// after it completed. Every wait has a deadline (SessionOptions::timeout); an error names the peer.
// The destructor cancels what is in flight and leaves nothing behind.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/collective/group.h"
#include "pliant/collective/operation.h"
#include "pliant/membership/view.h"
#include "pliant/runtime/options.h"

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

class Session {
 public:
  // With no options: those of the environment that `pliant run` sets; see options.h.
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
  void release(std::span<std::byte> memory);
  template <typename T>
  Result<std::span<T>> allocate_array(size_t count) {
    auto bytes = allocate(count * sizeof(T));
    if (!bytes) return bytes.error();
    return std::span<T>(reinterpret_cast<T*>(bytes->data()), count);
  }

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
  // What `auto` would do now and why: "ring: 16 MiB over 4 hosts, predicted 3.1 ms".
  std::string explain(Collective collective, size_t bytes);

  // A versioned store of whole values: keeps the newest `store_window` versions of each name.
  Status save(std::string_view name, uint64_t version, std::span<const std::byte> value);
  // Fetches a value saved by a peer; kInvalid if it does not hold that version (any more). The
  // version kNewest asks for the newest.
  static constexpr uint64_t kNewest = UINT64_MAX;
  Result<std::vector<std::byte>> request(Rank peer, std::string_view name, uint64_t version);

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pliant
