// What one member has to do in a change of layout, out of the plan: which slices it copies out of
// the memory of its host, which ones it sends and receives, and of which it computes checksums for
// those who take them. Made anew for each change; borrows the plan and the memory. One thread makes
// it and asks for the outcome; run() uses several.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "pliant/runtime/reshape_parcels.h"
#include "pliant/runtime/session.h"
#include "pliant/tensor/layout.h"
#include "pliant/tensor/plan.h"
#include "pliant/tensor/strided.h"

namespace pliant {

// A rank's memory as it can be read here: in this process or in the segment of a peer.
struct ReadableMemory {
  tensor::Holding holding = {};
  std::vector<const std::byte*> buffers = {};  // where each begins; none: it cannot be read
};

struct ReshapeScene {
  Session& session;
  const tensor::Plan& plan;
  const tensor::Layout& from;
  std::vector<Rank> givers = {};  // of each old rank: its rank in the view, or -1
  std::vector<Rank> takers = {};  // of each new rank
  Rank old_rank = -1;             // this member's, or -1
  Rank new_rank = -1;
  // Of old ranks: those that can be read, this member's own among them.
  std::map<Rank, ReadableMemory> sources = {};
  // True if the member with the second rank of the view can read the memory of the first.
  std::function<bool(Rank giver, Rank taker)> is_reachable = {};
  const tensor::Holding* target = nullptr;
  std::vector<std::byte*> target_buffers = {};
  std::vector<bool> is_kept = {};  // of each target buffer: it is one of the old ones
};

// Some tensors of the plan's collection; by default all.
struct TensorChoice {
  std::span<const uint32_t> batch_of = {};
  uint32_t batch = 0;
  bool contains(size_t tensor) const { return batch_of.empty() || batch_of[tensor] == batch; }
};

class ReshapeWork {
 public:
  explicit ReshapeWork(const ReshapeScene& scene, TensorChoice choice = {});

  struct Bytes {
    uint64_t kept = 0;      // in buffers that stay as they are
    uint64_t in_place = 0;  // copied inside this process
    uint64_t inside = 0;    // out of peers of this host
    uint64_t messages = 0;  // received
    uint64_t given = 0;     // to others, each of them counted
    uint64_t to_move() const { return in_place + inside + messages; }
  };
  const Bytes& bytes() const { return bytes_; }

  // How many checksums each member of the view computes, and those of this one after run().
  const std::vector<size_t>& sum_counts() const { return sum_counts_; }
  const std::vector<uint64_t>& own_sums() const { return own_sums_; }

  using Progress = std::function<void(uint64_t done, uint64_t total)>;
  // Copies, sends and receives everything. `on_progress` is called by the caller's thread.
  Status run(size_t threads, const Progress& on_progress);

  // Compares what arrived with the sums of all members, in the order of the view. The error names
  // tensor, box, source and target.
  Status compare(std::span<const uint64_t> all_sums) const;

 private:
  struct Task {
    enum class Kind : uint8_t {
      kCopy,    // inside this process
      kArrive,  // out of a peer's memory, with a sum
      kGive,    // others take it: a sum alone
    };
    Kind kind = Kind::kCopy;
    tensor::Box slice;
    size_t element_bytes = 1;
    tensor::BoxTarget to = {};
    tensor::BoxSource from = {};
    size_t sum = 0;  // in arrived_ or own_sums_
  };
  // What came from elsewhere: its sums are arrived_[first] and on.
  struct Arrival {
    const tensor::Move* move = nullptr;
    size_t first = 0;
    size_t count = 0;
  };
  struct GiftKey {
    Rank from = 0;
    uint32_t tensor = 0;
    uint32_t box = 0;
    bool operator==(const GiftKey&) const = default;
  };
  struct GiftHash {
    size_t operator()(const GiftKey& key) const {
      return (static_cast<size_t>(key.from) * 0x9e3779b9u + key.tensor) * 0x85ebca6bu + key.box;
    }
  };

  size_t element_bytes(const tensor::Move& move) const;
  tensor::Slices slices_of(const tensor::Move& move) const;
  const tensor::Box& box_of(const tensor::Move& move) const { return scene_.plan.boxes[move.box]; }
  Rank giver(const tensor::Move& move) const {
    return scene_.givers[static_cast<size_t>(move.from)];
  }
  Rank taker(const tensor::Move& move) const { return scene_.takers[static_cast<size_t>(move.to)]; }
  const tensor::Piece& piece_of(const tensor::Holding& holding, size_t tensor,
                                const tensor::Box& box) const;
  void count_gifts();
  void add_move(const tensor::Move& move);
  void add_gift(const tensor::Move& move);
  void do_task(const Task& task);
  void do_tasks(const Progress& on_progress);
  void tell(const Progress& on_progress) const;

  const ReshapeScene& scene_;
  const TensorChoice choice_;
  std::vector<size_t> old_tensor_;  // of each tensor of the new layout
  Bytes bytes_;
  std::vector<Task> tasks_;
  std::vector<Parcel> outgoing_;
  std::vector<Parcel> incoming_;
  std::vector<Arrival> arrivals_;
  std::vector<uint64_t> arrived_;                        // sums
  std::unordered_map<GiftKey, size_t, GiftHash> gifts_;  // the first of their giver's sums
  std::unordered_map<GiftKey, bool, GiftHash> summed_;   // of this member's
  std::vector<size_t> sum_counts_;
  std::vector<uint64_t> own_sums_;
  RunningChecksum::Store store_ = RunningChecksum::Store::kCached;
  std::atomic<size_t> next_task_ = 0;
  std::atomic<uint64_t> done_bytes_ = 0;
};

}  // namespace pliant
