// Feeds arbitrary bytes to the decoders of the store's messages and manifests, and to a line as a
// stranger would; what decodes must encode to something that decodes to the same.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "pliant/runtime/store_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pliant;
  const Bytes bytes = std::as_bytes(std::span(data, size));
  if (const auto manifest = store::decode_manifest(bytes); manifest.ok()) {
    const auto again = store::decode_manifest(store::encode(*manifest));
    if (!again.ok() || *again != *manifest) std::abort();
  }
  if (const auto offer = decode_offer(bytes); offer.ok()) {
    const auto again = decode_offer(encode(*offer));
    if (!again.ok() || again->ticket != offer->ticket || again->manifest != offer->manifest)
      std::abort();
  }
  if (const auto summaries = decode_summaries(bytes); summaries.ok()) {
    const auto again = decode_summaries(encode(*summaries));
    if (!again.ok() || *again != *summaries) std::abort();
  }
  if (const auto pull = decode_pull(bytes); pull.ok()) {
    const auto again = decode_pull(encode(*pull));
    if (!again.ok() || *again != *pull) std::abort();
  }
  if (const auto peers = decode_peers(bytes); peers.ok()) {
    const auto again = decode_peers(encode(*peers));
    if (!again.ok() || *again != *peers) std::abort();
  }
  if (const auto outline = decode_outline(bytes); outline.ok()) {
    const auto again = decode_outline(encode(*outline));
    if (!again.ok() || again->manifest != outline->manifest) std::abort();
  }
  (void)decode_ask(bytes);
  (void)decode_outcome(bytes);
  (void)decode_version(bytes);
  (void)decode_copy(bytes);

  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
    std::abort();
  const Fd stranger(ends[0]);
  StoreLine line{Fd(ends[1])};
  if (size > 0 && send(stranger.get(), data, size, MSG_NOSIGNAL) < 0) std::abort();
  (void)line.fill();
  while (true) {
    const auto frame = line.next();
    if (!frame.ok() || !frame->has_value()) break;
    if ((*frame)->body.size() > size) std::abort();
  }
  return 0;
}
