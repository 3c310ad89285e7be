#include "pliant/base/bytes.h"

#include <gtest/gtest.h>

#include <set>

namespace pliant {
namespace {

TEST(HumanBytes, PicksTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(16 << 20), "16 MiB");
  EXPECT_EQ(human_bytes(uint64_t{3} << 30), "3 GiB");
  EXPECT_EQ(human_bytes(uint64_t{4096} << 40), "4096 TiB");
}

TEST(ParseBytes, ReadsWhatPeopleWrite) {
  EXPECT_EQ(*parse_bytes("1234"), 1234U);
  EXPECT_EQ(*parse_bytes("0"), 0U);
  EXPECT_EQ(*parse_bytes("100B"), 100U);
  EXPECT_EQ(*parse_bytes("1K"), 1024U);
  EXPECT_EQ(*parse_bytes("64kb"), 65536U);
  EXPECT_EQ(*parse_bytes("16MiB"), 16U << 20);
  EXPECT_EQ(*parse_bytes("1.5G"), uint64_t{3} << 29);
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text : {"", "K", "-1", "1X", "1KK", "1 K", "K1", "nan", "1e30", "inf"}) {
    const auto bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << "'" << text << "'";
    EXPECT_NE(bytes.error().message.find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(Hash64, IsTheSameInEveryBuild) {
  // Peers of different builds compare these: a change of the function changes the protocol.
  EXPECT_EQ(hash64(std::string_view("")), 4441772488867197775ULL);
  EXPECT_EQ(hash64(std::string_view("gradient/0")), 16844105360609274613ULL);
}

TEST(Hash64, TellsLengthSeedAndEveryBytePart) {
  std::set<uint64_t> seen;
  std::string text(40, '\0');
  for (size_t length = 0; length <= text.size(); ++length)
    seen.insert(hash64(std::string_view(text).substr(0, length)));
  EXPECT_EQ(seen.size(), text.size() + 1) << "zeros of different length must differ";
  for (char& c : text) {
    c = 'x';
    seen.insert(hash64(text));
    c = '\0';
  }
  EXPECT_EQ(seen.size(), 2 * text.size() + 1) << "each byte must count";
  EXPECT_NE(hash64(text, 0), hash64(text, 1));
}

TEST(EqualInConstantTime, ComparesAll) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secret", "secreT"));
  EXPECT_FALSE(equal_in_constant_time("Secret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secret", "secrets"));
  EXPECT_FALSE(equal_in_constant_time("secret", ""));
}

TEST(ReaderWriter, RoundTrip) {
  Writer writer;
  writer.put(uint8_t{7});
  writer.put(int64_t{-5});
  writer.put_string("name");
  writer.put_string("");
  writer.put(uint16_t{9});
  Reader reader(writer.bytes());
  EXPECT_EQ(reader.take<uint8_t>(), 7);
  EXPECT_EQ(reader.take<int64_t>(), -5);
  EXPECT_EQ(reader.take_string(4), "name");
  EXPECT_EQ(reader.take_string(4), "");
  EXPECT_FALSE(reader.finished());
  EXPECT_EQ(reader.left(), 2U);
  EXPECT_EQ(reader.take<uint16_t>(), 9);
  EXPECT_TRUE(reader.finished());
}

TEST(Reader, AShortFieldFailsItAndAllLaterOnes) {
  Writer writer;
  writer.put(uint32_t{1});
  Reader reader(writer.bytes());
  EXPECT_EQ(reader.take<uint64_t>(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.take<uint8_t>(), 0) << "the bytes that were there must not be read any more";
  EXPECT_FALSE(reader.finished());
}

TEST(Reader, AStringLongerThanTheRestOrTheLimitIsRefused) {
  Writer promises_too_much;
  promises_too_much.put(uint32_t{0xffffffff});
  promises_too_much.put(uint8_t{'x'});
  Reader first(promises_too_much.bytes());
  EXPECT_EQ(first.take_string(SIZE_MAX), "");
  EXPECT_FALSE(first.ok());

  Writer too_long;
  too_long.put_string("12345");
  Reader second(too_long.bytes());
  EXPECT_EQ(second.take_string(4), "");
  EXPECT_FALSE(second.ok());
}

}  // namespace
}  // namespace pliant
