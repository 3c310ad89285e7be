// Inside of reshape.h: one call of reshape(), from the agreement on what is to be done (reshape.cc)
// to the switch (reshape_move.cc). Made by the call and gone with it; the caller's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/runtime/reshape.h"
#include "pliant/runtime/reshape_batches.h"
#include "pliant/runtime/reshape_work.h"

namespace pliant {

inline constexpr uint64_t kReshapeMagic = 0x31504853524e4c50;  // "PLNRSHP1"

// What a member says first. Generations count layouts; 0: it has none.
struct ReshapeOpening {
  uint64_t magic = kReshapeMagic;
  uint64_t generation = 0;
  uint64_t digest = 0;
  uint64_t other_generation = 0;
  uint64_t other_digest = 0;
  uint64_t to_digest = 0;  // 0: what it was asked for is wrong

  bool has(uint64_t wanted) const { return generation == wanted || other_generation == wanted; }
  // It has just come. What it may have got in a change that did not end does not count.
  bool is_newcomer(uint64_t newest) const { return generation == 0 && other_generation != newest; }
  uint64_t digest_of(uint64_t wanted) const { return generation == wanted ? digest : other_digest; }
};

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
    PLIANT_TRY(open());
    PLIANT_TRY(learn_layout());
    PLIANT_TRY(make_plan());
    lap(report_.seconds.plan);
    PLIANT_TRY(prepare());
    lap(report_.seconds.allocate);
    PLIANT_TRY(options_.extra_bytes_max ? stream() : move());
    PLIANT_TRY(commit());
    lap(report_.seconds.commit);
    return report_;
  }

 private:
  using Part = ShardedState::Part;

  Status open();
  Status check(const std::vector<ReshapeOpening>& openings) const;
  void settle();
  Status learn_layout();
  Status take_description(Bytes bytes);
  Status make_plan();
  Error incomplete(const std::vector<Rank>& lost) const;
  Status prepare();
  Status allocate();
  Status map_sources(const std::vector<ReshapeVerdict>& verdicts);
  Status move();
  Status stream();
  uint64_t discard_sources(TensorChoice choice);
  Status run_work(ReshapeWork& work);
  Status verify(const ReshapeWork& work);
  Status commit();
  Result<std::vector<ReshapeVerdict>> exchange(const char* name, const ReshapeVerdict& mine);
  Status judge(std::vector<ReshapeVerdict>& all) const;
  const Part* before() const { return state_.current_ ? &*state_.current_ : nullptr; }
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
  uint64_t newest_ = 0;                 // generation
  std::optional<tensor::Layout> from_;  // the old layout, on its real hosts
  std::vector<PeerId> from_peers_;
  std::optional<Part> part_;                   // the new one
  std::optional<ShardedState::Buffer> table_;  // places of the old buffers, for local peers
  tensor::Plan plan_;
  Batches batches_;  // where memory is short
  std::optional<ReshapeScene> scene_;
};

}  // namespace pliant
