// Who is in the view: joins, losses, pauses, sizes, drains.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "pliant/membership/test_roster.h"

namespace pliant {
namespace {

using namespace std::chrono_literals;

TEST_F(RosterTest, FirstViewComesWithTheLastInitialWorkerInOrderOfPlaces) {
  open(standard());
  ASSERT_EQ(started_.size(), 4u);
  EXPECT_EQ(started_[3], (PeerId{0, 3, 1}));
  for (const int i : {2, 0, 3}) {
    join(started_[static_cast<size_t>(i)]);
    EXPECT_EQ(views_, 0);
  }
  join(started_[1]);
  EXPECT_EQ(views_, 1);
  EXPECT_EQ(ids(last_), started_);
  EXPECT_EQ(to_, started_);
  EXPECT_TRUE(gone_.empty());
  EXPECT_TRUE(said_.empty());
}

TEST_F(RosterTest, FirstViewDoesNotWaitForeverIfEnoughAreThere) {
  open(standard());
  join(started_[0]);
  join(started_[3]);
  wait(59s);
  EXPECT_EQ(views_, 0);
  wait(1s);
  EXPECT_EQ(ids(last_), (std::vector{started_[0], started_[3]}));
}

TEST_F(RosterTest, TooFewAtTheJoinDeadlineAreTold) {
  open(standard());
  join(started_[0]);
  const Actions actions = wait(60s);
  ASSERT_NE(find<Action::Refuse>(actions), nullptr);
  EXPECT_EQ(find<Action::Refuse>(actions)->code, Code::kTimeout);
  EXPECT_EQ(find<Action::Refuse>(actions)->reason, "1 of at least 2 members joined within 60.00 s");
}

TEST_F(RosterTest, InitialWorkerThatFailsIsNotWaitedFor) {
  open(standard());
  for (const size_t i : {0u, 1u, 2u}) join(started_[i]);
  exit(started_[3], 1);
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(started_.size(), 4u);
}

TEST_F(RosterTest, NewcomerMeetsEverybodyBeforeItIsAMember) {
  run();
  ASSERT_TRUE(roster_->resize(5, now_).ok());
  decide();
  ASSERT_EQ(started_.size(), 5u);
  const PeerId fifth = started_[4];
  EXPECT_EQ(fifth, (PeerId{1, 0, 1}));
  const Actions actions = join(fifth);
  const auto* const first = find<Action::Meet>(actions);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->to, std::vector{fifth});
  EXPECT_EQ(first->members.size(), 4u);
  const auto& second = std::get<Action::Meet>(actions.at(1));
  EXPECT_EQ(second.to, ids(last_));
  EXPECT_EQ(second.members, std::vector{member(fifth)});
  // Some are not all.
  send(Event::Met{fifth, {at(0), at(1), at(2)}});
  EXPECT_EQ(size(), 4);
  send(Event::Met{fifth, {at(3)}});
  EXPECT_EQ(size(), 5);
  EXPECT_EQ(at(4), fifth);
  EXPECT_EQ(views_, 2);
}

TEST_F(RosterTest, JoinStormMakesOneView) {
  run();
  ASSERT_TRUE(roster_->resize(8, now_).ok());
  decide();
  const auto fresh = newcomers(4);
  ASSERT_EQ(fresh.size(), 4u);
  for (const PeerId peer : fresh) join(peer);
  for (const PeerId peer : fresh) meet(peer, fresh);
  EXPECT_EQ(views_, 2);
  EXPECT_EQ(size(), 8);
  EXPECT_EQ(ids(last_), started_);
}

TEST_F(RosterTest, SlowNewcomersDoNotHoldUpTheOthersForLong) {
  run();
  ASSERT_TRUE(roster_->resize(7, now_).ok());
  decide();
  const auto fresh = newcomers(4);
  join(fresh[0]);
  join(fresh[1]);
  meet(fresh[0], fresh);
  meet(fresh[1], fresh);
  EXPECT_EQ(size(), 4);
  wait(199ms);
  EXPECT_EQ(size(), 4);
  wait(1ms);
  EXPECT_EQ(size(), 6);
  join(fresh[2]);
  meet(fresh[2]);
  EXPECT_EQ(size(), 7);
}

TEST_F(RosterTest, NewcomersThatHaveNotMetEachOtherComeOneAfterTheOther) {
  run();
  ASSERT_TRUE(roster_->resize(6, now_).ok());
  decide();
  const auto fresh = newcomers(4);
  join(fresh[0]);
  join(fresh[1]);
  meet(fresh[0], fresh);
  meet(fresh[1]);
  wait(200ms);
  EXPECT_EQ(size(), 5);
  send(Event::Met{fresh[1], {fresh[0]}});
  EXPECT_EQ(size(), 6);
}

TEST_F(RosterTest, DeadMemberIsOutAtOnceAndItsReasonFollows) {
  run();
  const PeerId dead = at(1);
  send(Event::Died{dead});
  EXPECT_EQ(size(), 3);
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0], (Departure{dead, true, false, "died"}));
  kill(dead);
  send(Event::Disconnected{dead});
  EXPECT_EQ(views_, 2);
  send(Event::Recovered{
      .epoch = 2, .step = 7, .agree = 1200us, .redo = 18ms, .transfer = {}, .transfer_bytes = 0});
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_EQ(said_[0],
            "rank 1 (host a, pid 101) was killed by signal 9 (Killed): 3 members go on, epoch 2; "
            "agree 1.20 ms, redo 18.00 ms");
  EXPECT_EQ(started_.size(), 4u);  // without --restart nobody takes its place
}

TEST_F(RosterTest, LineDoesNotWaitForNumbersForever) {
  run();
  kill(at(3));
  EXPECT_TRUE(said_.empty());
  wait(1s);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_EQ(said_[0],
            "rank 3 (host a, pid 103) was killed by signal 9 (Killed): 3 members go on, epoch 2");
}

TEST_F(RosterTest, ClosedConnectionIsALossThatMayStillRun) {
  run();
  const PeerId lost = at(0);
  send(Event::Disconnected{lost});
  EXPECT_EQ(size(), 3);
  EXPECT_FALSE(gone_.at(0).ended);
  EXPECT_FALSE(gone_.at(0).planned);
  // It learns that it is out, whichever way it comes.
  for (const uint32_t epoch : {0u, 1u}) {
    const Actions actions = join(lost, epoch);
    ASSERT_NE(find<Action::Refuse>(actions), nullptr);
    EXPECT_EQ(find<Action::Refuse>(actions)->code, Code::kStaleEpoch);
  }
  // And it does not hold its place for ever.
  const Actions actions = wait(10s);
  ASSERT_NE(find<Action::Signal>(actions), nullptr);
  EXPECT_EQ(find<Action::Signal>(actions)->peer, lost);
  EXPECT_EQ(find<Action::Signal>(actions)->signal, SIGKILL);
}

TEST_F(RosterTest, ManyThatDieAtOnceMakeOneView) {
  RosterOptions options = standard();
  options.initial = 8;
  run(options);
  for (const Rank rank : {0, 2, 5, 7}) roster_->handle(Event::Died{at(rank)}, now_);
  const std::vector<PeerId> rest = {at(1), at(3), at(4), at(6)};
  decide();
  EXPECT_EQ(views_, 2);
  EXPECT_EQ(ids(last_), rest);
  EXPECT_EQ(gone_.size(), 4u);
}

TEST_F(RosterTest, BelowMinItPausesAndGoesOnWhenEnoughAreBack) {
  run();
  const PeerId rest = at(2);
  for (const Rank rank : {0, 1, 3}) roster_->handle(Event::Died{at(rank)}, now_);
  const Actions actions = decide();
  EXPECT_EQ(views_, 1);
  const auto* const pause = find<Action::Pause>(actions);
  ASSERT_NE(pause, nullptr);
  EXPECT_EQ(pause->to, std::vector{rest});
  EXPECT_EQ(pause->reason, "1 of at least 2 members are left");
  EXPECT_EQ(roster_->paused(), pause->reason);
  EXPECT_EQ(find<Action::Pause>(decide()), nullptr);  // said once
  for (const Rank rank : {0, 1, 3}) kill(at(rank));
  ASSERT_TRUE(roster_->resize(3, now_).ok());
  decide();
  const auto fresh = newcomers(4);
  ASSERT_EQ(fresh.size(), 2u);
  join(fresh[0]);
  send(Event::Met{fresh[0], {rest}});
  wait(200ms);
  EXPECT_EQ(ids(last_), (std::vector{rest, fresh[0]}));
  EXPECT_EQ(number(last_.epoch), 2u);
  EXPECT_EQ(gone_.size(), 3u);
  EXPECT_EQ(roster_->paused(), "");
}

TEST_F(RosterTest, AllDieAndTheirReplacementsGoOn) {
  RosterOptions options = standard();
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  for (const PeerId peer : ids(last_)) roster_->handle(Event::Exited{peer, 0, 1, "crashed"}, now_);
  decide();
  EXPECT_FALSE(finish_);
  wait(500ms);
  const auto fresh = newcomers(4);
  ASSERT_EQ(fresh.size(), 4u);
  for (const PeerId peer : fresh) join(peer);
  for (const PeerId peer : fresh) send(Event::Met{peer, fresh});
  EXPECT_EQ(number(last_.epoch), 2u);
  EXPECT_EQ(ids(last_).size(), 4u);
}

TEST_F(RosterTest, ResizeDownSendsTheLastRanksAwayAndTellsThem) {
  run();
  const std::vector<PeerId> before = ids(last_);
  ASSERT_TRUE(roster_->resize(2, now_).ok());
  decide();
  EXPECT_EQ(ids(last_), (std::vector{before[0], before[1]}));
  EXPECT_EQ(to_, before);
  ASSERT_EQ(gone_.size(), 2u);
  EXPECT_TRUE(gone_[0].planned);
  EXPECT_EQ(gone_[0].reason, "leaves: 2 members are wanted");
  // Whatever the code of a worker that was asked to go, it has not failed.
  exit(before[3], 0);
  exit(before[2], 143);
  wait(5s);
  EXPECT_FALSE(finish_);
  EXPECT_EQ(started_.size(), 4u);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_EQ(said_[0],
            "rank 2 (host a, pid 102) leaves: 2 members are wanted, rank 3 (host a, pid 103) "
            "leaves: 2 members are wanted: 2 members go on, epoch 2");
}

TEST_F(RosterTest, LeaverThatStaysIsTerminatedAndThenKilled) {
  run();
  const PeerId leaver = at(3);
  ASSERT_TRUE(roster_->resize(3, now_).ok());
  decide();
  EXPECT_EQ(find<Action::Signal>(wait(29s)), nullptr);
  const Actions term = wait(1s);
  ASSERT_NE(find<Action::Signal>(term), nullptr);
  EXPECT_EQ(find<Action::Signal>(term)->peer, leaver);
  EXPECT_EQ(find<Action::Signal>(term)->signal, SIGTERM);
  const Actions killed = wait(10s);
  ASSERT_NE(find<Action::Signal>(killed), nullptr);
  EXPECT_EQ(find<Action::Signal>(killed)->signal, SIGKILL);
  EXPECT_EQ(find<Action::Signal>(wait(100s)), nullptr);
}

TEST_F(RosterTest, LastWishWins) {
  run();
  ASSERT_TRUE(roster_->resize(8, now_).ok());
  decide();
  const auto fresh = newcomers(4);
  ASSERT_EQ(fresh.size(), 4u);
  join(fresh[0]);
  ASSERT_TRUE(roster_->resize(5, now_).ok());
  const Actions actions = decide();
  int terminated = 0;
  for (const auto& action : actions) {
    const auto* const signal = std::get_if<Action::Signal>(&action);
    if (signal == nullptr) continue;
    ++terminated;
    EXPECT_NE(signal->peer, fresh[0]);  // the one that is furthest is kept
  }
  EXPECT_EQ(terminated, 3);
  meet(fresh[0]);
  EXPECT_EQ(size(), 5);
  ASSERT_TRUE(roster_->resize(4, now_).ok());
  decide();
  EXPECT_EQ(size(), 4);
  EXPECT_EQ(started_.size(), 8u);
}

TEST_F(RosterTest, CandidateThatIsNotWantedAnyMoreIsToldSo) {
  run();
  ASSERT_TRUE(roster_->resize(5, now_).ok());
  decide();
  const PeerId fifth = started_.back();
  join(fifth);
  ASSERT_TRUE(roster_->resize(4, now_).ok());
  const Actions actions = decide();
  ASSERT_NE(find<Action::Refuse>(actions), nullptr);
  EXPECT_EQ(find<Action::Refuse>(actions)->peer, fifth);
  EXPECT_EQ(find<Action::Refuse>(actions)->code, Code::kCancelled);
  exit(fifth, 1);
  EXPECT_EQ(views_, 1);
  EXPECT_TRUE(said_.empty());
}

TEST_F(RosterTest, WrongSizesAreRefusedWithAReason) {
  RosterOptions options = standard();
  options.max = 20;
  run(options);
  const auto why = [&](uint32_t size) { return roster_->resize(size, now_).error().message; };
  EXPECT_EQ(why(0), "a job cannot be resized to 0 members; stop it instead");
  EXPECT_EQ(why(1), "1 members are fewer than the job's minimum of 2");
  EXPECT_EQ(why(21), "21 members are more than the job's maximum of 20");
  EXPECT_EQ(why(9), "9 members do not fit into the 8 slots of the job's hosts");
  EXPECT_EQ(roster_->target(), 4u);
}

TEST_F(RosterTest, RankZeroMayBeDrained) {
  run();
  const PeerId zero = at(0);
  const PeerId one = at(1);
  ASSERT_TRUE(roster_->drain_peer(zero, now_).ok());
  decide();
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(at(0), one);
  exit(zero, 0);
  EXPECT_EQ(started_.size(), 4u);
  ASSERT_TRUE(roster_->drain_peer(at(0), now_).ok());
  decide();
  EXPECT_FALSE(roster_->drain_peer(at(0), now_).ok());  // two are the least
  EXPECT_FALSE(roster_->drain_peer(zero, now_).ok());
}

TEST_F(RosterTest, DrainedHostIsReplacedByOthers) {
  run();
  EXPECT_EQ(roster_->drain_host("c", now_).error().message, "the job has no host 'c'");
  ASSERT_TRUE(roster_->drain_host("a", now_).ok());
  decide();
  // All members are on host a: they stay until two of b can go on.
  EXPECT_EQ(views_, 1);
  const auto fresh = newcomers(4);
  ASSERT_EQ(fresh.size(), 4u);
  for (const PeerId peer : fresh) EXPECT_EQ(peer.host, 1u);
  for (const PeerId peer : fresh) join(peer);
  for (const PeerId peer : fresh) meet(peer, fresh);
  // They have the state, and go when the newcomers have it.
  EXPECT_EQ(size(), 8);
  send(Event::Recovered{.epoch = 2});
  EXPECT_EQ(ids(last_), fresh);
  EXPECT_EQ(gone_.size(), 4u);
  EXPECT_TRUE(gone_[0].planned);
  for (const Departure& gone : std::vector(gone_)) exit(gone.peer, 0);
  EXPECT_EQ(started_.size(), 8u);
  EXPECT_FALSE(roster_->drain_host("b", now_).ok());
}

TEST_F(RosterTest, NoticeDrainsAHostWithoutAsking) {
  RosterOptions options = standard();
  options.initial = 6;
  run(options);
  send(Event::Notice{0, std::nullopt, "the machine is taken away"});
  EXPECT_EQ(size(), 2);
  EXPECT_EQ(at(0).host, 1u);
  EXPECT_EQ(gone_.at(0).reason, "leaves: the machine is taken away");
}

}  // namespace
}  // namespace pliant
