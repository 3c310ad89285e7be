// How a step keeps its global batch when members are lost in the middle of it: what they were to
// compute is dealt out again to those that are left. Pure; every member makes the same redeals from
// the same facts, in the same order, and so knows everybody's part. Values; any thread.
//
// What a member has once been dealt stays its own for as long as it lives, and only ever grows, so
// nobody computes anything twice: whoever is dealt more adds it to what it has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/data/sampler.h"

namespace pliant {

// One redeal. Its indices are those of the members to whom the step was dealt out first.
struct Redeal {
  enum class Part : uint8_t {
    kKeeps,      // dead: what it handed in counts; or it was lost by an earlier redeal
    kTakesOver,  // gets a share of what the lost ones had
    kLost,       // has nothing any more
  };
  std::vector<Part> parts = {};

  bool operator==(const Redeal&) const = default;
};

// Whether an earlier redeal has given away what this member had. It stays lost then: its samples
// are others', and what it had handed in must not count.
bool is_lost(std::span<const Redeal> redeals, size_t member);

// The redeal that the end of some members calls for; none if nobody is newly lost. `dealt_to` had
// the step dealt out to them; of these, the active ones go on, and what those left behind handed in
// counts; all others are lost.
std::optional<Redeal> redeal_lost(std::span<const PeerId> dealt_to, std::span<const Redeal> before,
                                  std::span<const PeerId> active,
                                  std::span<const PeerId> left_behind);

// Changes the parts of a draw by a redeal: further positions stand behind those that a member has.
void apply(const Redeal& redeal, Draw& draw);

// For members that have not taken part in some of them. The decoder is told how many redeals of how
// many members they are, and refuses whatever is none.
std::vector<std::byte> encode(std::span<const Redeal> redeals);
Result<std::vector<Redeal>> decode_redeals(Bytes bytes, size_t count, size_t members);

}  // namespace pliant
