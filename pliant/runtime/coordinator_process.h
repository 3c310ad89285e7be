// The coordinator of an elastic job as a process of its own: `pliant coordinator`.
//
// `pliant run` starts it, gives it the two sockets on which the job listens, and starts it again
// when it dies; it then goes on from its journal. It ends when its standard input does.
#pragma once

#include <cstdint>
#include <string>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/membership/roster.h"

namespace pliant {

// All that it needs to know; one line of JSON on its standard input.
struct CoordinatorSpec {
  int listener = -1;          // inherited, for workers and agents
  int control_listener = -1;  // inherited, for people; -1: no HTTP interface
  std::string token;
  std::string control_token;
  std::string name;     // of the job
  std::string journal;  // path of the file; its folder is the job's own
  uint64_t life = 0;    // so many coordinators of this job have ended
  bool verbose = false;
  Duration grace{};
  Duration join_timeout{};
  RosterOptions roster;
};
std::string spec_json(const CoordinatorSpec& spec);
Result<CoordinatorSpec> parse_coordinator_spec(const std::string& json);

// There is no use in starting it again: its journal cannot be read, or is another's.
inline constexpr int kCoordinatorHopeless = 3;

// Returns the exit code of the process.
int serve_coordinator();

}  // namespace pliant
