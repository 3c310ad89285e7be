#include "pliant/base/time.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;

TEST(HumanDuration, PicksTheUnit) {
  EXPECT_EQ(human_duration(Duration(0)), "0.0 us");
  EXPECT_EQ(human_duration(Duration(1500)), "1.5 us");
  EXPECT_EQ(human_duration(microseconds(3100)), "3.10 ms");
  EXPECT_EQ(human_duration(milliseconds(2000)), "2.00 s");
}

TEST(ParseDuration, ReadsWhatPeopleWrite) {
  EXPECT_EQ(*parse_duration("500ms"), milliseconds(500));
  EXPECT_EQ(*parse_duration("2s"), milliseconds(2000));
  EXPECT_EQ(*parse_duration("1.5"), milliseconds(1500));
  EXPECT_EQ(*parse_duration("3m"), minutes(3));
  EXPECT_EQ(*parse_duration("3min"), minutes(3));
  EXPECT_EQ(*parse_duration("250us"), microseconds(250));
  EXPECT_EQ(*parse_duration("0"), Duration(0));
}

TEST(ParseDuration, RefusesTheRest) {
  for (const char* text : {"", "s", "-1s", "1x", "1 s", "nan", "inf", "1e300", "2ss"}) {
    const auto duration = parse_duration(text);
    ASSERT_FALSE(duration.ok()) << "'" << text << "'";
    EXPECT_NE(duration.error().message.find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(Seconds, ConvertsBothWays) {
  EXPECT_DOUBLE_EQ(seconds(milliseconds(250)), 0.25);
  EXPECT_EQ(from_seconds(0.25), milliseconds(250));
}

}  // namespace
}  // namespace pliant
