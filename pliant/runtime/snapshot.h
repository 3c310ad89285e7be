// Snapshots: a member's state, copied into memory that its host's store keeps (docs/STORE.md).
//
// The caller waits for the copy alone; checksums and the hand-over to the store happen in the
// background. A process alone, which no agent started, keeps its snapshots itself.
//
// Snapshots is owned by a Session: any thread. A Snapshot is a handle; one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "pliant/base/dtype.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/runtime/store_client.h"
#include "pliant/runtime/store_gather.h"
#include "pliant/store/vault.h"

namespace pliant {

// A part of a tensor, as a member holds it.
struct SnapshotPiece {
  tensor::TensorInfo tensor;  // as a whole
  tensor::Box box;            // which part of it this is
  Bytes elements;             // row-major
};

class Snapshot {
 public:
  uint64_t step() const { return state_->step; }
  uint64_t bytes() const { return state_->bytes; }
  // For how long the caller was kept: the time of the copy.
  Duration pause() const { return state_->pause; }
  // True once wait() would return at once.
  bool done() const { return state_->done.load(std::memory_order_acquire); }
  // Until all members of this host have handed over their parts of this step, or the session's
  // timeout has passed. After success the version outlives this process.
  Status wait() const;

 private:
  friend class Snapshots;
  struct State {
    uint64_t step = 0;
    uint64_t bytes = 0;
    Duration pause{};
    std::atomic<bool> done = false;
    Status outcome;  // written before `done`
  };
  std::shared_ptr<State> state_;
};

class Snapshots final {
 public:
  static constexpr size_t kInFlightMax = 2;

  struct Options {
    std::optional<StorePlace> place;  // nothing: this process keeps its snapshots itself
    PeerId self = {};
    Duration timeout = std::chrono::seconds(60);
    store::VaultOptions alone = {};  // of a process alone
  };

  explicit Snapshots(Options options);
  // Gives up what is in flight; the store then keeps nothing of it.
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  // Copies; an error if the pieces are no tensors, if there is not enough memory, or (kOverloaded)
  // if kInFlightMax snapshots are not in the store yet.
  Result<Snapshot> take(const store::VaultTicket& ticket, std::span<const SnapshotPiece> pieces);
  // A complete version, in the store's own memory: nothing is copied.
  Result<store::Version::Shared> restore(uint64_t step);
  // The same with these ranges, from other hosts as far as this one does not have them; without
  // any, all that any host wrote (store_gather.h).
  Result<store::Version::Shared> gather(uint64_t step, std::span<const StoreRange> wanted);

 private:
  struct Job {
    std::shared_ptr<Snapshot::State> state;
    std::thread thread;
  };

  void forget_done();
  void finish(const std::shared_ptr<Snapshot::State>& state, const store::VaultTicket& ticket,
              store::VaultPart part);
  Status keep(const store::VaultTicket& ticket, store::VaultPart part);

  const Options options_;
  std::optional<StoreClient> client_;
  Fd cancel_;  // readable once this is being destroyed
  std::mutex mutex_;
  std::vector<Job> jobs_;
  store::Vault alone_;
};

}  // namespace pliant
