#include "pliant/runtime/job.h"

#include <gtest/gtest.h>

#include <csignal>

namespace pliant {
namespace {

using namespace std::chrono_literals;
using Actions = std::vector<JobAction::Any>;

// A job of two hosts with two slots each, driven by sentences; time moves only by wait().
class JobTest : public ::testing::Test {
 protected:
  static PeerId peer(int rank) {
    return {.host = static_cast<uint32_t>(rank / 2),
            .slot = static_cast<uint16_t>(rank % 2),
            .incarnation = 1};
  }
  static Member member(int rank) {
    return {.id = peer(rank),
            .pid = 100 + rank,
            .host = rank < 2 ? "a" : "b",
            .address = "127.0.0.1",
            .port = 1,
            .local_name = ""};
  }
  static std::vector<WorkerPlace> places() {
    return {{peer(0), "a"}, {peer(1), "a"}, {peer(2), "b"}, {peer(3), "b"}};
  }

  Actions send(const JobEvent::Any& event) { return job_.handle(event, now_); }
  Actions wait(Duration time) {
    now_ += time;
    return send(JobEvent::Tick{});
  }
  void start() {
    EXPECT_TRUE(send(AgentReady{0, "10.0.0.1", 29500, 0, ""}).empty());
    const Actions actions = send(AgentReady{1, "10.0.0.2", 29501, 0, ""});
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(std::get<StartWorkers>(actions[0]), (StartWorkers{"10.0.0.1", 29500}));
  }
  Actions join(int rank) { return send(JobEvent::Joined{member(rank)}); }
  View join_all() {
    for (const int rank : {2, 0, 3}) EXPECT_TRUE(join(rank).empty());
    const Actions actions = join(1);
    EXPECT_EQ(actions.size(), 1u);
    return std::get<JobAction::Publish>(actions.at(0)).view;
  }
  Actions exits(int rank, int code) {
    return send(WorkerExited{peer(rank), 100 + rank, code, 0, ""});
  }
  Actions killed(int rank, int signal) {
    return send(WorkerExited{peer(rank), 100 + rank, 128 + signal, signal, ""});
  }
  template <typename T>
  static const T* find(const Actions& actions) {
    for (const auto& action : actions)
      if (const T* found = std::get_if<T>(&action)) return found;
    return nullptr;
  }
  static void expect_finish(const Actions& actions, int code, const std::string& message) {
    const auto* const finish = find<JobAction::Finish>(actions);
    ASSERT_NE(finish, nullptr);
    EXPECT_EQ(finish->exit_code, code);
    EXPECT_EQ(finish->message, message);
  }

  Instant now_{};
  Job job_{JobOptions{}, places(), now_};
};

TEST_F(JobTest, HostsLearnWhereTheStoresOfTheOthersAre) {
  AgentReady a{0, "10.0.0.1", 29500, 0, ""};
  AgentReady b{1, "10.0.0.2", 29501, 0, ""};
  b.store = "10.0.0.2:7";
  EXPECT_TRUE(send(a).empty());
  EXPECT_EQ(std::get<StartWorkers>(send(b).at(0)).stores,
            (std::vector<std::string>{"", "10.0.0.2:7"}));
}

TEST_F(JobTest, WorkersThatNeverJoinAreAJob) {
  start();
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(exits(rank, 0).empty());
  expect_finish(exits(3, 0), 0, "");
  EXPECT_EQ(job_.next_deadline(), std::nullopt);
}

TEST_F(JobTest, ViewComesWithTheLastMemberInRankOrder) {
  start();
  const View view = join_all();
  EXPECT_EQ(number(view.epoch), 1u);
  ASSERT_EQ(view.size(), 4);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(view.at(rank), member(rank));
}

TEST_F(JobTest, AllMayLeaveAndJoinAgain) {
  start();
  join_all();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(send(JobEvent::Left{peer(rank)}).empty());
    EXPECT_TRUE(send(JobEvent::Disconnected{peer(rank)}).empty());
  }
  EXPECT_EQ(number(join_all().epoch), 2u);
}

TEST_F(JobTest, SecondJoinOfAMemberIsRefused) {
  start();
  EXPECT_TRUE(join(1).empty());
  ASSERT_NE(find<JobAction::Refuse>(join(1)), nullptr);
  Member stranger = member(0);
  stranger.id.slot = 9;
  const Actions actions = send(JobEvent::Joined{stranger});
  ASSERT_NE(find<JobAction::Refuse>(actions), nullptr);
  EXPECT_EQ(find<JobAction::Refuse>(actions)->peer, stranger.id);
}

TEST_F(JobTest, JoinDeadlineNamesTheMissing) {
  start();
  now_ += 1h;  // programs may take long before the first of them joins
  for (const int rank : {0, 1, 3}) EXPECT_TRUE(join(rank).empty());
  EXPECT_TRUE(wait(59s).empty());
  const Actions actions = wait(1s);
  ASSERT_EQ(actions.size(), 3u);
  const auto& refuse = std::get<JobAction::Refuse>(actions[0]);
  EXPECT_EQ(refuse.refused.code, Code::kTimeout);
  EXPECT_EQ(refuse.refused.reason,
            "3 of 4 members joined within 60.00 s; missing: rank 2 (host b slot 0)");
}

TEST_F(JobTest, NobodyWaitsForAMemberThatHasEnded) {
  start();
  EXPECT_TRUE(join(0).empty());
  const Actions actions = exits(2, 0);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<JobAction::Refuse>(actions[0]).refused,
            (Refused{Code::kPeerLost,
                     "rank 2 (host b, pid 102) exited with code 0 before all members had joined"}));
  EXPECT_NE(find<JobAction::Refuse>(join(1)), nullptr);
}

TEST_F(JobTest, KilledMemberIsToldToTheOthersOnce) {
  start();
  join_all();
  EXPECT_TRUE(send(JobEvent::Disconnected{peer(2)}).empty());  // the reason is still to come
  const Actions actions = killed(2, SIGKILL);
  const auto* const tell = find<JobAction::TellLost>(actions);
  ASSERT_NE(tell, nullptr);
  EXPECT_EQ(tell->to, (std::vector<PeerId>{peer(0), peer(1), peer(3)}));
  EXPECT_EQ(tell->lost.peer, peer(2));
  EXPECT_EQ(tell->lost.reason, "rank 2 (host b, pid 102) was killed by signal 9 (Killed)");
  EXPECT_TRUE(wait(1s).empty());
}

TEST_F(JobTest, ClosedConnectionAloneIsALoss) {
  start();
  join_all();
  EXPECT_TRUE(send(JobEvent::Disconnected{peer(1)}).empty());
  const Actions actions = wait(100ms);
  ASSERT_NE(find<JobAction::TellLost>(actions), nullptr);
  EXPECT_EQ(find<JobAction::TellLost>(actions)->lost.reason,
            "rank 1 (host a, pid 101) closed its connection to the coordinator");
}

TEST_F(JobTest, LeavingInOrderIsNoLoss) {
  start();
  join_all();
  EXPECT_TRUE(send(JobEvent::Left{peer(1)}).empty());
  EXPECT_TRUE(send(JobEvent::Disconnected{peer(1)}).empty());
  EXPECT_TRUE(exits(1, 0).empty());
  EXPECT_TRUE(wait(1s).empty());
}

TEST_F(JobTest, OthersGetGraceThenSigtermThenSigkill) {
  start();
  EXPECT_TRUE(exits(1, 3).empty());
  EXPECT_EQ(job_.next_deadline(), now_ + 5s);
  EXPECT_TRUE(wait(4s).empty());
  EXPECT_EQ(std::get<SignalWorkers>(wait(1s).at(0)).signal, SIGTERM);
  EXPECT_TRUE(killed(0, SIGTERM).empty());
  EXPECT_EQ(std::get<SignalWorkers>(wait(2s).at(0)).signal, SIGKILL);
  EXPECT_TRUE(killed(2, SIGKILL).empty());
  expect_finish(killed(3, SIGKILL), 3, "rank 1 (host a, pid 101) exited with code 3; the job ends");
}

TEST_F(JobTest, EndsEvenIfAWorkerCannotBeKilled) {
  start();
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(exits(rank, 1).empty());
  wait(5s);
  wait(2s);
  expect_finish(wait(2s), 1, "rank 0 (host a, pid 100) exited with code 1; the job ends");
}

TEST_F(JobTest, RootOfAFailureIsNamedThoughItsFollowersEndFirst) {
  start();
  join_all();
  // A killed process with much memory ends long after its peers have noticed.
  send(JobEvent::Suspected{peer(0), {peer(2), "its link closed"}});
  for (const int rank : {0, 1, 3}) {
    send(JobEvent::Left{peer(rank)});
    exits(rank, 1);
  }
  expect_finish(killed(2, SIGKILL), 137,
                "rank 2 (host b, pid 102) was killed by signal 9 (Killed); the job ends");
}

TEST_F(JobTest, SilentMemberIsNamedAsTheCause) {
  start();
  join_all();
  send(JobEvent::Suspected{peer(0), {peer(2), "it did not answer within 2 s"}});
  for (const int rank : {0, 1, 3}) exits(rank, 1);
  wait(5s);
  wait(2s);
  expect_finish(killed(2, SIGKILL), 1,
                "rank 0 (host a, pid 100) exited with code 1 after rank 2 (host b, pid 102) was "
                "lost: it did not answer within 2 s; the job ends");
}

TEST_F(JobTest, SignalsOfTheUserAreForwarded) {
  start();
  EXPECT_EQ(std::get<SignalWorkers>(send(JobEvent::UserSignal{SIGUSR1}).at(0)).signal, SIGUSR1);
  EXPECT_EQ(std::get<SignalWorkers>(send(JobEvent::UserSignal{SIGINT}).at(0)).signal, SIGINT);
  for (int rank = 0; rank < 3; ++rank) killed(rank, SIGINT);
  expect_finish(killed(3, SIGINT), 130, "interrupted by signal 2 (Interrupt); the job ends");
}

TEST_F(JobTest, SecondInterruptKills) {
  start();
  send(JobEvent::UserSignal{SIGINT});
  EXPECT_EQ(std::get<SignalWorkers>(send(JobEvent::UserSignal{SIGINT}).at(0)).signal, SIGKILL);
  for (int rank = 0; rank < 3; ++rank) killed(rank, SIGKILL);
  expect_finish(killed(3, SIGKILL), 130, "interrupted by signal 2 (Interrupt); the job ends");
}

TEST_F(JobTest, WorkersThatEndWellOnASignalEndTheJobWell) {
  start();
  send(JobEvent::UserSignal{SIGTERM});
  for (int rank = 0; rank < 3; ++rank) exits(rank, 0);
  expect_finish(exits(3, 0), 0, "");
}

TEST_F(JobTest, AgentsProblemEndsTheJobBeforeItStarts) {
  send(AgentReady{0, "10.0.0.1", 1, 0, ""});
  expect_finish(send(AgentReady{1, "", 0, 127, "host b: 'x' does not exist"}), 127,
                "host b: 'x' does not exist");
}

TEST_F(JobTest, SilentAgentEndsTheJob) {
  send(AgentReady{0, "10.0.0.1", 1, 0, ""});
  expect_finish(wait(60s), 1, "no word within 60.00 s from the agent on: b");
}

TEST_F(JobTest, LostHostLosesItsWorkers) {
  start();
  join_all();
  const Actions actions = send(JobEvent::AgentGone{1, "the connection to host b closed"});
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<JobAction::TellLost>(actions[0]).lost.peer, peer(2));
  EXPECT_EQ(std::get<JobAction::TellLost>(actions[1]).to, (std::vector<PeerId>{peer(0), peer(1)}));
  exits(0, 1);
  expect_finish(exits(1, 1), 1,
                "rank 2 (host b, pid 102) was lost with its host: the connection to host b closed; "
                "the job ends");
}

TEST_F(JobTest, StartProblemOfAWorkerIsTold) {
  start();
  send(WorkerExited{peer(0), 0, 126, 0, "cannot be started: Permission denied"});
  for (int rank = 1; rank < 3; ++rank) exits(rank, 0);
  expect_finish(exits(3, 0), 126,
                "rank 0 (host a) cannot be started: Permission denied; the job ends");
}

}  // namespace
}  // namespace pliant
