#include "cli/progress_line.h"

#include <gtest/gtest.h>

namespace pliant::cli {
namespace {

TEST(ProgressLine, SaysHowFarAndHowFast) {
  EXPECT_EQ(progress_text("convert", 512, 2048, 2), "convert: 25 %, 512 B of 2 KiB, 256 B/s");
  EXPECT_EQ(progress_text("convert", 0, 2048, 0), "convert: 0 %, 0 B of 2 KiB");
  EXPECT_EQ(progress_text("verify", 0, 0, 1), "verify: 100 %, 0 B of 0 B, 0 B/s");
}

}  // namespace
}  // namespace pliant::cli
