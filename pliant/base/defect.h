// Deliberate defects of the protocol, to prove that the simulator finds them. A switch for tests
// alone: nothing but the simulator sets it, and it is read with a plain load. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace pliant {

enum class Defect : uint8_t {
  kNone,
  kLocalCommit,          // a member commits although its operation was interrupted
  kNoEpochFence,         // messages of older views are taken for those of the newest
  kRankReuse,            // the group of the view before is used on
  kCursorOnAbort,        // the sampler moves on although the step was not committed
  kLateWrite,            // a transport writes into memory of an operation that has failed
  kLostWakeUp,           // a new view does not end the operations of the old one
  kViewTwice,            // a view is taken again although it, or a newer one, is known
  kChecksumSkipped,      // damaged state is taken
  kRollForwardSkipped,   // who misses a committed step does not get its results
  kDeadSamplesKept,      // samples of the dead count as consumed
  kExtraSamplesSkipped,  // a step with a constant batch is run again without the further samples
  kRedealUnheard,        // a member that missed a redeal of the open step is not told of it
};

namespace internal {
extern Defect active_defect;
}

inline Defect test_defect() { return internal::active_defect; }
void set_test_defect(Defect defect);

// By its name on the command line: "local_commit".
std::optional<Defect> parse_defect(std::string_view name);
std::string_view to_string(Defect defect);
// All but kNone.
std::span<const Defect> all_defects();

}  // namespace pliant
