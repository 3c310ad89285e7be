// The hosts of a job as users write them, and where its workers go. Values; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"

namespace pliant {

struct Host {
  std::string name;
  int slots = 1;
  std::string address;  // numeric address on which its workers listen; empty: found at start

  bool operator==(const Host&) const = default;
};

// Reads "a:4,b:2@10.0.0.2,c:1:10.0.0.3,[fd00::4]:2,d": name, slots (1 if absent) and the address of
// the data network. An IPv6 address stands in brackets. A name that is itself an address is its own
// data address.
Result<std::vector<Host>> parse_hosts(std::string_view text);

// The same, one host a line; "a slots=4 address=10.0.0.1" is understood too, '#' starts a comment.
Result<std::vector<Host>> parse_hostfile(std::string_view text);

// A worker's place. The index in the list is the rank: hosts in order, slots in order.
struct WorkerPlace {
  PeerId id;
  std::string host;

  bool operator==(const WorkerPlace&) const = default;
};

// Fills the hosts one after the other.
Result<std::vector<WorkerPlace>> place_workers(const std::vector<Host>& hosts, int count);

// True if workers of this host are started by this process itself: localhost, the loopback
// addresses, and the machine's own name.
bool is_local(const Host& host, std::string_view machine_name);

}  // namespace pliant
