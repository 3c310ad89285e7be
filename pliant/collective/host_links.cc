#include "pliant/collective/host_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace pliant {

HostLinks::HostLinks(const Group& group, const CostModel& model)
    : model_(model), number_(static_cast<size_t>(group.hosts)) {
  std::unordered_map<uint32_t, size_t> index_of;
  for (Rank rank = 0; rank < group.size(); ++rank) {
    const auto host = static_cast<size_t>(group.host(rank));
    number_[host] = group.peer(rank).host;
    index_of[number_[host]] = host;
  }
  const size_t hosts = number_.size();
  port_out_.assign(hosts, 0);
  port_in_.assign(hosts, 0);
  slowness_.assign(hosts, 0);
  // Only what was measured is visited: a large job measures few of its pairs.
  std::vector<size_t> known_out(hosts, 0);
  std::vector<size_t> known_in(hosts, 0);
  const auto see = [&](double rate) {
    slowest_ = slowest_ == 0 ? rate : std::min(slowest_, rate);
    fastest_ = std::max(fastest_, rate);
  };
  for (const auto& [pair, cost] : model.between) {
    const auto from = index_of.find(pair.first);
    const auto to = index_of.find(pair.second);
    if (from == index_of.end() || to == index_of.end() || from == to) continue;
    const double rate = cost.bytes_per_s;
    port_out_[from->second] = std::max(port_out_[from->second], rate);
    port_in_[to->second] = std::max(port_in_[to->second], rate);
    slowness_[from->second] += 1 / rate;
    slowness_[to->second] += 1 / rate;
    longest_pipe_ = std::max(longest_pipe_, cost.latency_s * rate);
    ++known_out[from->second];
    ++known_in[to->second];
    if (slowest_ == 0 || rate < slowest_) slowest_link_ = pair;
    see(rate);
  }
  const double otherwise = model.default_between.bytes_per_s;
  for (size_t host = 0; host < hosts; ++host) {
    const size_t unknown = 2 * (hosts - 1) - known_out[host] - known_in[host];
    if (known_out[host] < hosts - 1) port_out_[host] = std::max(port_out_[host], otherwise);
    if (known_in[host] < hosts - 1) port_in_[host] = std::max(port_in_[host], otherwise);
    slowness_[host] += static_cast<double>(unknown) / otherwise;
    if (unknown == 0) continue;
    fastest_ = std::max(fastest_, otherwise);
    longest_pipe_ = std::max(longest_pipe_, model.default_between.latency_s * otherwise);
  }
}

const LinkCost& HostLinks::between(int from, int to) const {
  const auto at =
      model_.between.find({number_[static_cast<size_t>(from)], number_[static_cast<size_t>(to)]});
  return at == model_.between.end() ? model_.default_between : at->second;
}

std::vector<int> HostLinks::best_connected(size_t hosts_max) const {
  std::vector<int> hosts(number_.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  if (hosts.size() <= hosts_max) return hosts;
  std::stable_sort(hosts.begin(), hosts.end(), [&](int left, int right) {
    return slowness_[static_cast<size_t>(left)] < slowness_[static_cast<size_t>(right)];
  });
  hosts.resize(hosts_max);
  std::sort(hosts.begin(), hosts.end());
  return hosts;
}

std::string HostLinks::describe_slowest() const {
  constexpr double kAlike = 2;
  if (slowest_ == 0 || slowest_ * kAlike > fastest_) return {};
  return fmt::format("slow link from host {} to host {}: {:.1f} MB/s", slowest_link_.first,
                     slowest_link_.second, slowest_ / 1e6);
}

}  // namespace pliant
