#include "pliant/base/defect.h"

namespace pliant {
namespace {

constexpr Defect kAll[] = {
    Defect::kLocalCommit,     Defect::kNoEpochFence,        Defect::kRankReuse,
    Defect::kCursorOnAbort,   Defect::kLateWrite,           Defect::kLostWakeUp,
    Defect::kViewTwice,       Defect::kChecksumSkipped,     Defect::kRollForwardSkipped,
    Defect::kDeadSamplesKept, Defect::kExtraSamplesSkipped, Defect::kRedealUnheard,
};

}  // namespace

namespace internal {
constinit Defect active_defect = Defect::kNone;
}

void set_test_defect(Defect defect) { internal::active_defect = defect; }

std::string_view to_string(Defect defect) {
  switch (defect) {
    case Defect::kNone: return "none";
    case Defect::kLocalCommit: return "local_commit";
    case Defect::kNoEpochFence: return "no_epoch_fence";
    case Defect::kRankReuse: return "rank_reuse";
    case Defect::kCursorOnAbort: return "cursor_on_abort";
    case Defect::kLateWrite: return "late_write";
    case Defect::kLostWakeUp: return "lost_wake_up";
    case Defect::kViewTwice: return "view_twice";
    case Defect::kChecksumSkipped: return "checksum_skipped";
    case Defect::kRollForwardSkipped: return "roll_forward_skipped";
    case Defect::kDeadSamplesKept: return "dead_samples_kept";
    case Defect::kExtraSamplesSkipped: return "extra_samples_skipped";
    case Defect::kRedealUnheard: return "redeal_unheard";
  }
  return "none";
}

std::span<const Defect> all_defects() { return kAll; }

std::optional<Defect> parse_defect(std::string_view name) {
  if (name == to_string(Defect::kNone)) return Defect::kNone;
  for (const Defect defect : kAll)
    if (name == to_string(defect)) return defect;
  return std::nullopt;
}

}  // namespace pliant
