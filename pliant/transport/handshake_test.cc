#include "pliant/transport/handshake.h"

#include <gtest/gtest.h>

#include <set>

namespace pliant {
namespace {

Hello sample() {
  return {.job = "train",
          .token = std::string(kTokenBytesMin, 's'),
          .from = {1, 2, 3},
          .to = {4, 5, 6},
          .epoch = Epoch{7},
          .stream = 1,
          .streams = 4};
}

Expectation expectation() {
  return {.job = "train", .token = std::string(kTokenBytesMin, 's'), .self = {4, 5, 6}};
}

Result<Hello> decode(const std::vector<std::byte>& bytes) {
  const auto head = decode_hello_head(std::span(bytes).first<kHelloHeadBytes>());
  if (!head.ok()) return head.error();
  EXPECT_EQ(head->body_bytes, bytes.size() - kHelloHeadBytes);
  return decode_hello_body(std::span(bytes).subspan(kHelloHeadBytes));
}

TEST(Handshake, AHelloSurvivesTheWire) {
  const Result<Hello> hello = decode(encode(sample()));
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(*hello, sample());
}

TEST(Handshake, TheLongestJobAndTokenFit) {
  Hello hello = sample();
  hello.job = std::string(kJobBytesMax, 'j');
  hello.token = std::string(kTokenBytesMax, 't');
  EXPECT_EQ(*decode(encode(hello)), hello);
}

TEST(Handshake, AnAnswerSurvivesTheWire) {
  std::set<std::string> sentences;
  for (int code = 1; code <= 6; ++code) {
    const auto answer = static_cast<Answer>(code);
    const Result<Answer> decoded = decode_answer(encode(answer));
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, answer);
    sentences.insert(to_string(answer));
  }
  EXPECT_EQ(sentences.size(), 6u);
}

TEST(Handshake, AMeaninglessAnswerIsRefused) {
  auto bytes = encode(Answer::kAccepted);
  bytes[6] = std::byte{0};
  EXPECT_FALSE(decode_answer(bytes).ok());
  bytes[6] = std::byte{99};
  EXPECT_FALSE(decode_answer(bytes).ok());
  bytes = encode(Answer::kAccepted);
  bytes[0] = std::byte{0};
  EXPECT_FALSE(decode_answer(bytes).ok());
}

TEST(Handshake, AHeadIsCheckedBeforeItsBodyIsRead) {
  std::vector<std::byte> bytes = encode(sample());
  bytes[0] = std::byte{'G'};
  EXPECT_FALSE(decode(bytes).ok());
  bytes = encode(sample());
  bytes[6] = bytes[7] = std::byte{0xff};  // 65535 bytes of body
  EXPECT_FALSE(decode_hello_head(std::span(bytes).first<kHelloHeadBytes>()).ok());
}

TEST(Handshake, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = encode(sample());
  const Bytes body = std::span(bytes).subspan(kHelloHeadBytes);
  for (size_t size = 0; size < body.size(); ++size)
    EXPECT_FALSE(decode_hello_body(body.first(size)).ok()) << size;
  std::vector<std::byte> longer(body.begin(), body.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_hello_body(longer).ok());
}

TEST(Handshake, AnImpossibleConnectionNumberIsRefused) {
  for (const auto& [stream, streams] : {std::pair{4, 4}, {0, 0}, {0, 65}, {255, 64}}) {
    Hello hello = sample();
    hello.stream = static_cast<uint8_t>(stream);
    hello.streams = static_cast<uint8_t>(streams);
    EXPECT_FALSE(decode(encode(hello)).ok()) << stream << " of " << streams;
  }
  Hello nobody = sample();
  nobody.from = {};
  EXPECT_FALSE(decode(encode(nobody)).ok());
}

TEST(Handshake, JudgesTheSecretBeforeAnythingElse) {
  EXPECT_EQ(judge(sample(), expectation()), Answer::kAccepted);
  Hello hello = sample();
  hello.to = {9, 9, 9};
  EXPECT_EQ(judge(hello, expectation()), Answer::kWrongPeer);
  // Who has the wrong secret is not told that the peer is wrong too.
  hello.token.back() = 'x';
  EXPECT_EQ(judge(hello, expectation()), Answer::kWrongSecret);
  hello = sample();
  hello.job = "other";
  EXPECT_EQ(judge(hello, expectation()), Answer::kWrongSecret);
  hello = sample();
  hello.token += 's';
  EXPECT_EQ(judge(hello, expectation()), Answer::kWrongSecret);
}

}  // namespace
}  // namespace pliant
