// A ShardedState: one member's part of a training state that is divided over the members by a
// layout. It lies in memory of Session::allocate(), so that the peers of the host can read it;
// reshape() changes the layout.
//
// Movable; the session outlives it. Used by one thread, the one that trains; reshape() lets others
// copy while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/runtime/session.h"
#include "pliant/tensor/layout.h"

namespace pliant {

class ShardedState {
 public:
  // Of a member that has nothing yet and gets its part by reshape(): one that joins a job.
  explicit ShardedState(Session& session) : session_(&session) {}
  // All elements are zero, padding is filled. Rank r of the layout is rank r of the view, or, if
  // they are given, ranks[r]; a member that is not among them holds nothing. Local: every member
  // makes the same call.
  static Result<ShardedState> allocate(Session& session, const tensor::Layout& layout,
                                       std::span<const Rank> ranks = {});

  ShardedState(ShardedState&&) = default;
  ShardedState& operator=(ShardedState&&) = default;

  // Gives back what ReshapeOptions::keeps_memory has kept.
  void drop_spare() { spare_.clear(); }

  bool empty() const { return !current_; }
  // The rest needs a state that is not empty.
  const tensor::Layout& layout() const { return current_->layout; }
  Rank rank() const { return current_->rank; }  // in the layout; -1: this member holds nothing
  const std::vector<PeerId>& peers() const { return current_->peers; }
  const tensor::Holding& holding() const { return current_->holding; }
  std::span<std::byte> buffer(size_t index) const { return current_->buffers[index]->memory; }
  // The first buffer with that name; the number in holding().buffers.
  std::optional<size_t> find(std::string_view name) const;

 private:
  friend class Reshape;

  // Memory of the session, given back at its end. Two layouts may share it.
  struct Buffer {
    Buffer(Session& owner, std::span<std::byte> bytes) : session(owner), memory(bytes) {}
    ~Buffer() { session.release(memory); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Session& session;
    const std::span<std::byte> memory;
  };

  struct Part {
    tensor::Layout layout;
    Rank rank = -1;
    std::vector<PeerId> peers = {};  // of each rank of the layout
    tensor::Holding holding = {};
    std::vector<std::shared_ptr<Buffer>> buffers = {};
    uint64_t generation = 1;  // how many layouts there were, this one included
    uint64_t digest = 0;      // equal on all members that mean the same layout and members
  };

  // The rank in the view of each rank of the layout, checked.
  static Result<std::vector<Rank>> seats(const Session& session, const tensor::Mesh& mesh,
                                         std::span<const Rank> ranks);
  // A part without memory.
  static Part make_part(const Session& session, const tensor::Layout& layout,
                        std::span<const Rank> seats);

  // The memory of a part that has a layout and a rank. What the current one has in the same form is
  // shared with it.
  Status fill_part(Part& part);
  Result<std::shared_ptr<Buffer>> take_memory(const tensor::LocalBuffer& buffer);
  // Gives the memory of a former part back, in a thread of its own because that takes long, or
  // keeps it for the next one.
  void retire(Part part, bool keeps_memory);

  Session* session_;
  std::optional<Part> current_;
  // While it is not known of all members that they have come through a change of layout: the other
  // one, which may be the newer. The next reshape() decides.
  std::optional<Part> other_;
  std::vector<std::shared_ptr<Buffer>> spare_;  // memory of former layouts that was kept
  std::jthread release_;
};

}  // namespace pliant
