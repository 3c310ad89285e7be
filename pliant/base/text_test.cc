#include "pliant/base/text.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

using Items = std::vector<std::string>;

TEST(Text, LowerChangesTheLettersOfAsciiAlone) {
  EXPECT_EQ(lower("Content-LENGTH @[`{ 19"), "content-length @[`{ 19");
  EXPECT_EQ(lower("\xc3\x84"), "\xc3\x84");
}

TEST(Text, TrimmedTakesBlanksOffBothEnds) {
  EXPECT_EQ(trimmed(" \ta \tb\r\n"), "a \tb");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed("\r\n", " \t"), "\r\n");
  EXPECT_EQ(trimmed(" \t "), "");
  EXPECT_EQ(trimmed(""), "");
}

TEST(Text, CommasSeparate) {
  EXPECT_EQ(comma_separated("1K,64K,1M"), (Items{"1K", "64K", "1M"}));
  EXPECT_EQ(comma_separated("kill"), Items{"kill"});
  EXPECT_EQ(comma_separated("a,,b,"), (Items{"a", "", "b", ""}));
  EXPECT_EQ(comma_separated(""), Items{""});
}

}  // namespace
}  // namespace pliant
