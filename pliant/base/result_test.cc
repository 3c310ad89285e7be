#include "pliant/base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace pliant {
namespace {

Status fail_if(bool fails) {
  if (fails) return Error{Code::kTimeout, "rank 2 is silent", {1, 2, 3}, Epoch{7}};
  return {};
}

Status pass_on(bool fails, bool& reached_end) {
  PLIANT_TRY(fail_if(fails));
  reached_end = true;
  return {};
}

Result<int> halve(int value) {
  if (value % 2 != 0) return invalid("an odd number has no half");
  return value / 2;
}

TEST(Status, DefaultIsSuccess) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(static_cast<bool>(status));
}

TEST(Status, CarriesCodePeerEpochAndSentence) {
  const Status status = fail_if(true);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_EQ(status.error().peer, (PeerId{1, 2, 3}));
  EXPECT_EQ(status.error().epoch, Epoch{7});
  EXPECT_EQ(to_string(status.error()), "timeout: rank 2 is silent");
}

TEST(Status, TryPassesTheErrorOnAndGoesOnAfterSuccess) {
  bool reached_end = false;
  EXPECT_EQ(pass_on(true, reached_end).code(), Code::kTimeout);
  EXPECT_FALSE(reached_end);
  EXPECT_TRUE(pass_on(false, reached_end).ok());
  EXPECT_TRUE(reached_end);
}

TEST(Result, IsAValueOrAnError) {
  const auto four = halve(8);
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(*four, 4);
  const auto none = halve(7);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.code(), Code::kInvalid);
  EXPECT_EQ(none.error().message, "an odd number has no half");
}

TEST(Result, HoldsWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(*result);
  EXPECT_EQ(*taken, 5);
}

TEST(ResultDeathTest, TheWrongSideAborts) {
  EXPECT_DEATH((void)*halve(7), "an odd number has no half");
  EXPECT_DEATH((void)halve(8).error(), "error\\(\\) of a success");
  EXPECT_DEATH((void)Status().code(), "error\\(\\) of a success");
}

TEST(Result, SystemErrorNamesTheReason) {
  errno = ENOENT;
  EXPECT_EQ(system_error("open x").message, "open x: No such file or directory");
}

TEST(Code, EachHasAName) {
  EXPECT_STREQ(to_string(Code::kPeerLost), "peer lost");
  EXPECT_STREQ(to_string(Code::kStaleEpoch), "stale epoch");
  EXPECT_STREQ(to_string(Code::kTimeout), "timeout");
  EXPECT_STREQ(to_string(Code::kCancelled), "cancelled");
  EXPECT_STREQ(to_string(Code::kOverloaded), "overloaded");
  EXPECT_STREQ(to_string(Code::kInvalid), "invalid");
}

TEST(PeerId, PacksAndUnpacks) {
  const PeerId peer{0xfffffffe, 0xfffd, 0xfffc};
  EXPECT_EQ(PeerId::unpack(peer.packed()), peer);
  EXPECT_EQ(to_string(PeerId{0, 2, 1}), "0.2#1");
  EXPECT_LT((PeerId{0, 9, 9}), (PeerId{1, 0, 0}));
}

}  // namespace
}  // namespace pliant
