#include "pliant/base/result.h"

#include <cerrno>
#include <cstring>

namespace pliant {

const char* to_string(Code code) {
  switch (code) {
    case Code::kPeerLost: return "peer lost";
    case Code::kStaleEpoch: return "stale epoch";
    case Code::kTimeout: return "timeout";
    case Code::kCancelled: return "cancelled";
    case Code::kOverloaded: return "overloaded";
    case Code::kInvalid: return "invalid";
  }
  return "unknown";
}

std::string to_string(const Error& error) {
  return std::string(to_string(error.code)) + ": " + error.message;
}

Error system_error(const std::string& what) { return invalid(what + ": " + std::strerror(errno)); }

}  // namespace pliant
