// Predicts the time of a collective from its routes.
//
// Every message uses some resources: the link between its hosts and their ports, its two processes,
// the cores of a host. A resource is busy for the sum of what it carries, and cannot begin before
// the first chunk reaches it nor end the collective before its last chunk has gone the rest of the
// way: head + load + tail. The slowest resource decides, or the way of a single chunk if that is
// longer; the latencies of that way come on top.
#include <algorithm>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>

#include "pliant/base/check.h"
#include "pliant/collective/cost.h"
#include "pliant/collective/host_links.h"
#include "pliant/collective/route.h"

namespace pliant {
namespace {

// The time of a process that a message costs at each end whatever its size: a system call and our
// own bookkeeping. With it, 1 KiB by star, exchange and binary tree over 4 to 16 processes with a
// core each come out in the order that was measured.
constexpr double kMessageSeconds = 3e-6;

// A node that receives from several others at once loses a little to each further one (buffers,
// caches, queues in front of its port), up to a limit.
double crowding(size_t senders) {
  return 1 + 0.05 * static_cast<double>(std::min<size_t>(senders, 6) - 1);
}

struct Resource {
  double load = 0;
  double head = std::numeric_limits<double>::infinity();
  double tail = std::numeric_limits<double>::infinity();

  void use(double seconds, double start, double rest) {
    load += seconds;
    head = std::min(head, start);
    tail = std::min(tail, rest);
  }
  double time() const { return load == 0 ? 0 : head + load + tail; }
};

size_t at(int index) { return static_cast<size_t>(index); }

// A tree in the order of its levels, with the children of each node. Kept in two flat arrays: a
// large group has thousands of trees.
class Levels {
 public:
  explicit Levels(const Tree& tree) : first_(tree.parent.size() + 1, 0) {
    const int nodes = static_cast<int>(tree.parent.size());
    if (nodes == 0) return;
    for (int i = 0; i < nodes; ++i)
      if (i != tree.root) ++first_[at(tree.parent[at(i)]) + 1];
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    children_.resize(first_.back());
    std::vector<size_t> next(first_.begin(), first_.end() - 1);
    for (int i = 0; i < nodes; ++i)
      if (i != tree.root) children_[next[at(tree.parent[at(i)])]++] = i;
    order_.reserve(at(nodes));
    order_.push_back(tree.root);
    for (size_t i = 0; i < order_.size(); ++i)
      for (const int child : children(order_[i])) order_.push_back(child);
  }
  std::span<const int> children(int node) const {
    return std::span(children_).subspan(first_[at(node)], first_[at(node) + 1] - first_[at(node)]);
  }
  const std::vector<int>& order() const { return order_; }  // parents first

 private:
  std::vector<size_t> first_;
  std::vector<int> children_;
  std::vector<int> order_;
};

class Prediction {
 public:
  Prediction(const Signature& signature, const Group& group, const Strategy& strategy,
             size_t chunk_bytes, const CostModel& model)
      : group_(group),
        model_(model),
        links_(group, model),
        staged_(in_stages(signature, strategy)),
        element_bytes_(size_of(signature.dtype)),
        partial_bytes_(size_of(accumulator_of(signature.dtype))),
        chunk_elements_(std::max<size_t>(1, chunk_bytes / element_bytes_)),
        members_(at(group.hosts), 0),
        processes_(at(group.size())),
        port_out_(at(group.hosts)),
        port_in_(at(group.hosts)),
        cores_(at(group.hosts)),
        memory_(at(group.hosts)) {
    for (const int host : group.host_of) ++members_[at(host)];
  }

  void add(const Route& route) {
    if (route.count == 0) return;
    if (route.round != round_) end_round();
    round_ = route.round;
    if (staged_) use_memory(route);
    const Levels up(route.up);
    const Levels down(route.down);
    const std::vector<double> rest = rest_down(route, down);
    const std::vector<double> ready = ready_up(route, up);
    const double turned = route.reduces() ? ready[at(route.up.root)] : own_part(route, 0);
    const double rest_of_root = route.spreads() ? rest[at(route.down.root)] : 0;
    send_up(route, up, ready, rest_of_root);
    send_down(route, down, rest, turned);
    longest_way_ = std::max(longest_way_, turned + rest_of_root);
    latency_ = std::max(latency_, latency_of(route, route.up, up, Phase::kUp) +
                                      latency_of(route, route.down, down, Phase::kDown));
  }

  double seconds() {
    end_round();
    double slowest = way_of_rounds_;
    for (const auto* resources : {&processes_, &port_out_, &port_in_, &cores_, &memory_})
      for (const Resource& resource : *resources) slowest = std::max(slowest, resource.time());
    for (const auto& [hosts, link] : wires_) slowest = std::max(slowest, link.time());
    // Where there are stages, the members of a host meet before and after.
    return slowest + latency_of_rounds_ + (staged_ ? 2 * model_.inside.latency_s : 0);
  }

 private:
  void end_round() {
    way_of_rounds_ += std::exchange(longest_way_, 0);
    latency_of_rounds_ += std::exchange(latency_, 0);
  }

  int host(const Route& route, int node) const { return group_.host(route.ranks[at(node)]); }
  LinkCost link(const Route& route, int from, int to) const {
    const int source = host(route, from);
    const int target = host(route, to);
    return source == target ? model_.inside : links_.between(source, target);
  }
  double processes_at_once(int host) const {
    return std::max(1, std::min(model_.cores, members_[at(host)]));
  }
  double first_chunk(const Route& route, size_t element_bytes) const {
    return static_cast<double>(std::min(route.count, chunk_elements_) * element_bytes);
  }
  // What a node sends up: its input if it is a leaf of a flat tree, a partial result otherwise.
  size_t up_bytes(const Levels& up, int node) const {
    return staged_ || !up.children(node).empty() ? partial_bytes_ : element_bytes_;
  }

  // The time that the members of a node's host need to combine, or to take, one chunk.
  double own_part(const Route& route, int node) const {
    if (!staged_) return 0;
    return first_chunk(route, element_bytes_) * (1 + members_[at(host(route, node))]) /
           model_.memory_bytes_per_s;
  }

  void use_memory(const Route& route) {
    const auto bytes = static_cast<double>(route.count * element_bytes_);
    for (int node = 0; node < static_cast<int>(route.ranks.size()); ++node) {
      const int members = members_[at(host(route, node))];
      memory_[at(host(route, node))].use(2 * bytes * (1 + members) / model_.memory_bytes_per_s, 0,
                                         0);
    }
  }

  // Inside a host a chunk is copied by its sender, then by its receiver.
  double hop(const Route& route, int from, int to, double bytes) const {
    const int copies = host(route, from) == host(route, to) ? 2 : 1;
    return kMessageSeconds + copies * bytes / link(route, from, to).bytes_per_s;
  }
  // One chunk between a node and all of its children: the slowest link, or all through one port.
  double fan(const Route& route, int node, std::span<const int> children, Phase phase,
             double bytes) const {
    const int here = host(route, node);
    const double port = phase == Phase::kUp ? links_.port_in(here) : links_.port_out(here);
    double slowest = 0;
    double together = 0;
    for (const int child : children) {
      const bool inside = here == host(route, child);
      slowest = std::max(slowest, phase == Phase::kUp ? hop(route, child, node, bytes)
                                                      : hop(route, node, child, bytes));
      together += kMessageSeconds + bytes / (inside ? model_.inside.bytes_per_s : port);
    }
    return std::max(slowest, together);
  }

  // When the first chunk of each node's partial result is ready.
  std::vector<double> ready_up(const Route& route, const Levels& up) const {
    std::vector<double> ready(route.ranks.size(), 0);
    for (auto node = up.order().rbegin(); node != up.order().rend(); ++node) {
      double& own = ready[at(*node)];
      own = own_part(route, *node);
      const auto children = up.children(*node);
      if (children.empty()) continue;
      size_t element_bytes = element_bytes_;
      for (const int child : children) {
        own = std::max(own, ready[at(child)]);
        element_bytes = std::max(element_bytes, up_bytes(up, child));
      }
      own += fan(route, *node, children, Phase::kUp, first_chunk(route, element_bytes));
    }
    return ready;
  }

  // How long a chunk that a node has just received keeps those below it busy.
  std::vector<double> rest_down(const Route& route, const Levels& down) const {
    std::vector<double> rest(route.ranks.size(), 0);
    for (auto node = down.order().rbegin(); node != down.order().rend(); ++node) {
      double below = 0;
      const auto children = down.children(*node);
      for (const int child : children) below = std::max(below, rest[at(child)]);
      below += fan(route, *node, children, Phase::kDown, first_chunk(route, element_bytes_));
      rest[at(*node)] = std::max(below, own_part(route, *node));
    }
    return rest;
  }

  void send_up(const Route& route, const Levels& up, const std::vector<double>& ready,
               double rest_of_root) {
    std::vector<double> rest(route.ranks.size(), rest_of_root);
    for (const int node : up.order())
      for (const int child : up.children(node)) {
        const size_t element = up_bytes(up, child);
        send(route, {.from = child,
                     .to = node,
                     .senders = up.children(node).size(),
                     .element_bytes = element,
                     .start = ready[at(child)],
                     .rest = rest[at(node)]});
        rest[at(child)] = rest[at(node)] + hop(route, child, node, first_chunk(route, element));
      }
  }

  void send_down(const Route& route, const Levels& down, const std::vector<double>& rest,
                 double turned) {
    std::vector<double> ready(route.ranks.size(), turned);
    for (const int node : down.order())
      for (const int child : down.children(node)) {
        send(route, {.from = node,
                     .to = child,
                     .senders = 1,
                     .element_bytes = element_bytes_,
                     .start = ready[at(node)],
                     .rest = rest[at(child)]});
        ready[at(child)] =
            ready[at(node)] + hop(route, node, child, first_chunk(route, element_bytes_));
      }
  }

  struct Flow {
    int from;
    int to;
    size_t senders;  // that the receiver listens to at once
    size_t element_bytes;
    double start;
    double rest;
  };
  // All chunks of a block over one edge of a tree.
  void send(const Route& route, const Flow& flow) {
    const auto from = at(route.ranks[at(flow.from)]);
    const auto to = at(route.ranks[at(flow.to)]);
    const int source = host(route, flow.from);
    const int target = host(route, flow.to);
    const double start = flow.start;
    const double rest = flow.rest;
    const auto bytes = static_cast<double>(route.count * flow.element_bytes);
    const double crowded = bytes * crowding(flow.senders);
    const auto messages =
        static_cast<double>((route.count + chunk_elements_ - 1) / chunk_elements_);
    const bool inside = source == target;
    // What each end does; a process has one thread for all that it sends and receives.
    const double sending =
        messages * kMessageSeconds + (inside ? bytes / model_.inside.bytes_per_s : 0);
    const double receiving =
        messages * kMessageSeconds + (inside ? crowded / model_.inside.bytes_per_s : 0);
    processes_[from].use(sending, start, rest);
    processes_[to].use(receiving, start, rest);
    cores_[at(source)].use(sending / processes_at_once(source), start, rest);
    cores_[at(target)].use(receiving / processes_at_once(target), start, rest);
    if (!inside) {
      port_out_[at(source)].use(bytes / links_.port_out(source), start, rest);
      port_in_[at(target)].use(crowded / links_.port_in(target), start, rest);
      const uint64_t wire =
          uint64_t{static_cast<uint32_t>(source)} << 32 | static_cast<uint32_t>(target);
      wires_[wire].use(bytes / links_.between(source, target).bytes_per_s, start, rest);
    }
  }

  // Of the longest way between the root of a tree and a leaf.
  double latency_of(const Route& route, const Tree& tree, const Levels& levels, Phase phase) const {
    std::vector<double> latency(route.ranks.size(), 0);
    double longest = 0;
    for (const int node : levels.order()) {
      if (node == tree.root) continue;
      const int above = tree.parent[at(node)];
      const LinkCost edge =
          phase == Phase::kUp ? link(route, node, above) : link(route, above, node);
      latency[at(node)] = latency[at(above)] + edge.latency_s;
      longest = std::max(longest, latency[at(node)]);
    }
    return longest;
  }

  const Group& group_;
  const CostModel& model_;
  const HostLinks links_;
  const bool staged_;
  const size_t element_bytes_;
  const size_t partial_bytes_;
  const size_t chunk_elements_;
  std::vector<int> members_;         // of each host
  std::vector<Resource> processes_;  // each sends and receives by one thread
  std::vector<Resource> port_out_;   // a host sends
  std::vector<Resource> port_in_;
  std::vector<Resource> cores_;                   // of a host, together
  std::vector<Resource> memory_;                  // of a host
  std::unordered_map<uint64_t, Resource> wires_;  // between two hosts, one way
  int round_ = 0;
  double longest_way_ = 0;  // of this round
  double latency_ = 0;
  double way_of_rounds_ = 0;  // of all before
  double latency_of_rounds_ = 0;
};

// In shared memory whoever receives reads for himself, except that a sum is read once.
double predict_direct(const Signature& signature, const Group& group, const CostModel& model) {
  Strategy star;
  star.kind = Strategy::Kind::kStar;
  double bytes = 0;
  for (const Route& route : routes_of(signature, group, star)) {
    const auto ranks = static_cast<double>(route.ranks.size());
    const double writes = !route.reduces() ? ranks - 1 : route.spreads() ? ranks : 1;
    const double reads = route.reduces() ? ranks : writes;
    bytes += (reads + writes) * static_cast<double>(route.count * size_of(signature.dtype));
  }
  return model.inside.latency_s + bytes / model.memory_bytes_per_s;
}

}  // namespace

double predict(const Signature& signature, const Group& group, const Strategy& strategy,
               size_t chunk_bytes, const CostModel& model) {
  PLIANT_CHECK(strategy.kind != Strategy::Kind::kAuto, "auto is what predictions are made for");
  if (group.size() == 1) return 0;
  const bool pair_of_ranks =
      signature.collective == Collective::kSend || signature.collective == Collective::kReceive;
  if (strategy.kind == Strategy::Kind::kDirect && !pair_of_ranks)
    return predict_direct(signature, group, model);
  Prediction prediction(signature, group, strategy, chunk_bytes, model);
  for (const Route& route : routes_of(signature, group, strategy)) prediction.add(route);
  return prediction.seconds();
}

}  // namespace pliant
