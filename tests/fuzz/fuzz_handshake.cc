// The decoders of the handshake, which read what strangers send: whatever the bytes, they return;
// what they accept, they write back the same.
#include <algorithm>
#include <cstdint>
#include <span>

#include "pliant/transport/handshake.h"

namespace {

using pliant::kAnswerBytes;
using pliant::kHelloHeadBytes;

void try_hello(std::span<const std::byte> bytes) {
  const auto head = pliant::decode_hello_head(bytes.first<kHelloHeadBytes>());
  const auto body = bytes.subspan(kHelloHeadBytes);
  // The body is tried also behind a bad head, or little of it would ever be reached.
  const auto hello = pliant::decode_hello_body(body);
  if (head) PLIANT_CHECK(head->body_bytes <= pliant::kHelloBytesMax - kHelloHeadBytes);
  if (!hello) return;
  PLIANT_CHECK(hello->stream < hello->streams && hello->streams <= pliant::kStreamsMax);
  PLIANT_CHECK(hello->token.size() <= pliant::kTokenBytesMax);
  const auto again = pliant::encode(*hello);
  PLIANT_CHECK(std::ranges::equal(std::span(again).subspan(kHelloHeadBytes), body),
               "a hello has one encoding");
  PLIANT_CHECK(
      pliant::judge(*hello, {"job", hello->token + "x", {}}) == pliant::Answer::kWrongSecret,
      "nobody guesses the secret");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.size() < std::max(kHelloHeadBytes, kAnswerBytes)) return 0;
  try_hello(bytes);
  if (const auto answer = pliant::decode_answer(bytes.first<kAnswerBytes>())) {
    const auto again = pliant::encode(*answer);
    PLIANT_CHECK(again[6] == bytes[6], "an answer keeps its meaning");
  }
  return 0;
}
