// A member of a job: who it is and how it is reached. A value; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "pliant/base/ids.h"

namespace pliant {

// What a worker tells about itself when it joins, and what everybody else needs to reach it.
struct Member {
  PeerId id;
  int32_t pid = 0;
  std::string host;        // the host's name, for people
  std::string address;     // numeric IPv4 or IPv6 address of its TCP listener
  uint16_t port = 0;       // of that listener
  std::string local_name;  // its Unix socket's abstract name; reached by peers of the same host

  bool operator==(const Member&) const = default;
};

}  // namespace pliant
