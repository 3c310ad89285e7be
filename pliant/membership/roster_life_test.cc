// How workers are replaced, how jobs end, and what a restarted coordinator knows.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "pliant/membership/test_roster.h"

namespace pliant {
namespace {

using namespace std::chrono_literals;

TEST_F(RosterTest, FailedWorkersComeBackWithMoreAndMoreDelay) {
  RosterOptions options = standard();
  options.hosts = {{"a", 1}};
  options.initial = options.min = options.max = 1;
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  Duration expected = 500ms;
  for (uint16_t incarnation = 1; incarnation < 10; ++incarnation) {
    const PeerId peer = {0, 0, incarnation};
    exit(peer, 1);
    wait(expected - 1ms);
    ASSERT_EQ(started_.size(), incarnation);
    EXPECT_EQ(*roster_->next_deadline(), now_ + 1ms);
    wait(1ms);
    ASSERT_EQ(started_.size(), incarnation + 1u);
    EXPECT_EQ(started_.back(), (PeerId{0, 0, static_cast<uint16_t>(incarnation + 1)}));
    join(started_.back());
    wait(200ms);
    EXPECT_EQ(at(0), started_.back());
    expected = std::min<Duration>(2 * expected, 30s);
  }
  // One that was well for a while starts from the beginning.
  wait(10s);
  exit(started_.back(), 1);
  const size_t before = started_.size();
  wait(500ms);
  EXPECT_EQ(started_.size(), before + 1);
}

TEST_F(RosterTest, RestartsMayBeExhausted) {
  RosterOptions options = standard();
  options.initial = options.min = 1;
  options.restarts = 1;
  run(options);
  exit(at(0), 3, "exited with code 3");
  wait(500ms);
  ASSERT_EQ(started_.size(), 2u);
  EXPECT_FALSE(finish_);
  exit(started_[1], 4, "exited with code 4");
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 4);
  EXPECT_NE(finish_->message.find("exited with code 4"), std::string::npos);
}

TEST_F(RosterTest, HostThatFailsRepeatedlyIsSetAsideAndReturns) {
  RosterOptions options = standard();
  options.hosts = {{"a", 2}, {"b", 3}};
  options.initial = options.max = 2;
  options.min = 1;
  options.restarts = RosterOptions::kAnyNumber;
  open(options);
  exit(started_[0], 1);
  exit(started_[1], 1);
  wait(500ms);
  // Slots that never failed come first.
  ASSERT_EQ(started_.size(), 4u);
  EXPECT_EQ(started_[2].host, 1u);
  EXPECT_EQ(started_[3].host, 1u);
  exit(started_[2], 1);
  exit(started_[3], 1);
  wait(500ms);
  ASSERT_EQ(started_.size(), 6u);
  EXPECT_EQ(started_[4], (PeerId{1, 2, 1}));
  EXPECT_EQ(started_[5], (PeerId{0, 0, 2}));
  said_.clear();
  exit(started_[5], 1);
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_EQ(said_[1], "host a is set aside for 60.00 s: its workers fail again and again");
  wait(5s);
  EXPECT_EQ(started_.back().host, 1u);
  // When b fails as well, a is all that is left, once its time is over.
  wait(56s);
  const size_t before = started_.size();
  for (const PeerId peer : {started_[4], started_[before - 1]}) exit(peer, 1);
  wait(30s);
  const auto fresh = newcomers(before);
  EXPECT_TRUE(std::any_of(fresh.begin(), fresh.end(), [](PeerId p) { return p.host == 0; }));
}

TEST_F(RosterTest, ProgramThatNeverComesUpEndsTheJob) {
  RosterOptions options = standard();
  options.hosts = {{"a", 1}};
  options.initial = options.min = options.max = 1;
  options.restarts = RosterOptions::kAnyNumber;
  open(options);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(finish_);
    exit(started_.back(), 3, "exited with code 3");
    wait(5s);
  }
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 3);
}

TEST_F(RosterTest, SilenceIsALossAfterTheHeartbeat) {
  RosterOptions options = standard();
  options.heartbeat = 200ms;
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  const PeerId stopped = at(2);
  mute_.insert(stopped);
  wait(199ms);
  EXPECT_EQ(size(), 4);
  EXPECT_EQ(*roster_->next_deadline(), now_ + 1ms);
  wait(1ms);
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(gone_.at(0), (Departure{stopped, false, false, "was silent for 200.00 ms"}));
  // Its place is taken elsewhere although it still runs; continued, it finds itself out.
  wait(500ms);
  EXPECT_EQ(started_.back(), (PeerId{1, 0, 1}));
  EXPECT_NE(find<Action::Refuse>(join(stopped, 1)), nullptr);
  exit(stopped, 0);
  EXPECT_EQ(roster_->target(), 4u);
}

TEST_F(RosterTest, HeartbeatsAloneDecideNothing) {
  run();
  EXPECT_FALSE(roster_->handle(Event::Alive{at(0)}, now_));
  EXPECT_TRUE(decide().empty());
}

TEST_F(RosterTest, MemberOutOfReachOfAnotherIsLost) {
  run();
  send(Event::Suspected{at(0), at(1), "no answer"});
  EXPECT_EQ(size(), 4);
  const PeerId accused = at(1);
  wait(2s);
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(gone_.at(0).peer, accused);
  EXPECT_FALSE(gone_.at(0).ended);
}

TEST_F(RosterTest, ScheduleFollowsTheSteps) {
  RosterOptions options = standard();
  options.initial = 2;
  options.schedule = *parse_size_schedule("2@0,4@100,3@200");
  run(options);
  send(Event::Progress{99});
  EXPECT_EQ(started_.size(), 2u);
  send(Event::Progress{100});
  EXPECT_EQ(started_.size(), 4u);
  EXPECT_EQ(roster_->target(), 4u);
  send(Event::Progress{250});
  EXPECT_EQ(roster_->target(), 3u);
}

TEST_F(RosterTest, ProposalsAreWishes) {
  run();
  send(Event::Proposal{at(1), 6});
  EXPECT_EQ(roster_->target(), 6u);
  send(Event::Proposal{at(1), 60});
  EXPECT_EQ(roster_->target(), 6u);
  EXPECT_EQ(said_.back(),
            "rank 1 (host a, pid 101) proposed 60 members: 60 members are more than the job's "
            "maximum of 8");
}

TEST_F(RosterTest, ProgramThatEndsEverywhereEndsTheJobQuietly) {
  run();
  const std::vector<PeerId> all = ids(last_);
  for (const PeerId peer : all) {
    send(Event::Left{peer});
    send(Event::Disconnected{peer});
  }
  for (const PeerId peer : all) exit(peer, 0);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 0);
  EXPECT_EQ(finish_->message, "");
  EXPECT_TRUE(said_.empty());
  EXPECT_EQ(started_.size(), 4u);
}

TEST_F(RosterTest, MembersThatEndOneByOneAreNotTooFew) {
  run();
  for (int i = 0; i < 3; ++i) {
    const PeerId peer = at(0);
    send(Event::Left{peer});
    exit(peer, 0);
  }
  EXPECT_EQ(roster_->paused(), "");
  EXPECT_EQ(size(), 1);
  EXPECT_FALSE(finish_);
  exit(at(0), 0);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 0);
}

TEST_F(RosterTest, EndWithCodeZeroWithoutAWordIsAPlannedLeave) {
  RosterOptions options = standard();
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  const PeerId peer = at(3);
  send(Event::Died{peer});
  exit(peer, 0, "exited with code 0");
  wait(2s);
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(started_.size(), 4u);
  EXPECT_EQ(roster_->target(), 3u);
}

TEST_F(RosterTest, FailureBeforeTheEndDoesNotSpoilIt) {
  run();
  kill(at(2));
  for (const PeerId peer : ids(last_)) exit(peer, 0);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 0);
  ASSERT_FALSE(said_.empty());
  EXPECT_NE(said_[0].find("rank 2"), std::string::npos) << said_[0];
}

// The others were quicker with their last steps than its agent with the news of its end.
TEST_F(RosterTest, LossBeforeTheEndOfWhichWeHearLateDoesNotSpoilIt) {
  run();
  const PeerId dead = at(2);
  send(Event::Died{dead});
  for (const PeerId peer : ids(last_)) exit(peer, 0);
  EXPECT_FALSE(finish_);
  exit(dead, 137, "was killed by signal 9");
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 0);
}

TEST_F(RosterTest, FailureAtTheVeryEndIsTheJobs) {
  run();
  const std::vector<PeerId> all = ids(last_);
  for (const size_t i : {0u, 1u, 2u}) exit(all[i], 0);
  exit(all[3], 9, "exited with code 9");
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 9);
}

TEST_F(RosterTest, NothingStartsAgainAfterTheLastMemberEndedWell) {
  RosterOptions options = standard();
  options.restarts = RosterOptions::kAnyNumber;
  options.initial = 2;
  run(options);
  const std::vector<PeerId> all = ids(last_);
  kill(all[1]);
  wait(500ms);
  ASSERT_EQ(started_.size(), 3u);
  const Actions actions = send(Event::Left{all[0]});
  ASSERT_NE(find<Action::Signal>(actions), nullptr);
  EXPECT_EQ(find<Action::Signal>(actions)->peer, started_[2]);
  exit(all[0], 0);
  exit(started_[2], 143);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 0);
}

TEST_F(RosterTest, NewcomerIsNotTakenInWhenTheProgramEnds) {
  run();
  ASSERT_TRUE(roster_->resize(6, now_).ok());
  decide();
  const auto fresh = newcomers(4);
  join(fresh[0]);
  const PeerId leaver = at(0);
  const Actions actions = send(Event::Left{leaver});
  ASSERT_NE(find<Action::Refuse>(actions), nullptr);
  EXPECT_EQ(find<Action::Refuse>(actions)->peer, fresh[0]);
  meet(fresh[0]);
  wait(200ms);
  EXPECT_EQ(size(), 3);
  // A wish after that says that the program goes on.
  ASSERT_TRUE(roster_->resize(4, now_).ok());
  decide();
  join(started_.back());
  meet(started_.back());
  EXPECT_EQ(size(), 4);
}

TEST_F(RosterTest, NewcomerThatGotNothingOfTheStateDoesNotGoOnAlone) {
  for (const bool got_it : {false, true}) {
    started_.clear();
    RosterOptions options = standard();
    options.initial = options.min = 1;
    run(options);
    const PeerId old = at(0);
    ASSERT_TRUE(roster_->resize(2, now_).ok());
    decide();
    const PeerId fresh = started_.back();
    join(fresh);
    meet(fresh);
    ASSERT_EQ(size(), 2);
    if (got_it) send(Event::Recovered{.epoch = 2, .step = 1});
    const Actions actions = send(Event::Left{old});
    EXPECT_EQ(find<Action::Refuse>(actions) == nullptr, got_it);
    EXPECT_EQ(find<Action::Signal>(actions) == nullptr, got_it);
    exit(old, 0);
    EXPECT_FALSE(finish_);
    exit(fresh, got_it ? 0 : 143);
    ASSERT_TRUE(finish_);
    EXPECT_EQ(finish_->exit_code, 0);
    finish_.reset();
    last_ = {};
  }
}

TEST_F(RosterTest, AllFailedAndNothingCanBeRestarted) {
  run();
  const std::vector<PeerId> all = ids(last_);
  for (const PeerId peer : all) kill(peer);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 137);
  EXPECT_NE(finish_->message.find("was killed by signal 9 (Killed)"), std::string::npos);
  EXPECT_EQ(roster_->next_deadline(), std::nullopt);
}

TEST_F(RosterTest, WorkersThatNeverJoinAreAJob) {
  open(standard());
  for (const PeerId peer : std::vector(started_)) exit(peer, 0);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 0);
  EXPECT_EQ(views_, 0);
}

TEST_F(RosterTest, LostHostLosesItsMembersAndOthersTakeTheirPlace) {
  RosterOptions options = standard();
  options.initial = 5;
  options.hosts = {{"a", 4}, {"b", 8}};
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  send(Event::HostGone{0, "its agent is gone"});
  EXPECT_EQ(roster_->paused(), "1 of at least 2 members are left");
  wait(500ms);
  ASSERT_EQ(started_.size(), 9u);
  for (const PeerId peer : newcomers(5)) EXPECT_EQ(peer.host, 1u);
  EXPECT_FALSE(roster_->resize(9, now_).ok());
}

// What is wished for now counts from the members that there are now.
TEST_F(RosterTest, WishAfterALossIsNotSpoiltByTheNewsOfItsEnd) {
  run();
  const PeerId lost = at(3);
  send(Event::Died{lost});
  ASSERT_EQ(size(), 3);
  ASSERT_TRUE(roster_->resize(4, now_).ok());
  decide();
  kill(lost);
  EXPECT_EQ(started_.size(), 5u);
}

// The host is to blame and not its workers, and it may return at once.
TEST_F(RosterTest, HostThatWasLostWithItsWorkersIsNotSetAside) {
  RosterOptions options = standard();
  options.initial = 8;
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  send(Event::HostGone{1, "its agent is gone"});
  ASSERT_EQ(size(), 4);
  send(Event::HostRuns{1, {}});
  send(Event::HostReady{1});
  wait(500ms);
  ASSERT_EQ(started_.size(), 12u);
  for (const PeerId peer : newcomers(8)) EXPECT_EQ(peer.host, 1u);
}

TEST_F(RosterTest, EndingStartsNothing) {
  RosterOptions options = standard();
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  send(Event::Ending{});
  for (const PeerId peer : ids(last_)) exit(peer, 130);
  EXPECT_TRUE(finish_);
  EXPECT_EQ(started_.size(), 4u);
  EXPECT_FALSE(roster_->resize(5, now_).ok());
}

TEST_F(RosterTest, StrangersAndSecondJoinsAreRefused) {
  run();
  EXPECT_NE(find<Action::Refuse>(join({0, 0, 2})), nullptr);
  EXPECT_NE(find<Action::Refuse>(join({7, 0, 1})), nullptr);
  EXPECT_NE(find<Action::Refuse>(join(at(0))), nullptr);
  EXPECT_EQ(views_, 1);
}

TEST_F(RosterTest, WhoLeftMayComeBack) {
  run();
  const PeerId peer = at(3);
  send(Event::Left{peer});
  send(Event::Disconnected{peer});
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(roster_->target(), 3u);
  join(peer);
  meet(peer);
  EXPECT_EQ(size(), 4);
  EXPECT_EQ(roster_->target(), 4u);
}

class RosterRestart : public RosterTest {
 protected:
  void restart(const RosterOptions& options) {
    const auto bytes = roster_->snapshot();
    auto restored = Roster::restore(options, bytes, now_);
    ASSERT_TRUE(restored.ok());
    roster_.emplace(std::move(*restored));
    for (uint32_t host = 0; host < options.hosts.size(); ++host) send(Event::HostReady{host});
  }
};

TEST_F(RosterTest, SilenceWhileWeSleptIsExcusedOnce) {
  run();
  const PeerId silent = at(1);
  mute_ = {at(0), at(1), at(2), at(3)};
  now_ += 2500ms;
  send(Event::Overslept{});
  EXPECT_EQ(size(), 4);
  mute_ = {silent};
  keep_alive();
  now_ += 499ms;
  send(Event::Overslept{});
  EXPECT_EQ(size(), 4);
  now_ += 1ms;
  keep_alive();
  send(Event::Overslept{});
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(roster_->view().rank_of(silent), -1);
}

TEST_F(RosterRestart, MembersThatComeBackGoOnAsIfNothingWas) {
  run();
  kill(at(0));
  const std::vector<PeerId> all = ids(last_);
  restart(standard());
  views_ = 0;
  EXPECT_EQ(ids(roster_->view()), all);
  mute_.insert(all.begin(), all.end());
  wait(1999ms);
  for (const PeerId peer : all) EXPECT_EQ(find<Action::Refuse>(join(peer, 2)), nullptr);
  EXPECT_EQ(views_, 0);
  mute_.clear();
  wait(10s);
  EXPECT_EQ(size(), 3);
  kill(at(0));
  EXPECT_EQ(number(last_.epoch), 3u);
  EXPECT_EQ(started_.size(), 4u);
}

TEST_F(RosterRestart, AnOrderThatWasLostIsGivenAgain) {
  run();
  ASSERT_TRUE(roster_->resize(5, now_).ok());
  decide();
  const PeerId fifth = started_.at(4);
  const std::vector<PeerId> all = ids(last_);
  restart(standard());
  std::vector<PeerId> running;
  for (const PeerId peer : all)
    if (peer.host == fifth.host) running.push_back(peer);
  const Actions actions = send(Event::HostRuns{fifth.host, running});
  ASSERT_NE(find<Action::Start>(actions), nullptr);
  EXPECT_EQ(find<Action::Start>(actions)->peer, fifth);
  EXPECT_EQ(find<Action::Start>(actions)->number, 4u);
  running.push_back(fifth);
  EXPECT_EQ(find<Action::Start>(send(Event::HostRuns{fifth.host, running})), nullptr);
}

TEST_F(RosterRestart, WhoEndedMeanwhileIsGoneAtOnce) {
  run();
  const PeerId dead = at(1);
  std::vector<PeerId> running;
  for (const PeerId peer : ids(last_))
    if (peer.host == dead.host && peer != dead) running.push_back(peer);
  restart(standard());
  send(Event::HostRuns{dead.host, running});
  EXPECT_EQ(number(last_.epoch), 2u);
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0].peer, dead);
  EXPECT_TRUE(gone_[0].ended);
  EXPECT_EQ(gone_[0].reason, "ended while the coordinator was away");
}

TEST_F(RosterRestart, WhoRunsWithoutAPlaceIsKilled) {
  run();
  restart(standard());
  const PeerId unknown = {.host = 1, .slot = 3, .incarnation = 7};
  std::vector<PeerId> running = {unknown};
  for (const PeerId peer : ids(roster_->view()))
    if (peer.host == 1) running.push_back(peer);
  const Actions actions = send(Event::HostRuns{1, running});
  ASSERT_NE(find<Action::Signal>(actions), nullptr);
  EXPECT_EQ(find<Action::Signal>(actions)->peer, unknown);
  EXPECT_EQ(find<Action::Signal>(actions)->signal, SIGKILL);
  EXPECT_EQ(size(), 4);
  EXPECT_TRUE(send(Event::HostRuns{9, {}}).empty());
}

TEST_F(RosterRestart, MembersThatDoNotComeBackAreLost) {
  RosterOptions options = standard();
  options.heartbeat = 100ms;
  run(options);
  const PeerId missing = at(1);
  const std::vector<PeerId> rest = {at(0), at(2), at(3)};
  restart(options);
  mute_.insert(missing);
  for (const PeerId peer : rest) join(peer, 1);
  wait(1999ms);
  EXPECT_EQ(size(), 4);
  wait(1ms);
  EXPECT_EQ(ids(last_), rest);
  EXPECT_FALSE(gone_.at(0).ended);
  EXPECT_NE(find<Action::Refuse>(join(missing, 1)), nullptr);
}

TEST_F(RosterRestart, ResizeGoesOnWhereItWas) {
  run();
  ASSERT_TRUE(roster_->resize(6, now_).ok());
  decide();
  const auto fresh = newcomers(4);
  join(fresh[0]);
  const std::vector<PeerId> all = ids(last_);
  restart(standard());
  EXPECT_EQ(roster_->target(), 6u);
  EXPECT_EQ(started_.size(), 6u);  // both are running already
  for (const PeerId peer : all) join(peer, 1);
  for (const PeerId peer : fresh) join(peer);
  for (const PeerId peer : fresh) meet(peer, fresh);
  EXPECT_EQ(size(), 6);
}

TEST_F(RosterRestart, MemberThatMissedAViewGetsIt) {
  run();
  const std::vector<PeerId> all = ids(last_);
  kill(all[3]);
  restart(standard());
  const Actions actions = join(all[0], 1);
  ASSERT_NE(find<Action::Publish>(actions), nullptr);
  EXPECT_EQ(find<Action::Publish>(actions)->to, std::vector{all[0]});
  EXPECT_EQ(number(find<Action::Publish>(actions)->view.epoch), 2u);
}

TEST_F(RosterRestart, NumbersThatTheLogLostAreNotUsedAgain) {
  run();
  const std::vector<PeerId> all = ids(last_);
  restart(standard());
  for (const PeerId peer : all) join(peer, 5);
  EXPECT_EQ(number(last_.epoch), 6u);
  EXPECT_EQ(ids(last_), all);
}

TEST_F(RosterRestart, EverySnapshotThatIsCutIsRefused) {
  run();
  const auto bytes = roster_->snapshot();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(Roster::restore(standard(), Bytes(bytes).subspan(0, size), now_).ok()) << size;
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Roster::restore(standard(), longer, now_).ok());
}

}  // namespace
}  // namespace pliant
