// A View: an immutable, numbered list of the members of a job. Decided by the coordinator, handed
// to every member as it is; the old view stays true of its epoch. Values; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/ids.h"
#include "pliant/base/member.h"
#include "pliant/base/result.h"

namespace pliant {

struct View {
  Epoch epoch = Epoch{};
  std::vector<Member> members;  // the index is the rank

  bool operator==(const View&) const = default;
  Rank size() const { return static_cast<Rank>(members.size()); }
  const Member& at(Rank rank) const { return members.at(static_cast<size_t>(rank)); }
  // The rank of a peer in this view, or -1.
  Rank rank_of(PeerId peer) const;
  // "rank 2 (host a, pid 4711)", or "peer 0.2#1" for a stranger to this view.
  std::string describe(PeerId peer) const;
};

inline constexpr size_t kMembersMax = 65536;

std::vector<std::byte> encode(const View& view);
Result<View> decode_view(Bytes bytes);

}  // namespace pliant
