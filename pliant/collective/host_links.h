// HostLinks: a cost model as one group sees it, its hosts numbered as the group numbers them. A
// value that borrows the model. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pliant/collective/cost.h"

namespace pliant {

class HostLinks {
 public:
  HostLinks(const Group& group, const CostModel& model);

  const LinkCost& between(int from, int to) const;
  // What leaves or enters a host altogether passes its port, which is as fast as its fastest link:
  // links are measured one at a time, so each of them alone can fill the port.
  double port_out(int host) const { return port_out_[static_cast<size_t>(host)]; }
  double port_in(int host) const { return port_in_[static_cast<size_t>(host)]; }

  // The bytes that are on the way at once when the link that holds most of them is full.
  double longest_pipe() const { return longest_pipe_; }

  // At most `hosts_max` hosts, those with the fastest links, in ascending order.
  std::vector<int> best_connected(size_t hosts_max) const;
  // "slow link from host 2 to host 0: 11.9 MB/s", or nothing if all links are alike.
  std::string describe_slowest() const;

 private:
  const CostModel& model_;
  std::vector<uint32_t> number_;  // PeerId::host of each of the group's hosts
  std::vector<double> port_out_;  // bytes/s
  std::vector<double> port_in_;
  std::vector<double> slowness_;  // seconds a byte, summed over the links of a host
  double slowest_ = 0;
  double fastest_ = 0;
  double longest_pipe_ = 0;
  std::pair<uint32_t, uint32_t> slowest_link_{};
};

}  // namespace pliant
