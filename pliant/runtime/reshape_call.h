// Inside of reshape.h: one call of reshape(), from the agreement on what is to be done (reshape.cc)
// to the switch (reshape_move.cc). Made by the call and gone with it; the caller's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/runtime/reshape.h"
#include "pliant/runtime/reshape_batches.h"
#include "pliant/runtime/reshape_work.h"

namespace pliant {

inline constexpr uint64_t kReshapeMagic = 0x31504853524e4c50;  // "PLNRSHP1"

// What the members go on from: the state of a generation, for which so many batches of its newest
// layout have counted. ShardedState says what these are.
struct ReshapeGround {
  uint64_t generation = 0;  // 0: nobody has anything
  uint64_t passed = 0;

  bool operator==(const ReshapeGround&) const = default;
};

// What a member says first.
struct ReshapeOpening {
  uint64_t magic = kReshapeMagic;
  uint64_t generation = 0;  // 0: it has just come
  uint64_t passed = 0;
  uint64_t digest = 0;  // of the newest layout
  // Of a change that did not come to its end: what it has of the next layout, and what it knows
  // that all have.
  uint64_t own = 0;
  uint64_t known = 0;
  uint64_t next_digest = 0;
  uint64_t holds_anything = 0;
  uint64_t to_digest = 0;  // 0: what it was asked for is wrong

  bool is_at(const ReshapeGround& ground) const {
    return generation == ground.generation && passed == ground.passed;
  }
  // It has all that counts, but does not know yet that it does.
  bool can_advance_to(const ReshapeGround& ground) const {
    return own > 0 && generation + 1 == ground.generation && own >= ground.passed;
  }
  bool has(const ReshapeGround& ground) const { return is_at(ground) || can_advance_to(ground); }
  // Who holds nothing has missed nothing.
  bool is_newcomer(const ReshapeGround& ground) const {
    return generation == 0 || (holds_anything == 0 && !has(ground));
  }
  uint64_t digest_of(const ReshapeGround& ground) const {
    return is_at(ground) ? digest : next_digest;
  }
};

// A batch counts if anybody knows that all members had it.
ReshapeGround ground_of(std::span<const ReshapeOpening> openings);

// How a member has come through a part of it.
struct ReshapeVerdict {
  uint64_t failed = 0;
  uint64_t code = 0;
  uint64_t table = 0;  // where in its memory the places of its buffers are; 0: out of reach
  char text[480] = {};
};

ReshapeVerdict verdict_of(const Status& status);

// One call of reshape().
class Reshape {
 public:
  Reshape(Session& session, ShardedState& state, const tensor::Layout& to,
          const ReshapeOptions& options)
      : session_(session), state_(state), to_(to), options_(options) {}

  Result<ReshapeReport> run() {
    const Status status = attempt();
    if (status.ok()) return report_;
    undo();
    return status.error();
  }

 private:
  using Part = ShardedState::Part;

  // A layout that tensors come from; several after a change with little memory that has failed.
  struct Origin {
    const Part& part;
    tensor::Layout layout;           // on its real hosts
    std::vector<bool> tensors = {};  // of the new layout: whether it comes from here; empty: all
    std::vector<Rank> givers = {};   // of each old rank: its rank in the view, or -1
    std::vector<Rank> lost = {};
    tensor::Plan plan = {};
    std::optional<ReshapeScene> scene = {};
  };
  // Of each host a number, densely.
  using HostNumbers = std::map<uint32_t, uint32_t>;

  Status attempt() {
    PLIANT_TRY(open());
    PLIANT_TRY(learn_layouts());
    PLIANT_TRY(make_plans());
    lap(report_.seconds.plan);
    PLIANT_TRY(prepare());
    lap(report_.seconds.allocate);
    PLIANT_TRY(move());
    commit();
    lap(report_.seconds.commit);
    return {};
  }
  void undo();

  Status open();
  Status check() const;
  void settle();
  Status learn_layouts();
  std::vector<std::byte> description() const;
  Status take_description(Bytes bytes);
  Status make_plans();
  Result<Origin> plan_from(const Part& part, const tensor::Layout& to, HostNumbers& hosts) const;
  Error incomplete() const;
  Status check_copies() const;
  Status cut();
  Status prepare();
  Status allocate();
  Status tell_places();
  Status map_sources(const std::vector<ReshapeVerdict>& verdicts);
  Status map_sources(size_t index, const std::vector<ReshapeVerdict>& verdicts);
  Status move();
  Status move_batch(uint32_t batch);
  Status run_works(std::deque<ReshapeWork>& works);
  Status verify(const ReshapeWork& work);
  void commit();
  Result<std::vector<ReshapeVerdict>> exchange(const char* name, const ReshapeVerdict& mine);
  Status judge(std::vector<ReshapeVerdict>& all) const;
  const ReshapeOpening& opening_of(Rank rank) const { return openings_[static_cast<size_t>(rank)]; }
  std::string describe(Rank rank) const {
    return session_.view().describe(session_.world().peer(rank));
  }
  void lap(double& seconds_of) {
    const Instant time = now();
    seconds_of += seconds(time - began_);
    began_ = time;
  }

  Session& session_;
  ShardedState& state_;
  const tensor::Layout& to_;
  const ReshapeOptions& options_;
  ReshapeReport report_;
  Instant began_ = now();
  uint64_t done_bytes_ = 0;   // that this member has
  uint64_t total_bytes_ = 0;  // and is to have
  std::vector<Rank> seats_;   // of each new rank, its rank in the view
  std::vector<ReshapeOpening> openings_;
  ReshapeGround ground_;
  bool is_newcomer_ = false;
  std::vector<Origin> origins_;
  std::optional<Part> part_;                   // the new one, until there is memory for it
  std::optional<ShardedState::Buffer> table_;  // places of the old buffers, for local peers
  Batches batches_ = {.count = 1};
  std::vector<tensor::Gone> gone_;
  uint64_t held_bytes_ = 0;     // by this member: what is not kept, of all layouts
  uint64_t largest_bytes_ = 0;  // at any time
};

}  // namespace pliant
