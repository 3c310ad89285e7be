// The elastic sampler: which samples each member computes in the next step, for any number of
// members, so that every sample of an epoch is in exactly one committed step. Pure: every member
// keeps an equal copy, makes the same calls and so knows everybody's part without a message. Owned
// by whoever runs the steps; one thread at a time.
//
// An epoch has an order of its own (permutation.h). A *position* is a place in that order; draws
// and the state count positions, and indices() turns them into numbers of samples at the very end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/data/sampler_options.h"

namespace pliant {

// Positions from begin to before end.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;

  bool operator==(const Range&) const = default;
  uint64_t size() const { return end - begin; }
};

// The positions in all of them together.
uint64_t size_of(std::span<const Range> ranges);

// What has been committed. A position of the epoch has been consumed if it lies before the cursor
// and in none of the returned ranges. There is one state for each set of consumed positions: ranges
// ascend and are not empty, neither do they touch each other or the cursor; and an epoch that is
// consumed is followed at once by the next one at cursor 0. So equal histories compare equal,
// however they came about.
struct SamplerState {
  uint64_t epoch = 0;                // the epoch that is being drawn from
  uint64_t cursor = 0;               // no position from here on has been consumed
  std::vector<Range> returned = {};  // before the cursor; drawn first by the next step

  bool operator==(const SamplerState&) const = default;
  uint64_t consumed_in_epoch() const { return cursor - size_of(returned); }
};

// For newcomers. One encoding a state; the decoder refuses whatever is no state of any sampler.
std::vector<std::byte> encode(const SamplerState& state);
Result<SamplerState> decode_sampler_state(Bytes bytes);

// What the members do in one step. The index is the one in the caller's list of members.
struct Draw {
  uint64_t epoch = 0;
  std::vector<std::vector<Range>> members = {};  // in the order in which they were drawn

  bool operator==(const Draw&) const = default;
  uint64_t samples() const;
  bool empty() const { return samples() == 0; }
};

// The samples of the members that contributed: what the step's gradients are to be normalised by.
uint64_t contributed_samples(const Draw& draw, std::span<const bool> contributed);

// Splits what nobody contributed over the members that are able to compute it, for a step that is
// to keep its global batch. Indices are those of `draw`; members that are not able get nothing, and
// nobody does if none is. Whoever handed in its gradients and died has contributed, but is not
// able. See redeal.h for how a step goes on with it.
Draw redraw_lost(const Draw& draw, std::span<const bool> contributed, std::span<const bool> able);

// What one member is likely to compute in a later step.
struct UpcomingSamples {
  uint64_t epoch = 0;  // of the data
  std::vector<uint64_t> samples = {};

  bool operator==(const UpcomingSamples&) const = default;
};

class Sampler final {
 public:
  // Refuses options that cannot be, and a state that is none of a sampler with these options. The
  // batch and the number of epochs may differ from those that the state was made with.
  static Result<Sampler> make(const SamplerOptions& options, SamplerState state = {});

  const SamplerOptions& options() const { return options_; }
  const SamplerState& state() const { return state_; }
  // All epochs have been consumed: draws are empty.
  bool done() const { return options_.epochs != 0 && state_.epoch >= options_.epochs; }

  // From the next draw on. kInvalid, and nothing changes, if the sampler has a batch per member or
  // this is none.
  Status set_global_batch(uint64_t samples);

  // The next step of this many members: their batch or what is left of the epoch if that is
  // less, split as evenly as it goes; of a rest, earlier members have one more each. Drawing
  // changes nothing, so a step that is redone by other members draws the same positions again.
  Draw draw(int members) const;

  // Consumes the positions of the members that contributed. What the others were to do is left for
  // the next draws. A draw is of the state's epoch and no position is consumed twice: anything else
  // would break the promise silently, and aborts.
  void commit(const Draw& draw, std::span<const bool> contributed);

  // The numbers of a member's samples, in the order in which they were drawn.
  std::vector<uint64_t> indices(const Draw& draw, size_t member) const;

 private:
  Sampler(const SamplerOptions& options, SamplerState state);

  // The positions that have not been consumed, ascending.
  std::vector<Range> remaining() const;

  SamplerOptions options_;
  SamplerState state_;
};

}  // namespace pliant
