#include "pliant/data/redeal.h"

#include <algorithm>
#include <memory>

#include "pliant/base/check.h"
#include "pliant/base/contains.h"

namespace pliant {

bool is_lost(std::span<const Redeal> redeals, size_t member) {
  return std::ranges::any_of(redeals, [&](const Redeal& redeal) {
    return redeal.parts.at(member) == Redeal::Part::kLost;
  });
}

std::optional<Redeal> redeal_lost(std::span<const PeerId> dealt_to, std::span<const Redeal> before,
                                  std::span<const PeerId> active,
                                  std::span<const PeerId> left_behind) {
  Redeal made{std::vector<Redeal::Part>(dealt_to.size(), Redeal::Part::kKeeps)};
  bool any = false;
  for (size_t member = 0; member < dealt_to.size(); ++member) {
    if (is_lost(before, member)) continue;
    if (contains(active, dealt_to[member])) {
      made.parts[member] = Redeal::Part::kTakesOver;
    } else if (!contains(left_behind, dealt_to[member])) {
      made.parts[member] = Redeal::Part::kLost;
      any = true;
    }
  }
  if (!any) return std::nullopt;
  return made;
}

void apply(const Redeal& redeal, Draw& draw) {
  const size_t members = redeal.parts.size();
  PLIANT_CHECK(draw.members.size() == members, "a redeal is of the members of its draw");
  const auto flags = std::make_unique<bool[]>(2 * members);
  const std::span<bool> contributed(flags.get(), members);
  const std::span<bool> able(flags.get() + members, members);
  for (size_t member = 0; member < members; ++member) {
    contributed[member] = redeal.parts[member] != Redeal::Part::kLost;
    able[member] = redeal.parts[member] == Redeal::Part::kTakesOver;
  }
  const Draw further = redraw_lost(draw, contributed, able);
  for (size_t member = 0; member < members; ++member) {
    std::vector<Range>& ranges = draw.members[member];
    // Where nobody is able, the lost ones keep what nobody will compute.
    if (!contributed[member] && std::ranges::count(able, true) > 0) ranges.clear();
    ranges.insert(ranges.end(), further.members[member].begin(), further.members[member].end());
  }
}

std::vector<std::byte> encode(std::span<const Redeal> redeals) {
  std::vector<std::byte> bytes;
  for (const Redeal& redeal : redeals)
    for (const Redeal::Part part : redeal.parts) bytes.push_back(static_cast<std::byte>(part));
  return bytes;
}

Result<std::vector<Redeal>> decode_redeals(Bytes bytes, size_t count, size_t members) {
  if (members == 0 || bytes.size() % members != 0 || bytes.size() / members != count)
    return invalid("what is said to be redeals of a step is of another size");
  std::vector<Redeal> redeals(count);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto part = static_cast<Redeal::Part>(bytes[i]);
    if (part > Redeal::Part::kLost)
      return invalid("a redeal of a step gives a member a part that is not known here");
    redeals[i / members].parts.push_back(part);
  }
  return redeals;
}

}  // namespace pliant
