#include "pliant/runtime/http_text.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

TEST(HttpText, LowerChangesTheLettersOfAsciiAlone) {
  EXPECT_EQ(lower("Content-LENGTH @[`{ 19"), "content-length @[`{ 19");
  EXPECT_EQ(lower("\xc3\x84"), "\xc3\x84");
}

TEST(HttpText, TrimmedTakesBlanksAndTabsOffBothEnds) {
  EXPECT_EQ(trimmed(" \ta \tb\t "), "a \tb");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed("\r\n"), "\r\n");
  EXPECT_EQ(trimmed(" \t "), "");
  EXPECT_EQ(trimmed(""), "");
}

}  // namespace
}  // namespace pliant
