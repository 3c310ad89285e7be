// Signals as bytes: for newcomers, and to compare them bit by bit. Pure; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/policy/signals.h"

namespace pliant {

// One encoding for each value; not-a-number included.
std::vector<std::byte> encode(const Signals& signals);
Result<Signals> decode_signals(Bytes bytes);

}  // namespace pliant
