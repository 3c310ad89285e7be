#include "pliant/membership/schedule.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

TEST(SizeSchedule, ReadsSizesAndSteps) {
  const auto schedule = parse_size_schedule("2@0,4@100,8@200");
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(*schedule, (std::vector<ScheduledSize>{{2, 0}, {4, 100}, {8, 200}}));
}

TEST(SizeSchedule, RefusesWhatIsNone) {
  for (const char* text : {"", "2", "2@", "@1", "0@1", "2@1,", "2@5,3@5", "2@5,3@4", "-2@1", "2@-1",
                           "2@1 ,3@2", "99999999999@1"})
    EXPECT_FALSE(parse_size_schedule(text).ok()) << text;
}

}  // namespace
}  // namespace pliant
