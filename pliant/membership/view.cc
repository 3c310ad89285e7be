#include "pliant/membership/view.h"

#include <fmt/format.h>

#include <algorithm>

namespace pliant {

Rank View::rank_of(PeerId peer) const {
  const auto at =
      std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.id == peer; });
  return at == members.end() ? -1 : static_cast<Rank>(at - members.begin());
}

std::string View::describe(PeerId peer) const {
  const Rank rank = rank_of(peer);
  if (rank < 0) return "peer " + to_string(peer);
  return fmt::format("rank {} (host {}, pid {})", rank, at(rank).host, at(rank).pid);
}

std::vector<std::byte> encode(const View& view) {
  Writer writer;
  writer.put(number(view.epoch));
  writer.put(static_cast<uint32_t>(view.members.size()));
  for (const Member& member : view.members) {
    writer.put(member.id.packed());
    writer.put(member.pid);
    writer.put(member.port);
    writer.put_string(member.host);
    writer.put_string(member.address);
    writer.put_string(member.local_name);
  }
  return writer.bytes();
}

Result<View> decode_view(Bytes bytes) {
  constexpr size_t kTextMax = 256;
  constexpr size_t kMemberBytesMin = 8 + 4 + 2 + 3 * 4;
  Reader reader(bytes);
  View view;
  view.epoch = Epoch{reader.take<uint32_t>()};
  const auto count = reader.take<uint32_t>();
  if (!reader.ok() || count > kMembersMax || count > reader.left() / kMemberBytesMin)
    return invalid("a view names more members than it holds");
  for (uint32_t i = 0; i < count; ++i) {
    Member member;
    member.id = PeerId::unpack(reader.take<uint64_t>());
    member.pid = reader.take<int32_t>();
    member.port = reader.take<uint16_t>();
    member.host = reader.take_string(kTextMax);
    member.address = reader.take_string(kTextMax);
    member.local_name = reader.take_string(kTextMax);
    view.members.push_back(std::move(member));
  }
  if (!reader.finished()) return invalid("a view is cut short or too long");
  return view;
}

}  // namespace pliant
