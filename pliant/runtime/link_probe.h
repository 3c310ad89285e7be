// Measures the links between the hosts of a session. Collective: every member calls it.
#pragma once

#include <map>
#include <utility>

#include "pliant/collective/cost.h"
#include "pliant/runtime/session.h"

namespace pliant {

// Latency and bandwidth by (from, to) host number; equal on all members. One pair of hosts is
// measured at a time, by the first member of each.
Result<std::map<std::pair<uint32_t, uint32_t>, LinkCost>> probe_links(Session& session);

}  // namespace pliant
