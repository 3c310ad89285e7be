// Emulated hosts for `pliant chaos`: network namespaces joined by a bridge in a namespace of its
// own, the hub, into which the calling thread moves. Needs root and `ip`.
//
// Owned by chaos; one thread. The namespaces carry the pid in their names and are removed with this
// object, and only those that it made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/transport/socket.h"

namespace pliant::cli {

class ChaosNetwork final {
 public:
  // How a host is cut off.
  enum class Cut {
    kAll,    // from everybody, both ways
    kPeers,  // from all other hosts, but not from the coordinator
    kWords,  // what it says does not reach the coordinator; it hears everything
  };

  static Result<std::unique_ptr<ChaosNetwork>> make(int hosts);
  ~ChaosNetwork();
  ChaosNetwork(const ChaosNetwork&) = delete;
  ChaosNetwork& operator=(const ChaosNetwork&) = delete;

  const std::vector<std::string>& hosts() const { return hosts_; }
  static std::string address(size_t host);
  static const char* hub_address();
  Status cut(size_t host, Cut how) const;
  Status heal(size_t host, Cut how) const;

 private:
  ChaosNetwork() = default;
  Status build(int hosts);
  Status add_namespace(const std::string& name);
  Status add_host(size_t host);
  Status set_isolated(const char* state) const;

  std::string hub_;
  std::vector<std::string> hosts_;
  std::vector<std::string> made_;  // namespaces, the hub first
  Fd outside_;                     // the namespace that we came from
};

}  // namespace pliant::cli
