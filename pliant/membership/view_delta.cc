#include "pliant/membership/view_delta.h"

#include <fmt/format.h>

#include <span>
#include <unordered_set>

#include "pliant/base/bytes.h"

namespace pliant {
namespace {

using Peers = std::unordered_set<PeerId>;

Peers peers_of(const std::vector<Departure>& gone) {
  Peers peers;
  for (const Departure& departure : gone) peers.insert(departure.peer);
  return peers;
}

Error unfit(Epoch before, const std::string& why) {
  return invalid(fmt::format("a change of the view of epoch {}: {}", number(before), why));
}

}  // namespace

uint64_t fingerprint(const View& view) {
  std::vector<uint64_t> peers;
  peers.reserve(view.members.size());
  for (const Member& member : view.members) peers.push_back(member.id.packed());
  return hash64(std::as_bytes(std::span(peers)), number(view.epoch));
}

std::optional<ViewDelta> diff(const View& before, const View& after,
                              const std::vector<Departure>& gone) {
  if (number(before.epoch) == 0 || after.epoch <= before.epoch) return std::nullopt;
  const Peers missing = peers_of(gone);
  if (missing.size() != gone.size()) return std::nullopt;
  Peers kept;
  for (const Member& member : before.members) {
    if (missing.contains(member.id)) continue;
    if (kept.size() == after.members.size() || after.members[kept.size()] != member)
      return std::nullopt;
    kept.insert(member.id);
  }
  if (kept.size() + gone.size() != before.members.size()) return std::nullopt;
  ViewDelta delta{before.epoch, after.epoch, gone, {}, fingerprint(after)};
  for (size_t rank = kept.size(); rank < after.members.size(); ++rank) {
    if (!kept.insert(after.members[rank].id).second) return std::nullopt;
    delta.joined.push_back(after.members[rank]);
  }
  return delta;
}

Result<View> apply(const ViewDelta& delta, const View& before) {
  if (delta.before != before.epoch || delta.epoch <= before.epoch || number(before.epoch) == 0)
    return unfit(delta.before, fmt::format("epoch {} is known", number(before.epoch)));
  const Peers missing = peers_of(delta.gone);
  View after{delta.epoch, {}};
  Peers in;
  for (const Member& member : before.members) {
    if (missing.contains(member.id)) continue;
    in.insert(member.id);
    after.members.push_back(member);
  }
  if (in.size() + delta.gone.size() != before.members.size())
    return unfit(delta.before, "one that is gone was no member");
  for (const Member& member : delta.joined) {
    if (!in.insert(member.id).second)
      return unfit(delta.before, fmt::format("{} joins twice", to_string(member.id)));
    after.members.push_back(member);
  }
  if (fingerprint(after) != delta.fingerprint)
    return unfit(delta.before, "the members known are others");
  return after;
}

}  // namespace pliant
