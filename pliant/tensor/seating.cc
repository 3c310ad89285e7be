#include "pliant/tensor/seating.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "pliant/tensor/plan.h"

namespace pliant::tensor {
namespace {

// How many bytes each old rank has that each new rank needs.
class CommonBytes {
 public:
  CommonBytes(const Layout& from, const Layout& to, std::span<const size_t> old_tensors,
              const Givers& givers)
      : columns_(to.mesh().size()), bytes_(size_t{from.mesh().size()} * columns_) {
    // Tensors that lie alike in both layouts count together.
    std::map<std::pair<size_t, size_t>, std::tuple<uint64_t, const Placement*, const Placement*>>
        pairs;
    std::map<const Placement*, size_t> number_of;
    const auto number = [&](const Placement& placement) {
      return number_of.try_emplace(&placement, number_of.size()).first->second;
    };
    for (size_t i = 0; i < to.collection().size(); ++i) {
      const Placement& before = from.placement(old_tensors[i]);
      const Placement& after = to.placement(i);
      auto& [weight, old_placement, new_placement] = pairs[{number(before), number(after)}];
      weight += size_of(to.collection()[i].dtype);
      old_placement = &before;
      new_placement = &after;
    }
    std::map<const Placement*, Source> sources;
    for (const auto& [numbers, pair] : pairs) {
      const auto& [weight, before, after] = pair;
      add(sources.try_emplace(before, *before, givers).first->second, *after, weight);
    }
  }

  uint64_t at(Rank old_rank, Rank new_rank) const {
    return bytes_[static_cast<size_t>(old_rank) * columns_ + static_cast<size_t>(new_rank)];
  }

 private:
  void add(const Source& source, const Placement& after, uint64_t weight) {
    std::vector<uint32_t> found;
    for (const Shard& shard : after.shards) {
      source.find(shard.box, found);
      for (const uint32_t s : found) {
        const uint64_t bytes = volume(intersect(source.box(s), shard.box)) * weight;
        for (const Rank old_rank : source.holders(s))
          for (const Rank new_rank : shard.holders)
            bytes_[static_cast<size_t>(old_rank) * columns_ + static_cast<size_t>(new_rank)] +=
                bytes;
      }
    }
  }

  const size_t columns_;
  std::vector<uint64_t> bytes_;
};

struct Match {
  uint64_t bytes = 0;
  uint32_t from = 0;
  uint32_t to = 0;

  // The best first; among equals those that keep their number, then the first.
  bool operator<(const Match& other) const {
    return std::tuple(other.bytes, from != to, from, to) <
           std::tuple(bytes, other.from != other.to, other.from, other.to);
  }
};

// Takes matches from the best on, as long as both sides are free.
template <typename Use>
void take_best(std::vector<Match>& matches, size_t from_end, size_t to_end, Use use) {
  std::ranges::sort(matches, [](const Match& a, const Match& b) { return a < b; });
  std::vector<bool> from_taken(from_end);
  std::vector<bool> to_taken(to_end);
  for (const Match& match : matches) {
    if (from_taken[match.from] || to_taken[match.to]) continue;
    from_taken[match.from] = to_taken[match.to] = true;
    use(match);
  }
}

class Seats {
 public:
  Seats(const Layout& from, const Layout& to, std::span<const size_t> old_tensors,
        const Givers& givers)
      : from_(from), to_(to), common_(from, to, old_tensors, givers) {
    old_on_.resize(from.mesh().hosts_end());
    new_on_.resize(to.mesh().hosts_end());
    for (Rank rank = 0; rank < static_cast<Rank>(from.mesh().size()); ++rank)
      if (!givers.is_lost[static_cast<size_t>(rank)])
        old_on_[from.mesh().host_of(rank)].push_back(rank);
    for (Rank rank = 0; rank < static_cast<Rank>(to.mesh().size()); ++rank)
      new_on_[to.mesh().host_of(rank)].push_back(rank);
  }

  Seating choose() {
    Seating best;
    best.members.assign(to_.mesh().size(), kNewcomer);
    best.hosts = machines();
    for (uint32_t host = 0; host < new_on_.size(); ++host)
      if (!new_on_[host].empty()) seat(host, best);
    const Seating kept = keep();
    return value_of(best) > value_of(kept) ? best : kept;
  }

 private:
  // The best matches between the ranks of two hosts.
  std::vector<Match> matches_of(uint32_t old_host, uint32_t new_host) const {
    std::vector<Match> matches;
    std::vector<Match> best;
    for (const Rank old_rank : old_on_[old_host])
      for (const Rank new_rank : new_on_[new_host])
        if (const uint64_t bytes = common_.at(old_rank, new_rank); bytes != 0)
          matches.push_back(
              {bytes, static_cast<uint32_t>(old_rank), static_cast<uint32_t>(new_rank)});
    take_best(matches, from_.mesh().size(), to_.mesh().size(),
              [&](const Match& match) { best.push_back(match); });
    return best;
  }

  // Which machine, by its old number, each host of the new layout is; for each new rank.
  std::vector<uint32_t> machines() const {
    std::vector<Match> matches;
    for (uint32_t old_host = 0; old_host < old_on_.size(); ++old_host) {
      for (uint32_t new_host = 0; new_host < new_on_.size(); ++new_host) {
        if (old_on_[old_host].empty() || new_on_[new_host].empty()) continue;
        uint64_t sum = 0;
        for (const Match& match : matches_of(old_host, new_host)) sum += match.bytes;
        matches.push_back({sum, old_host, new_host});
      }
    }
    constexpr uint32_t kNone = UINT32_MAX;
    std::vector<uint32_t> machine(new_on_.size(), kNone);
    take_best(matches, old_on_.size(), new_on_.size(),
              [&](const Match& match) { machine[match.to] = match.from; });
    // The rest are new machines, with numbers that no old one has.
    auto fresh = static_cast<uint32_t>(old_on_.size());
    std::vector<uint32_t> hosts(to_.mesh().size());
    for (uint32_t host = 0; host < new_on_.size(); ++host) {
      if (machine[host] == kNone && !new_on_[host].empty()) machine[host] = fresh++;
      for (const Rank rank : new_on_[host]) hosts[static_cast<size_t>(rank)] = machine[host];
    }
    return hosts;
  }

  // Gives the ranks of one new host to the processes of its machine: first to those that have
  // something of it, then to whoever is left.
  void seat(uint32_t host, Seating& seating) const {
    const uint32_t machine = seating.hosts[static_cast<size_t>(new_on_[host][0])];
    if (machine >= old_on_.size()) return;
    std::vector<Rank> left = old_on_[machine];
    for (const Match& match : matches_of(machine, host)) {
      seating.members[match.to] = static_cast<Rank>(match.from);
      std::erase(left, static_cast<Rank>(match.from));
    }
    size_t next = 0;
    for (const Rank rank : new_on_[host]) {
      if (next == left.size()) break;
      Rank& member = seating.members[static_cast<size_t>(rank)];
      if (member == kNewcomer) member = left[next++];
    }
  }

  // Every rank and host stays what it was, as far as that fits.
  Seating keep() const {
    Seating kept;
    kept.members.assign(to_.mesh().size(), kNewcomer);
    kept.hosts = to_.mesh().hosts();
    for (const std::vector<Rank>& ranks : old_on_)
      for (const Rank rank : ranks)
        if (static_cast<uint32_t>(rank) < to_.mesh().size() &&
            from_.mesh().host_of(rank) == to_.mesh().host_of(rank))
          kept.members[static_cast<size_t>(rank)] = rank;
    return kept;
  }

  uint64_t value_of(const Seating& seating) const {
    uint64_t sum = 0;
    for (size_t rank = 0; rank < seating.members.size(); ++rank)
      if (seating.members[rank] != kNewcomer)
        sum += common_.at(seating.members[rank], static_cast<Rank>(rank));
    return sum;
  }

  const Layout& from_;
  const Layout& to_;
  const CommonBytes common_;
  std::vector<std::vector<Rank>> old_on_;  // by host; those that are left
  std::vector<std::vector<Rank>> new_on_;
};

}  // namespace

Seating choose_seating(const Layout& from, const Layout& to, std::span<const size_t> old_tensors,
                       const Givers& givers) {
  return Seats(from, to, old_tensors, givers).choose();
}

}  // namespace pliant::tensor
