#include "pliant/runtime/elastic_job.h"

#include <gtest/gtest.h>

#include <csignal>

namespace pliant {
namespace {

using namespace std::chrono_literals;
using Actions = std::vector<JobAction::Any>;

// Two hosts with two slots each, three workers at first; time moves only by wait().
class ElasticJobTest : public ::testing::Test {
 protected:
  static RosterOptions roster() {
    RosterOptions options;
    options.hosts = {{"a", 2}, {"b", 2}};
    options.initial = 3;
    options.max = 4;
    return options;
  }
  static PeerId peer(int place) {
    return {.host = static_cast<uint32_t>(place / 2),
            .slot = static_cast<uint16_t>(place % 2),
            .incarnation = 1};
  }
  static Member member(int place) {
    return {.id = peer(place),
            .pid = 100 + place,
            .host = place < 2 ? "a" : "b",
            .address = "127.0.0.1",
            .port = 1,
            .local_name = ""};
  }
  // Everything that follows from an event, as the coordinator does it.
  Actions send(const JobEvent::Any& event) {
    Actions actions = job_.handle(event, now_);
    while (job_.unsettled()) {
      Actions more = job_.handle(JobEvent::Settle{}, now_);
      actions.insert(actions.end(), more.begin(), more.end());
    }
    return actions;
  }
  Actions wait(Duration time) {
    now_ += time;
    return send(JobEvent::Tick{});
  }
  void start() {
    EXPECT_TRUE(send(AgentReady{0, "10.0.0.1", 29500, 0, ""}).empty());
    const Actions actions = send(AgentReady{1, "10.0.0.2", 29501, 0, ""});
    ASSERT_NE(find<StartWorkers>(actions), nullptr);
    EXPECT_EQ(*find<StartWorkers>(actions), (StartWorkers{"10.0.0.1", 29500}));
    EXPECT_EQ(count<JobAction::Start>(actions), 3);
  }
  void join_all() {
    for (int place = 0; place < 3; ++place) send(JobEvent::Joined{member(place)});
    ASSERT_EQ(job_.roster().view().size(), 3);
  }
  Actions exits(int place, int code) {
    return send(WorkerExited{peer(place), 100 + place, code, 0, ""});
  }
  Actions killed(int place, int signal) {
    return send(WorkerExited{peer(place), 100 + place, 128 + signal, signal, ""});
  }
  template <typename T>
  static const T* find(const Actions& actions) {
    for (const auto& action : actions)
      if (const T* found = std::get_if<T>(&action)) return found;
    return nullptr;
  }
  template <typename T>
  static int count(const Actions& actions) {
    int found = 0;
    for (const auto& action : actions) found += std::holds_alternative<T>(action) ? 1 : 0;
    return found;
  }
  static void expect_finish(const Actions& actions, int code, const std::string& message) {
    const auto* const finish = find<JobAction::Finish>(actions);
    ASSERT_NE(finish, nullptr);
    EXPECT_EQ(finish->exit_code, code);
    EXPECT_EQ(finish->message, message);
  }

  Instant now_{1h};
  ElasticJob job_{JobOptions{}, roster(), now_};
};

TEST_F(ElasticJobTest, NothingStartsBeforeAllHostsAreReady) {
  EXPECT_EQ(job_.phase(), ElasticJob::Phase::kStarting);
  start();
  join_all();
  EXPECT_EQ(job_.phase(), ElasticJob::Phase::kRunning);
}

TEST_F(ElasticJobTest, SilentAgentEndsTheJob) {
  send(AgentReady{0, "10.0.0.1", 1, 0, ""});
  expect_finish(wait(60s), 1, "no word within 60.00 s from the agent on: b");
}

TEST_F(ElasticJobTest, AgentsProblemEndsTheJobBeforeItStarts) {
  expect_finish(send(AgentReady{1, "", 0, 127, "host b: 'x' does not exist"}), 127,
                "host b: 'x' does not exist");
}

TEST_F(ElasticJobTest, LossIsToldAsAView) {
  start();
  join_all();
  const Actions actions = send(WorkerDied{peer(1)});
  const auto* const publish = find<JobAction::Publish>(actions);
  ASSERT_NE(publish, nullptr);
  EXPECT_EQ(publish->view.size(), 2);
  ASSERT_EQ(publish->gone.size(), 1u);
  EXPECT_TRUE(publish->gone[0].ended);
  EXPECT_EQ(publish->to, (std::vector{peer(0), peer(2)}));
  EXPECT_EQ(find<JobAction::TellLost>(actions), nullptr);
}

TEST_F(ElasticJobTest, LeaversGetTheViewToo) {
  start();
  join_all();
  ASSERT_TRUE(job_.resize(2, now_).ok());
  const Actions actions = send(JobEvent::Settle{});
  ASSERT_NE(find<JobAction::Publish>(actions), nullptr);
  EXPECT_EQ(find<JobAction::Publish>(actions)->to, (std::vector{peer(0), peer(1), peer(2)}));
}

TEST_F(ElasticJobTest, SignalsOfTheUserEndIt) {
  start();
  join_all();
  EXPECT_EQ(std::get<SignalWorkers>(send(JobEvent::UserSignal{SIGUSR1}).at(0)).signal, SIGUSR1);
  EXPECT_EQ(std::get<SignalWorkers>(send(JobEvent::UserSignal{SIGINT}).at(0)).signal, SIGINT);
  EXPECT_EQ(job_.phase(), ElasticJob::Phase::kEnding);
  for (int place = 0; place < 2; ++place) killed(place, SIGINT);
  expect_finish(killed(2, SIGINT), 130, "interrupted by signal 2 (Interrupt); the job ends");
}

TEST_F(ElasticJobTest, WorkersThatEndWellOnASignalEndTheJobWell) {
  start();
  send(JobEvent::UserSignal{SIGTERM});
  for (int place = 0; place < 2; ++place) exits(place, 0);
  expect_finish(exits(2, 0), 0, "");
}

TEST_F(ElasticJobTest, StubbornWorkersAreKilled) {
  start();
  send(JobEvent::UserSignal{SIGINT});
  killed(0, SIGINT);
  EXPECT_EQ(find<SignalWorkers>(wait(4s)), nullptr);
  EXPECT_EQ(find<SignalWorkers>(wait(1s))->signal, SIGTERM);
  EXPECT_EQ(find<SignalWorkers>(wait(2s))->signal, SIGKILL);
  expect_finish(wait(2s), 130, "interrupted by signal 2 (Interrupt); the job ends");
}

TEST_F(ElasticJobTest, SecondInterruptKills) {
  start();
  send(JobEvent::UserSignal{SIGINT});
  EXPECT_EQ(find<SignalWorkers>(send(JobEvent::UserSignal{SIGINT}))->signal, SIGKILL);
}

TEST_F(ElasticJobTest, StopTerminatesAndThenKills) {
  start();
  join_all();
  EXPECT_EQ(find<SignalWorkers>(send(JobEvent::Stop{}))->signal, SIGTERM);
  EXPECT_FALSE(job_.resize(4, now_).ok());
  EXPECT_EQ(find<SignalWorkers>(wait(5s))->signal, SIGTERM);
  EXPECT_EQ(find<SignalWorkers>(wait(2s))->signal, SIGKILL);
  for (int place = 0; place < 2; ++place) killed(place, SIGKILL);
  expect_finish(killed(2, SIGKILL), 143, "interrupted by signal 15 (Terminated); the job ends");
}

// Workers may ignore the signal that asked them first; to stop is to insist.
TEST_F(ElasticJobTest, StopAfterAnUnheededInterruptTerminatesAtOnce) {
  start();
  join_all();
  EXPECT_EQ(find<SignalWorkers>(send(JobEvent::UserSignal{SIGINT}))->signal, SIGINT);
  EXPECT_EQ(find<SignalWorkers>(send(JobEvent::Stop{}))->signal, SIGTERM);
  EXPECT_EQ(find<SignalWorkers>(wait(2s))->signal, SIGKILL);
}

TEST_F(ElasticJobTest, InterruptBeforeTheStartEndsItAtOnce) {
  expect_finish(send(JobEvent::UserSignal{SIGINT}), 130, "interrupted by signal 2 (Interrupt)");
}

TEST_F(ElasticJobTest, AWorkerGivesNoticeForItselfOnly) {
  start();
  join_all();
  EXPECT_TRUE(send(JobEvent::Told{peer(0), Notice{1, 0, "soon gone"}}).empty());
  EXPECT_TRUE(send(JobEvent::Told{peer(0), Notice{0, Notice::kWholeHost, "soon gone"}}).empty());
  EXPECT_EQ(job_.roster().view().size(), 3);
  const Actions actions = send(JobEvent::Told{peer(2), Notice{1, 0, "soon gone"}});
  ASSERT_NE(find<JobAction::Publish>(actions), nullptr);
  EXPECT_EQ(find<JobAction::Publish>(actions)->gone.at(0).peer, peer(2));
}

TEST_F(ElasticJobTest, AReadyAgentMayBringANotice) {
  start();
  join_all();
  AgentReady ready{0, "10.0.0.1", 29500, 0, ""};
  ready.running = {peer(0), peer(1)};
  ready.notice = "soon gone";
  const Actions actions = send(ready);
  ASSERT_NE(find<JobAction::Publish>(actions), nullptr);
  EXPECT_EQ(find<JobAction::Publish>(actions)->view.size(), 1);
}

// Workers that heed the signal give notice; they are let go, and have the grace to end.
TEST_F(ElasticJobTest, WorkersThatAreToldToEndAreLetGo) {
  start();
  join_all();
  send(JobEvent::UserSignal{SIGTERM});
  for (int place = 0; place < 2; ++place)
    send(JobEvent::Told{peer(place), Notice{0, peer(place).slot, "told"}});
  EXPECT_EQ(job_.roster().view().size(), 1);
  EXPECT_EQ(count<JobAction::Refuse>(send(JobEvent::Told{peer(2), Notice{1, 0, "told"}})), 1);
  EXPECT_EQ(find<SignalWorkers>(wait(4s)), nullptr);
  EXPECT_EQ(find<SignalWorkers>(wait(1s))->signal, SIGTERM);
  for (int place = 0; place < 2; ++place) exits(place, 0);
  expect_finish(exits(2, 0), 0, "");
}

TEST_F(ElasticJobTest, LostHostLosesItsWorkers) {
  start();
  join_all();
  const Actions actions = send(JobEvent::AgentGone{1, "the connection to host b closed"});
  ASSERT_NE(find<JobAction::Publish>(actions), nullptr);
  EXPECT_EQ(find<JobAction::Publish>(actions)->gone.at(0).reason,
            "was lost with its host: the connection to host b closed");
}

TEST_F(ElasticJobTest, GoesOnFromItsLog) {
  start();
  join_all();
  const auto log = job_.roster().snapshot();
  auto next = ElasticJob::resume(JobOptions{}, roster(), log, now_);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->roster().view(), job_.roster().view());
  EXPECT_EQ(next->phase(), ElasticJob::Phase::kRunning);
  EXPECT_FALSE(ElasticJob::resume(JobOptions{}, roster(), Bytes(log).subspan(3), now_).ok());
}

}  // namespace
}  // namespace pliant
