// Feeds arbitrary bytes to the decoder of control messages, whole and as a stream; what decodes
// must encode to something that decodes to the same. A change of a view is also applied.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>

#include "pliant/runtime/herald.h"

namespace {

// Whoever the change removes was a member: no change may make a view with somebody in it twice.
void try_change(const pliant::ViewChanged& changed) {
  pliant::View held{changed.delta.before, {}};
  for (const pliant::Departure& gone : changed.delta.gone) {
    pliant::Member member;
    member.id = gone.peer;
    held.members.push_back(std::move(member));
  }
  const auto decided = pliant::complete(changed, held);
  if (decided.ok() && decided->view.members != changed.delta.joined) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant;
  const Bytes bytes = std::as_bytes(std::span(data, size));
  if (const auto message = decode_message(bytes); message.ok()) {
    const auto again = decode_message(Bytes(encode_message(*message)).subspan(4));
    if (!again.ok() || *again != *message) std::abort();
    if (const auto* changed = std::get_if<ViewChanged>(&*message)) try_change(*changed);
  }
  MessageReader reader(kStrangerBytesMax);
  // The first byte says in which portions the rest arrives.
  const size_t step = size == 0 ? 1 : 1 + data[0];
  for (size_t at = 0; at < size; at += step) {
    reader.feed(bytes.subspan(at, std::min(step, size - at)));
    while (true) {
      const auto next = reader.next();
      if (!next.ok()) return 0;
      if (!next->has_value()) break;
    }
  }
  return 0;
}
