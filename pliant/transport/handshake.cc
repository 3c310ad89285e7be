#include "pliant/transport/handshake.h"

#include <fmt/format.h>

namespace pliant {
namespace {
constexpr uint32_t kHelloMagic = 0x484e4c50;   // "PLNH"
constexpr uint32_t kAnswerMagic = 0x414e4c50;  // "PLNA"
}  // namespace

const char* to_string(Answer answer) {
  switch (answer) {
    case Answer::kAccepted: return "accepted";
    case Answer::kWrongSecret: return "wrong token or job";
    case Answer::kWrongVersion: return "another version of the protocol";
    case Answer::kWrongPeer: return "another peer has this address";
    case Answer::kDuplicate: return "the connection exists already";
    case Answer::kLost: return "we were declared lost";
  }
  return "unknown";
}

std::vector<std::byte> encode(const Hello& hello) {
  Writer body;
  body.put(hello.from.packed());
  body.put(hello.to.packed());
  body.put(number(hello.epoch));
  body.put(hello.stream);
  body.put(hello.streams);
  body.put_string(hello.job);
  body.put_string(hello.token);
  Writer writer;
  writer.put(kHelloMagic);
  writer.put(kProtocolVersion);
  PLIANT_CHECK(kHelloHeadBytes + body.bytes().size() <= kHelloBytesMax,
               "job and token are checked when a transport opens");
  writer.put(static_cast<uint16_t>(body.bytes().size()));
  for (const std::byte byte : body.bytes()) writer.put(byte);
  return writer.bytes();
}

std::array<std::byte, kAnswerBytes> encode(Answer answer) {
  Writer writer;
  writer.put(kAnswerMagic);
  writer.put(kProtocolVersion);
  writer.put(answer);
  writer.put(uint8_t{0});
  std::array<std::byte, kAnswerBytes> bytes{};
  PLIANT_CHECK(writer.bytes().size() == bytes.size());
  std::memcpy(bytes.data(), writer.bytes().data(), bytes.size());
  return bytes;
}

Result<HelloHead> decode_hello_head(std::span<const std::byte, kHelloHeadBytes> bytes) {
  Reader reader(bytes);
  const auto magic = reader.take<uint32_t>();
  HelloHead head;
  head.version = reader.take<uint16_t>();
  head.body_bytes = reader.take<uint16_t>();
  if (magic != kHelloMagic) return invalid("it does not speak our protocol");
  if (head.body_bytes > kHelloBytesMax - kHelloHeadBytes)
    return invalid(fmt::format("its hello announces {} bytes, more than the {} that are allowed",
                               head.body_bytes, kHelloBytesMax - kHelloHeadBytes));
  return head;
}

Result<Hello> decode_hello_body(Bytes bytes) {
  Reader reader(bytes);
  Hello hello;
  hello.from = PeerId::unpack(reader.take<uint64_t>());
  hello.to = PeerId::unpack(reader.take<uint64_t>());
  hello.epoch = Epoch{reader.take<uint32_t>()};
  hello.stream = reader.take<uint8_t>();
  hello.streams = reader.take<uint8_t>();
  hello.job = reader.take_string(kJobBytesMax);
  hello.token = reader.take_string(kTokenBytesMax);
  if (!reader.finished()) return invalid("its hello is cut short or too long");
  if (hello.streams == 0 || hello.streams > kStreamsMax || hello.stream >= hello.streams)
    return invalid("its hello names a connection that cannot be");
  if (hello.from == PeerId{}) return invalid("its hello names no sender");
  return hello;
}

Result<Answer> decode_answer(std::span<const std::byte, kAnswerBytes> bytes) {
  Reader reader(bytes);
  const auto magic = reader.take<uint32_t>();
  reader.take<uint16_t>();  // an acceptor of another version says so in its answer
  const auto answer = reader.take<uint8_t>();
  if (magic != kAnswerMagic) return invalid("the answer to our hello is not of our protocol");
  if (answer < static_cast<uint8_t>(Answer::kAccepted) ||
      answer > static_cast<uint8_t>(Answer::kLost))
    return invalid("the answer to our hello has no meaning");
  return static_cast<Answer>(answer);
}

Answer judge(const Hello& hello, const Expectation& expected) {
  const bool token = equal_in_constant_time(hello.token, expected.token);
  const bool job = equal_in_constant_time(hello.job, expected.job);
  if (!(static_cast<int>(token) & static_cast<int>(job))) return Answer::kWrongSecret;
  if (hello.to != expected.self) return Answer::kWrongPeer;
  return Answer::kAccepted;
}

}  // namespace pliant
