// What two ends of a connection say before the first message: the dialler proves that it belongs
// to the job, the acceptor answers yes or why not. Values and pure functions; any thread.
//
// hello:  magic u32, version u16, body bytes u16 | from u64, to u64, epoch u32, stream u8,
//         streams u8, job string, token string
// answer: magic u32, version u16, answer u8, zero u8
//
// The head gives the size of the body, which is checked before a byte of it is read: a stranger
// costs at most kHelloBytesMax of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/ids.h"
#include "pliant/base/result.h"

namespace pliant {

inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr size_t kHelloHeadBytes = 8;
inline constexpr size_t kHelloBytesMax = 1024;  // head and body
inline constexpr size_t kAnswerBytes = 8;
inline constexpr size_t kStreamsMax = 64;     // connections from one peer to another
inline constexpr size_t kTokenBytesMin = 32;  // shorter ones could be guessed
inline constexpr size_t kJobBytesMax = 256;
inline constexpr size_t kTokenBytesMax = 512;

struct Hello {
  std::string job;
  std::string token;
  PeerId from;
  PeerId to;
  Epoch epoch = Epoch{};  // the dialler's view, for people; each message carries its own
  uint8_t stream = 0;     // which of `streams` connections this is
  uint8_t streams = 1;

  bool operator==(const Hello&) const = default;
};

enum class Answer : uint8_t {
  kAccepted = 1,
  kWrongSecret,   // token or job; which of them is not told
  kWrongVersion,  // of the protocol
  kWrongPeer,     // the acceptor is not the one that was meant
  kDuplicate,     // this connection exists already
  kLost,          // the acceptor has declared the dialler lost, and stays with it
};

// "wrong token or job"
const char* to_string(Answer answer);

std::vector<std::byte> encode(const Hello& hello);
std::array<std::byte, kAnswerBytes> encode(Answer answer);

struct HelloHead {
  uint16_t version = 0;
  size_t body_bytes = 0;
};
Result<HelloHead> decode_hello_head(std::span<const std::byte, kHelloHeadBytes> bytes);
Result<Hello> decode_hello_body(Bytes bytes);
Result<Answer> decode_answer(std::span<const std::byte, kAnswerBytes> bytes);

// What the acceptor knows.
struct Expectation {
  std::string job;
  std::string token;
  PeerId self;
};

// The secret is judged first and in constant time: who does not know it learns nothing else.
Answer judge(const Hello& hello, const Expectation& expected);

}  // namespace pliant
