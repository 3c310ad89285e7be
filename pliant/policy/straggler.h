// Names the member that takes much longer than the others, step after step. A value that is copied
// byte by byte to newcomers; any thread, one at a time. training/monitor.h feeds it with what all
// members have agreed on, so that all of them name the same one.
//
// A member is slow in a step if its compute time exceeds `factor` times the median of all (the
// lower one of an even number, so that of two members the slower can be slow at all). Slow steps
// raise its score by one, others lower it; it is named when the score reaches `steps`, and for as
// long as the score is above zero. So a single hiccup names nobody, and one quick step clears
// nobody.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "pliant/policy/signals.h"

namespace pliant {

struct StragglerOptions {
  double factor = 1.5;
  int steps = 5;
};

class StragglerDetector {
 public:
  explicit StragglerDetector(StragglerOptions options = {});

  // Takes one committed step in, and says who is a straggler by now: the slowest one if there are
  // several. Members that left are forgotten.
  std::optional<Straggler> add(std::span<const MemberSignals> by_rank);

 private:
  struct Suspect {
    uint64_t peer = 0;  // packed; 0: the place is free
    int32_t score = 0;
    int32_t is_named = 0;
    double slowdown = 1;  // mean over its last steps
  };

  void judge(const MemberSignals& member, double slowdown);
  Suspect* find(uint64_t peer);
  Suspect* place_for(uint64_t peer);

  StragglerOptions options_;
  // More members than this that are slow at once are no stragglers but the normal case.
  std::array<Suspect, 8> suspects_ = {};
};

}  // namespace pliant
