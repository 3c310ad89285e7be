// Feeds arbitrary bytes to the reader of the coordinator's membership snapshots; what it takes must
// work as a roster and be written as it was read.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "pliant/membership/roster.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant;
  const Bytes bytes = std::as_bytes(std::span(data, size));
  RosterOptions options;
  options.hosts = {{"a", 2}};
  options.max = 2;
  const Instant now{std::chrono::hours(1)};
  auto roster = Roster::restore(options, bytes, now);
  if (!roster.ok()) return 0;
  const auto again = Roster::restore(options, roster->snapshot(), now);
  if (!again.ok() || again->snapshot() != roster->snapshot()) std::abort();
  roster->handle(RosterEvent::HostReady{0}, now);
  (void)roster->decide(now);
  roster->handle(RosterEvent::Tick{}, now + std::chrono::hours(1));
  (void)roster->decide(now + std::chrono::hours(1));
  return 0;
}
