// Members that will be taken away: a host by its cloud, a worker by a signal of its own.
#include <csignal>

#include "pliant/membership/test_roster.h"

namespace pliant {
namespace {

using namespace std::chrono_literals;

class RosterNoticeTest : public RosterTest {
 protected:
  // One slot for each of the members, so that nobody can be replaced elsewhere.
  static RosterOptions crowded(uint32_t min) {
    RosterOptions options = standard();
    options.hosts = {{"a", 2}, {"b", 2}};
    options.min = min;
    options.max = 4;
    return options;
  }
  Actions tell_host(uint32_t host) { return send(Event::Notice{host, std::nullopt, "soon gone"}); }
  Actions tell_worker(PeerId peer) { return send(Event::Notice{peer.host, peer.slot, "told"}); }
  static std::vector<PeerId> refused(const Actions& actions) {
    std::vector<PeerId> peers;
    for (const auto& action : actions)
      if (const auto* refuse = std::get_if<Action::Refuse>(&action)) peers.push_back(refuse->peer);
    return peers;
  }
  static std::vector<std::string> events(const Actions& actions, const std::string& kind) {
    std::vector<std::string> texts;
    for (const auto& action : actions) {
      const auto* event = std::get_if<Action::Event>(&action);
      if (event != nullptr && event->kind == kind) texts.push_back(event->text);
    }
    return texts;
  }
};

TEST_F(RosterNoticeTest, AHostUnderNoticeIsReplacedAndLeft) {
  RosterOptions options = standard();
  options.initial = 6;
  run(options);
  const Actions actions = tell_host(1);
  EXPECT_EQ(events(actions, "notice"),
            std::vector<std::string>{"host b will be taken away: soon gone"});
  EXPECT_EQ(ids(last_), (std::vector<PeerId>{{0, 0, 1}, {0, 1, 1}, {0, 2, 1}, {0, 3, 1}}));
  EXPECT_EQ(gone_.at(0).reason, "leaves: soon gone");
  EXPECT_TRUE(gone_.at(0).planned);
  for (const Departure& gone : std::vector(gone_)) exit(gone.peer, 0);
  // There is no slot elsewhere, and nothing is started there.
  EXPECT_EQ(started_.size(), 6u);
  EXPECT_FALSE(roster_->resize(6, now_).ok());
}

TEST_F(RosterNoticeTest, NoticesAreToldOnce) {
  run();
  EXPECT_EQ(events(tell_host(1), "notice").size(), 1u);
  EXPECT_TRUE(events(tell_host(1), "notice").empty());
  EXPECT_TRUE(events(send(Event::HostReady{1, "soon gone"}), "notice").empty());
  EXPECT_EQ(events(tell_worker(at(0)), "notice").size(), 1u);
}

TEST_F(RosterNoticeTest, AHostThatIsReadyWithoutNoticeReturns) {
  RosterOptions options = crowded(1);
  options.initial = 4;
  run(options);
  tell_host(1);
  for (const Departure& gone : std::vector(gone_)) exit(gone.peer, 0);
  EXPECT_EQ(size(), 2);
  send(Event::HostGone{1, "taken away"});
  // Its agent was started again, and knows nothing new.
  send(Event::HostReady{1, "soon gone"});
  EXPECT_EQ(started_.size(), 4u);
  send(Event::HostReady{1});
  EXPECT_EQ(started_.size(), 6u);
}

TEST_F(RosterNoticeTest, NobodyGoesBeforeTheReplacementsAreThere) {
  RosterOptions options = standard();
  options.min = 4;
  run(options);  // all on host a
  tell_host(0);
  EXPECT_EQ(views_, 1);
  const auto fresh = newcomers(4);
  ASSERT_EQ(fresh.size(), 4u);
  const std::vector<PeerId> old = ids(last_);
  for (const PeerId peer : fresh) join(peer);
  for (const PeerId peer : fresh) meet(peer, fresh);
  std::vector<PeerId> both = old;
  both.insert(both.end(), fresh.begin(), fresh.end());
  EXPECT_EQ(ids(last_), both);  // they alone have the state
  wait(1s);
  send(Event::Recovered{.epoch = 2, .incomplete = true});
  EXPECT_EQ(ids(last_), both);
  send(Event::Recovered{.epoch = 2});
  EXPECT_EQ(ids(last_), fresh);
  EXPECT_EQ(gone_.size(), 4u);
}

TEST_F(RosterNoticeTest, ThoseWithTheStateGoAtLastIfNobodySaysThatItWasGiven) {
  RosterOptions options = standard();
  options.min = 4;
  run(options);
  tell_host(0);
  const auto fresh = newcomers(4);
  for (const PeerId peer : fresh) join(peer);
  for (const PeerId peer : fresh) meet(peer, fresh);
  while (size() == 8 && now_ < Instant(2h)) wait(1s);
  EXPECT_EQ(ids(last_), fresh);
}

TEST_F(RosterNoticeTest, NobodyWaitsForOneThatHasTheState) {
  RosterOptions options = standard();
  options.initial = 5;
  options.min = 1;
  run(options);  // four on host a
  tell_host(0);
  EXPECT_EQ(ids(last_), (std::vector<PeerId>{{1, 0, 1}}));
}

TEST_F(RosterNoticeTest, BelowTheMinimumTheJobPausesUntilTheHostIsBack) {
  run(crowded(4));
  const std::vector<PeerId> before = ids(last_);
  const Actions actions = tell_host(1);
  EXPECT_EQ(refused(actions), (std::vector<PeerId>{before[2], before[3]}));
  const auto* pause = find<Action::Pause>(actions);
  ASSERT_NE(pause, nullptr);
  EXPECT_EQ(pause->to, (std::vector<PeerId>{before[0], before[1]}));
  EXPECT_EQ(pause->reason, "2 of at least 4 members are left");
  EXPECT_NE(said_.back().find("leaves: soon gone"), std::string::npos) << said_.back();
  exit(before[2], 0);
  exit(before[3], 0);
  EXPECT_FALSE(finish_);
  send(Event::HostReady{1});
  const auto fresh = newcomers(4);
  ASSERT_EQ(fresh.size(), 2u);
  for (const PeerId peer : fresh) join(peer);
  for (const PeerId peer : fresh) meet(peer, fresh);
  EXPECT_EQ(size(), 4);
  EXPECT_EQ(roster_->paused(), "");
}

TEST_F(RosterNoticeTest, WhenAllAreTakenAwayTheyLeaveAndTheJobEnds) {
  run(crowded(2));
  tell_host(0);
  const Actions actions = tell_host(1);
  EXPECT_EQ(size(), 2);
  EXPECT_EQ(refused(actions), ids(last_));
  for (uint32_t host = 0; host < 2; ++host)
    for (uint16_t slot = 0; slot < 2; ++slot) exit({host, slot, 1}, 0);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 128 + SIGTERM);
  EXPECT_NE(finish_->message.find("all members were told to leave: "), std::string::npos);
  EXPECT_NE(finish_->message.find("soon gone"), std::string::npos);
}

TEST_F(RosterNoticeTest, AToldWorkerLeavesAndIsNotReplaced) {
  run();
  const PeerId told = at(1);
  const Actions actions = tell_worker(told);
  EXPECT_EQ(events(actions, "notice").size(), 1u);
  EXPECT_EQ(size(), 3);
  EXPECT_EQ(gone_.at(0).peer, told);
  EXPECT_TRUE(gone_.at(0).planned);
  EXPECT_EQ(find<Action::Signal>(actions), nullptr);  // a second signal would end it at once
  exit(told, 0);
  EXPECT_EQ(started_.size(), 4u);
  EXPECT_FALSE(finish_);
}

TEST_F(RosterNoticeTest, WithRestartsAToldWorkerIsReplaced) {
  RosterOptions options = crowded(4);
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  const PeerId told = at(1);
  // Its own slot is the only one for the next.
  EXPECT_NE(find<Action::Pause>(tell_worker(told)), nullptr);
  exit(told, 0);
  ASSERT_EQ(started_.size(), 5u);
  EXPECT_EQ(started_.back(), (PeerId{told.host, told.slot, 2}));
  join(started_.back());
  meet(started_.back());
  EXPECT_EQ(size(), 4);
}

TEST_F(RosterNoticeTest, AWorkerToldOnAHostUnderNoticeIsReplaced) {
  run();
  tell_worker(at(1));
  EXPECT_EQ(started_.size(), 4u);
  // Its machine goes, and that is why it was told.
  tell_host(0);
  EXPECT_EQ(newcomers(4).size(), 4u);
}

TEST_F(RosterNoticeTest, ACandidateThatIsToldGoesWithoutAnotherSignal) {
  run();
  ASSERT_TRUE(roster_->resize(5, now_).ok());
  decide();
  const PeerId fresh = newcomers(4).at(0);
  join(fresh);
  const Actions actions = tell_worker(fresh);
  EXPECT_EQ(refused(actions), std::vector<PeerId>{fresh});
  EXPECT_EQ(find<Action::Signal>(actions), nullptr);
  EXPECT_EQ(find<Action::Signal>(wait(30s))->signal, SIGTERM);
}

TEST_F(RosterNoticeTest, AtTheEndOfTheJobEverybodyThatIsToldIsLetGo) {
  run();
  send(Event::Ending{});
  const std::vector<PeerId> before = ids(last_);
  for (const PeerId peer : before)
    roster_->handle(Event::Notice{peer.host, peer.slot, "told"}, now_);
  EXPECT_EQ(refused(decide()), before);
  for (const PeerId peer : before) exit(peer, 0);
  ASSERT_TRUE(finish_);
  EXPECT_EQ(finish_->exit_code, 0);
}

TEST_F(RosterNoticeTest, ANoticeFromBeforeTheEndCounts) {
  RosterOptions options = crowded(1);
  options.hosts = {{"a", 1}, {"b", 1}};
  options.initial = 1;
  options.max = 2;
  options.restarts = RosterOptions::kAnyNumber;
  run(options);
  EXPECT_TRUE(refused(tell_worker(at(0))).empty());  // another one starts
  EXPECT_EQ(started_.size(), 2u);
  EXPECT_EQ(refused(send(Event::Ending{})), std::vector<PeerId>{at(0)});
}

TEST_F(RosterNoticeTest, StrangersAreNotHeard) {
  run();
  EXPECT_TRUE(events(send(Event::Notice{7, std::nullopt, "x"}), "notice").empty());
  EXPECT_TRUE(events(send(Event::Notice{1, uint16_t{3}, "x"}), "notice").empty());
  EXPECT_EQ(views_, 1);
}

}  // namespace
}  // namespace pliant
