// What a Session needs to know, as one value; and the one place where the variables that
// `pliant run` sets for its workers are written and read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"

namespace pliant {

enum class TransportChoice { kAuto, kShm, kTcp };  // kAuto: shm inside a host, tcp between hosts

struct SessionOptions {
  // The job; empty coordinator: a session alone.
  std::string coordinator;  // "address:port" or "[address]:port" of the coordinator
  std::string job;          // the job's name, for messages
  std::string token;        // the job's secret
  PeerId self = {.host = 0, .slot = 0, .incarnation = 1};
  std::string host = "localhost";     // this host's name, for people
  std::string address = "127.0.0.1";  // where this worker listens for other hosts

  TransportChoice transport = TransportChoice::kAuto;
  std::string strategy = "auto";
  Duration timeout = std::chrono::seconds(60);       // of every operation
  Duration join_timeout = std::chrono::seconds(60);  // until all members are there
  int connections = 1;        // TCP connections to each peer; more where one cannot fill the link
  size_t heap_bytes_max = 0;  // limit of allocate(); 0: the machine's memory
  int store_window = 3;       // versions that save() keeps of each name

  // Members come and go (see Session::begin_step): a loss is the next view's business, not an end.
  bool elastic = false;
  Duration heartbeat = std::chrono::seconds(2);  // silent for so long: taken for lost
  int members_min = 1;                           // of the job, as far as its launcher said
  int members_max = 0;                           // 0: it did not
  std::vector<uint64_t> report_steps;            // steps of the size schedule, ascending
  std::string store;  // name of the socket of the host's store (store_service.h); empty: none
  int life_fd = -1;   // of the life lock that the agent watches; -1: none
};

// From PLIANT_COORDINATOR, PLIANT_JOB, PLIANT_TOKEN, PLIANT_PEER ("host.slot#incarnation"),
// PLIANT_HOST, PLIANT_ADDRESS and, for users, PLIANT_TRANSPORT, PLIANT_STRATEGY, PLIANT_TIMEOUT,
// PLIANT_JOIN_TIMEOUT, PLIANT_CONNECTIONS, PLIANT_HEAP, PLIANT_STORE_WINDOW; of elastic jobs
// PLIANT_ELASTIC, PLIANT_HEARTBEAT, PLIANT_SCHEDULE ("2@0,4@100"), PLIANT_MEMBERS_MIN,
// PLIANT_MEMBERS_MAX and PLIANT_LIFE_FD; and from PLIANT_STORE, which the agent sets. A value that
// cannot be read is an error that names the variable.
Result<SessionOptions> options_from_environment();
// All PLIANT_* of this process, for those who put something in their place.
std::map<std::string, std::string> environment_variables();

// The same from given variables; those that are not PLIANT_* or are absent keep their default.
Result<SessionOptions> options_from(const std::map<std::string, std::string>& variables);

// The variables of `options`, for a worker that is to be started with them; what its agent says
// (PLIANT_SCHEDULE, PLIANT_MEMBERS_*, PLIANT_STORE, PLIANT_LIFE_FD) is not among them.
std::map<std::string, std::string> to_environment(const SessionOptions& options);

}  // namespace pliant
