#include "pliant/collective/group.h"

#include <unordered_map>

#include "pliant/base/bytes.h"
#include "pliant/base/check.h"
#include "pliant/base/defect.h"

namespace pliant {

Group make_group(std::span<const PeerId> members, PeerId self, Epoch epoch) {
  Group group;
  group.members.assign(members.begin(), members.end());
  group.self = -1;
  std::unordered_map<uint32_t, int> number_of_host;
  for (Rank rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    const auto [at, added] =
        number_of_host.emplace(peer.host, static_cast<int>(number_of_host.size()));
    group.host_of.push_back(at->second);
    if (peer == self) group.self = rank;
    if (peer.host == self.host) group.local.push_back(rank);
  }
  PLIANT_CHECK(group.self >= 0, "a process makes only groups that it belongs to");
  group.hosts = static_cast<int>(number_of_host.size());
  if (test_defect() == Defect::kNoEpochFence) epoch = {};
  group.id = hash64(std::as_bytes(std::span(group.members)), number(epoch));
  return group;
}

}  // namespace pliant
