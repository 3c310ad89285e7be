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

  bool empty() const { return parts_.empty(); }
  // True after a change of layout with little memory that failed in the middle: some tensors are in
  // the new layout and the others still in the old one. The next reshape() takes each from where it
  // is; until then nothing below can be used.
  bool is_split() const;
  // The rest needs a state that is neither empty nor split.
  const tensor::Layout& layout() const { return whole().layout; }
  Rank rank() const { return whole().rank; }  // in the layout; -1: this member holds nothing
  const std::vector<PeerId>& peers() const { return whole().peers; }
  const tensor::Holding& holding() const { return whole().holding; }
  std::span<std::byte> buffer(size_t index) const { return whole().buffers[index]->memory; }
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

  // What a member has in one layout.
  struct Part {
    tensor::Layout layout;
    Rank rank = -1;
    std::vector<PeerId> peers = {};  // of each rank of the layout
    tensor::Holding holding = {};
    std::vector<std::shared_ptr<Buffer>> buffers = {};
    uint64_t digest = 0;  // equal on all members that mean the same layout and members
    // Of each tensor of the layout, whether its values are those in this part; empty: all are.
    std::vector<bool> tensors = {};

    bool has(size_t tensor) const { return tensors.empty() || tensors[tensor]; }
    bool uses(const std::shared_ptr<Buffer>& buffer) const;  // one of another part
  };

  // The layout that a change leads to, from the moment on when there is memory for it. Tensors go
  // over in batches; if memory is not short, all in one.
  //
  // A batch leaves the older parts when this member knows that all members have it. If a change
  // ends early, some may know of one batch more than others, and these have it nevertheless: the
  // next reshape() goes on from the most batches that anybody knows of.
  struct Next {
    Part part;
    std::vector<uint32_t> batch_of = {};  // of each tensor of its layout; empty: all in the first
    uint32_t batches = 1;
    uint32_t own = 0;    // batches that this member has, verified
    uint32_t known = 0;  // batches that all members have

    bool is_in(size_t tensor, uint32_t batch) const {
      return batch == (batch_of.empty() ? 0 : batch_of[tensor]);
    }
  };

  // The rank in the view of each rank of the layout, checked.
  static Result<std::vector<Rank>> seats(const Session& session, const tensor::Mesh& mesh,
                                         std::span<const Rank> ranks);
  // A part without memory.
  static Part make_part(const Session& session, const tensor::Layout& layout,
                        std::span<const Rank> seats);

  const Part& whole() const;
  bool holds_anything() const;
  // The bytes of a part's memory for its tensors, without what the next part has taken over.
  uint64_t own_bytes(const Part& part) const;

  // The memory of a part that has a layout and a rank. What the present ones have in the same form
  // is shared with them.
  Status fill_part(Part& part);
  Result<std::shared_ptr<Buffer>> take_memory(const tensor::LocalBuffer& buffer);
  // Gives back what a part has of tensors that are not its own any more, where it does not share
  // memory with the others. Returns the bytes.
  uint64_t discard(const Part& part, const std::vector<bool>& tensors,
                   std::span<const Part> others);
  // All members have one batch more of the next part: its tensors leave the older ones, and their
  // memory goes. Returns the bytes.
  uint64_t pass_batch();
  // The next part counts, as far as its first `batches` go; with all of them it is the only one.
  // Returns those that have nothing any more.
  std::vector<Part> take_next(uint32_t batches);
  // Gives the memory of former parts back, in a thread of its own because that takes long, or keeps
  // it for the next one.
  void retire(std::vector<Part> parts, bool keeps_memory);

  Session* session_;
  // Each tensor has its values in one of them. One, but for what is_split() tells of; the newest is
  // the last.
  std::vector<Part> parts_;
  uint64_t generation_ = 0;  // how many times the parts have changed; 0: there are none
  uint32_t passed_ = 0;      // batches of the newest part that counted when it came
  std::optional<Next> next_;
  std::vector<std::shared_ptr<Buffer>> spare_;  // memory of former layouts that was kept
  std::jthread release_;
};

}  // namespace pliant
