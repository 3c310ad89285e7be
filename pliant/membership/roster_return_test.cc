// Who comes back to a coordinator that comes back itself: what simulated histories got wrong once.
#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "pliant/membership/test_roster.h"

namespace pliant {
namespace {

using namespace std::chrono_literals;

class RosterReturn : public RosterTest {
 protected:
  void crash_and_return(const RosterOptions& options) {
    const std::vector<std::byte> log = roster_->snapshot();
    auto restored = Roster::restore(options, log, now_);
    ASSERT_TRUE(restored.ok());
    roster_.emplace(std::move(*restored));
    for (uint32_t host = 0; host < options.hosts.size(); ++host) send(Event::HostReady{host});
  }
};

// The view that took it in was logged, and the coordinator died before it could send it.
TEST_F(RosterReturn, NewcomerThatNeverHeardOfItsFirstViewIsTold) {
  run();
  ASSERT_TRUE(roster_->resize(5, now_).ok());
  decide();
  const PeerId fifth = started_[4];
  join(fifth);
  meet(fifth);
  ASSERT_EQ(size(), 5);
  crash_and_return(standard());
  const Actions actions = join(fifth, 0);
  EXPECT_EQ(find<Action::Refuse>(actions), nullptr);
  const auto* const publish = find<Action::Publish>(actions);
  ASSERT_NE(publish, nullptr);
  EXPECT_EQ(publish->to, std::vector{fifth});
  EXPECT_EQ(publish->view, roster_->view());
}

// It was replaced when it was declared lost; that it leaves in order later means nothing.
TEST_F(RosterReturn, LostWorkerThatExitsLaterDoesNotMakeTheJobSmaller) {
  RosterOptions options = standard();
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  const PeerId silent = at(3);
  mute_.insert(silent);
  wait(1s);
  wait(2s);
  ASSERT_EQ(roster_->view().rank_of(silent), -1);
  crash_and_return(options);
  exit(silent, 0);
  EXPECT_EQ(roster_->target(), 4u);
}

}  // namespace
}  // namespace pliant
