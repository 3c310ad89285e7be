// Who is missing from a view that was in the one before it, and why. A value; any thread.
#pragma once

#include <string>

#include "pliant/base/ids.h"

namespace pliant {

struct Departure {
  PeerId peer;
  bool ended = false;    // its process has ended for sure; otherwise it may still run somewhere
  bool planned = false;  // it was asked to leave, or left by itself
  std::string reason;    // "was killed by signal 9 (Killed)"

  bool operator==(const Departure&) const = default;
};

}  // namespace pliant
