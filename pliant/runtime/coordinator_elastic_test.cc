// The coordinator of an elastic job with workers that speak its messages over real sockets, all in
// one loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "pliant/runtime/coordinator.h"

namespace pliant {
namespace {

using namespace std::chrono_literals;

constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

// What a session or an agent does at its end of the line, by hand.
class FakeWorker final {
 public:
  FakeWorker(Loop& loop, const std::string& coordinator, const Message& first) {
    auto fd = connect_tcp(*parse_endpoint(coordinator));
    socket_ = std::make_unique<ControlSocket>(
        loop, std::move(*fd), ControlSocket::State::kConnecting, kControlBytesMax,
        ControlSocket::Callbacks{[this](const Message& message) { hear(message); },
                                 [this](const Error&) { closed = true; }});
    socket_->send(Greeting{kControlVersion, kToken});
    socket_->send(first);
  }
  void send(const Message& message) { socket_->send(message); }
  template <typename T>
  const T* last() const {
    for (auto at = got.rbegin(); at != got.rend(); ++at)
      if (const T* found = std::get_if<T>(&*at)) return found;
    return nullptr;
  }
  uint32_t epoch() const {
    const auto* const decided = last<ViewDecided>();
    return decided == nullptr ? 0 : number(decided->view.epoch);
  }

  std::function<void(const Message&)> on_message;
  std::vector<Message> got;
  int changes = 0;  // views that came as one
  View held;
  bool closed = false;

 private:
  void hear(const Message& message) {
    if (on_message) on_message(message);
    got.push_back(message);
    if (const auto* const changed = std::get_if<ViewChanged>(&message)) {
      ++changes;
      auto decided = complete(*changed, held);
      ASSERT_TRUE(decided.ok()) << decided.error().message;
      got.push_back(std::move(*decided));
    }
    if (const auto* const decided = std::get_if<ViewDecided>(&got.back())) held = decided->view;
  }

  std::unique_ptr<ControlSocket> socket_;
};

class ElasticCoordinator : public ::testing::Test {
 protected:
  ElasticCoordinator() : guard_(loop_) {}
  static RosterOptions standard() {
    RosterOptions options;
    options.hosts = {{"a", 4}};
    options.initial = 2;
    options.max = 4;
    options.heartbeat = 60s;
    return options;
  }
  void start(const RosterOptions& roster, const std::vector<std::byte>& log = {}) {
    CoordinatorOptions options;
    options.address = *parse_address("127.0.0.1", 0);
    options.token = kToken;
    options.name = "train";
    options.elastic = roster;
    options.log = log;
    Coordinator::Callbacks callbacks;
    callbacks.on_start = [](const StartWorkers&) {};
    callbacks.on_signal = [](int) {};
    callbacks.on_finish = [this](const JobAction::Finish& finish) { finish_ = finish; };
    callbacks.on_news = [this](const JobNews& news) { news_.push_back(news); };
    callbacks.on_line = [this](const std::string& line) { lines_.push_back(line); };
    callbacks.on_log = [this](Bytes bytes) { log_.assign(bytes.begin(), bytes.end()); };
    coordinator_ = std::move(*Coordinator::open(loop_, std::move(options), std::move(callbacks)));
    agent_ = std::make_unique<FakeWorker>(loop_, coordinator_->endpoint(),
                                          AgentReady{0, "127.0.0.1", 1, 0, "", running_, {}});
    agent_->on_message = [this](const Message& message) {
      if (const auto* const order = std::get_if<StartWorker>(&message))
        started_.push_back({0, order->slot, static_cast<uint16_t>(order->incarnation)});
    };
  }
  static Member member(PeerId peer) {
    return {.id = peer,
            .pid = 100 + peer.slot,
            .host = "a",
            .address = "127.0.0.1",
            .port = 1,
            .local_name = ""};
  }
  FakeWorker& join(PeerId peer, uint32_t epoch = 0) {
    workers_[peer] =
        std::make_unique<FakeWorker>(loop_, coordinator_->endpoint(), Join{member(peer), epoch});
    return *workers_[peer];
  }
  template <typename Done>
  void turn_until(Done done) {
    const Instant deadline = now() + 60s;
    while (!done() && now() < deadline) {
      for (const PeerId peer : beating_) workers_.at(peer)->send(Alive{});
      loop_.unlock();
      loop_.wait(beating_.empty() ? deadline - now() : Duration(5ms));
      loop_.lock();
      loop_.turn();
    }
    ASSERT_TRUE(done());
  }
  // Brings the job to its first view.
  void run(const RosterOptions& roster) {
    start(roster);
    turn_until([&] { return started_.size() == roster.initial; });
    for (const PeerId peer : std::vector(started_)) join(peer);
    turn_until([&] { return all_have(1); });
  }
  bool all_have(uint32_t epoch) const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [&](const auto& entry) { return entry.second->epoch() == epoch; });
  }

  Loop loop_;
  std::lock_guard<Loop> guard_;
  std::vector<PeerId> started_;
  std::vector<PeerId> running_;        // when the agent introduces itself
  std::unique_ptr<FakeWorker> agent_;  // of host 0
  std::map<PeerId, std::unique_ptr<FakeWorker>> workers_;
  std::vector<PeerId> beating_;
  std::vector<JobNews> news_;
  std::vector<std::string> lines_;
  std::vector<std::byte> log_;
  std::optional<JobAction::Finish> finish_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(ElasticCoordinator, NewcomerMeetsAndJoins) {
  run(standard());
  ASSERT_TRUE(coordinator_->wish(JobWish::Resize{3}).ok());
  turn_until([&] { return started_.size() == 3; });
  const PeerId third = started_[2];
  FakeWorker& newcomer = join(third);
  turn_until([&] { return newcomer.last<Meet>() != nullptr; });
  EXPECT_EQ(newcomer.last<Meet>()->members.size(), 2u);
  turn_until([&] { return workers_.at(started_[0])->last<Meet>() != nullptr; });
  EXPECT_EQ(workers_.at(started_[0])->last<Meet>()->members, std::vector{member(third)});
  newcomer.send(Met{{started_[0], started_[1]}});
  turn_until([&] { return all_have(2); });
  EXPECT_EQ(newcomer.last<ViewDecided>()->view.size(), 3);

  const JobStatus status = coordinator_->status();
  EXPECT_EQ(status.name, "train");
  EXPECT_EQ(status.state, "running");
  EXPECT_EQ(status.epoch, 2u);
  EXPECT_EQ(status.target, 3u);
  EXPECT_EQ(status.max, 4u);
  ASSERT_EQ(status.members.size(), 3u);
  EXPECT_EQ(status.members[2].member, member(third));
  EXPECT_EQ(status.members[2].rank, 2);
}

TEST_F(ElasticCoordinator, OnlyWhoHoldsTheViewBeforeIsToldTheChange) {
  RosterOptions options = standard();
  options.initial = 3;
  run(options);
  for (const PeerId peer : started_) EXPECT_EQ(workers_.at(peer)->changes, 0) << "the first view";
  ASSERT_TRUE(coordinator_->wish(JobWish::Resize{4}).ok());
  turn_until([&] { return started_.size() == 4; });
  FakeWorker& newcomer = join(started_[3]);
  turn_until([&] { return newcomer.last<Meet>() != nullptr; });
  newcomer.send(Met{{started_[0], started_[1], started_[2]}});
  turn_until([&] { return all_have(2); });
  EXPECT_EQ(newcomer.changes, 0);
  for (const size_t i : {0u, 1u, 2u}) EXPECT_EQ(workers_.at(started_[i])->changes, 1);
  // One that leaves is told like the others.
  ASSERT_TRUE(coordinator_->wish(JobWish::Resize{3}).ok());
  turn_until([&] { return all_have(3); });
  EXPECT_EQ(newcomer.changes, 1);
  EXPECT_EQ(newcomer.last<ViewDecided>()->view.rank_of(started_[3]), -1);
  EXPECT_EQ(workers_.at(started_[0])->changes, 2);
}

TEST_F(ElasticCoordinator, WhoAsksIsSentTheWholeView) {
  RosterOptions options = standard();
  options.initial = 3;
  run(options);
  coordinator_->tell(WorkerDied{started_[1]});
  workers_.erase(started_[1]);
  turn_until([&] { return all_have(2); });
  FakeWorker& asking = *workers_.at(started_[0]);
  const size_t heard = asking.got.size();
  asking.send(Join{member(started_[0]), 1});
  turn_until([&] { return asking.got.size() > heard; });
  ASSERT_TRUE(std::holds_alternative<ViewDecided>(asking.got.back()));
  EXPECT_EQ(asking.epoch(), 2u);
  EXPECT_EQ(asking.last<ViewDecided>()->view.size(), 2);
  EXPECT_FALSE(asking.closed);
  // It holds that one now.
  EXPECT_EQ(asking.changes, 1);
  coordinator_->tell(WorkerDied{started_[2]});
  workers_.erase(started_[2]);
  turn_until([&] { return all_have(3); });
  EXPECT_EQ(asking.changes, 2);
}

TEST_F(ElasticCoordinator, DeathsOfOneMomentMakeOneView) {
  RosterOptions options = standard();
  options.initial = 4;
  run(options);
  for (const size_t i : {1u, 2u}) {
    coordinator_->tell(WorkerDied{started_[i]});
    workers_.erase(started_[i]);
  }
  turn_until([&] { return all_have(2); });
  const ViewDecided& decided = *workers_.at(started_[0])->last<ViewDecided>();
  EXPECT_EQ(decided.view.size(), 2);
  ASSERT_EQ(decided.gone.size(), 2u);
  EXPECT_TRUE(decided.gone[0].ended);
  for (const size_t i : {1u, 2u}) coordinator_->tell(WorkerExited{started_[i], 100, 137, 9, ""});
  workers_.at(started_[0])->send(Recovered{.epoch = 2, .step = 5, .agree_ns = 1'000'000});
  turn_until([&] { return !lines_.empty(); });
  EXPECT_EQ(lines_[0],
            "rank 1 (host a, pid 101) was killed by signal 9 (Killed), rank 2 (host a, pid 102) "
            "was killed by signal 9 (Killed): 2 members go on, epoch 2; agree 1.00 ms");
  EXPECT_EQ(coordinator_->status().step, 5u);
}

TEST_F(ElasticCoordinator, SilentMemberIsOutAndToldSo) {
  RosterOptions options = standard();
  options.initial = 3;
  options.heartbeat = 200ms;
  start(options);
  turn_until([&] { return started_.size() == 3; });
  for (const PeerId peer : std::vector(started_)) {
    join(peer);
    beating_.push_back(peer);
  }
  turn_until([&] { return all_have(1); });
  const PeerId stopped = started_[1];
  std::erase(beating_, stopped);
  FakeWorker& silent = *workers_.at(stopped);
  turn_until(
      [&] { return workers_.at(started_[0])->epoch() == 2 && silent.last<Refused>() != nullptr; });
  const ViewDecided& decided = *workers_.at(started_[0])->last<ViewDecided>();
  ASSERT_EQ(decided.gone.size(), 1u);
  EXPECT_EQ(decided.gone[0].peer, stopped);
  EXPECT_FALSE(decided.gone[0].ended);
  EXPECT_EQ(silent.last<Refused>()->code, Code::kStaleEpoch);
  // It comes back and hears the same.
  FakeWorker& again = join(stopped, 1);
  turn_until([&] { return again.last<Refused>() != nullptr; });
}

TEST_F(ElasticCoordinator, ClosedConnectionIsALoss) {
  run(standard());
  workers_.erase(started_[0]);
  turn_until([&] { return all_have(2); });
  EXPECT_EQ(workers_.at(started_[1])->last<ViewDecided>()->view.size(), 1);
}

TEST_F(ElasticCoordinator, NextCoordinatorGoesOnFromTheLog) {
  run(standard());
  ASSERT_TRUE(coordinator_->wish(JobWish::Resize{3}).ok());
  turn_until([&] { return started_.size() == 3; });
  const std::vector<std::byte> log = log_;
  const View held = workers_.at(started_[0])->held;
  coordinator_.reset();
  workers_.clear();
  running_ = started_;
  start(standard(), log);
  for (const size_t i : {0u, 1u}) join(started_[i], 1).held = held;
  FakeWorker& newcomer = join(started_[2]);
  turn_until([&] { return newcomer.last<Meet>() != nullptr; });
  newcomer.send(Met{{started_[0], started_[1]}});
  turn_until([&] { return all_have(2); });
  EXPECT_EQ(started_.size(), 3u);
  EXPECT_EQ(coordinator_->status().members.size(), 3u);
  for (const size_t i : {0u, 1u})
    EXPECT_EQ(workers_.at(started_[i])->changes, 1) << "it came with the newest view";
}

TEST_F(ElasticCoordinator, AWishIsKeptBeforeItIsAcknowledged) {
  run(standard());
  ASSERT_TRUE(coordinator_->wish(JobWish::Resize{3}).ok());
  const std::vector<std::byte> log = log_;
  coordinator_.reset();
  workers_.clear();
  running_ = started_;
  start(standard(), log);
  EXPECT_EQ(coordinator_->status().target, 3u);
  EXPECT_EQ(coordinator_->status().members.size(), 2u);
  turn_until([&] { return started_.size() == 3; });
}

TEST_F(ElasticCoordinator, LauncherPassesSignalsOnAndHearsOfTheEnd) {
  run(standard());
  FakeWorker launcher(loop_, coordinator_->endpoint(), LauncherSignal{0});
  launcher.send(LauncherSignal{SIGTERM});
  turn_until([&] { return launcher.last<SignalWorkers>() != nullptr; });
  EXPECT_EQ(launcher.last<SignalWorkers>()->signal, SIGTERM);
  EXPECT_EQ(coordinator_->status().state, "ending");
  for (const PeerId peer : started_) coordinator_->tell(WorkerExited{peer, 1, 143, 15, ""});
  turn_until([&] { return launcher.last<JobFinished>() != nullptr; });
  EXPECT_EQ(launcher.last<JobFinished>()->exit_code, 143);
  // One that was away at the end hears of it when it is back.
  FakeWorker late(loop_, coordinator_->endpoint(), LauncherSignal{SIGTERM});
  turn_until([&] { return late.last<JobFinished>() != nullptr; });
  EXPECT_EQ(*late.last<JobFinished>(), *launcher.last<JobFinished>());
}

TEST_F(ElasticCoordinator, AgentThatDialsAgainTakesThePlaceOfItsOldConnection) {
  RosterOptions options = standard();
  options.hosts = {{"a", 1}, {"b", 1}};
  options.max = 2;
  start(options);
  FakeWorker before(loop_, coordinator_->endpoint(), AgentReady{1, "127.0.0.1", 1, 0, ""});
  turn_until([&] { return before.last<StartWorker>() != nullptr; });
  FakeWorker after(loop_, coordinator_->endpoint(),
                   AgentReady{1, "127.0.0.1", 1, 0, "", {{1, 0, 1}}, {}});
  turn_until([&] { return before.closed && after.last<StartWorkers>() != nullptr; });
  join({0, 0, 1});
  join({1, 0, 1});
  turn_until([&] { return all_have(1); });
  EXPECT_EQ(coordinator_->status().members.size(), 2u);
  FakeWorker launcher(loop_, coordinator_->endpoint(), LauncherSignal{0});
  launcher.send(AgentEnded{1, "ssh ended"});
  turn_until([&] { return workers_.at({0, 0, 1})->epoch() == 2; });
  EXPECT_EQ(coordinator_->status().members.size(), 1u);
}

TEST_F(ElasticCoordinator, AgentOfAnotherHostGetsItsOrders) {
  RosterOptions options = standard();
  options.hosts = {{"a", 1}, {"b", 1}};
  options.max = 2;
  start(options);
  FakeWorker agent(loop_, coordinator_->endpoint(), AgentReady{1, "127.0.0.1", 1, 0, ""});
  turn_until([&] { return agent.last<StartWorker>() != nullptr; });
  EXPECT_EQ(*agent.last<StartWorker>(), (StartWorker{0, 1, 1}));
  join({0, 0, 1});
  join({1, 0, 1});
  turn_until([&] { return all_have(1); });
  agent.send(Notice{1, Notice::kWholeHost, "soon gone"});
  turn_until([&] { return all_have(2); });
  const Departure gone = workers_.at({1, 0, 1})->last<ViewDecided>()->gone.at(0);
  EXPECT_EQ(gone.peer, (PeerId{1, 0, 1}));
  EXPECT_TRUE(gone.planned);
}

TEST_F(ElasticCoordinator, NewsAreNumberedAndTheEndIsOneOfThem) {
  run(standard());
  for (const PeerId peer : started_) workers_.at(peer)->send(Leave{});
  turn_until([&] { return coordinator_->status().target == 0; });
  for (const PeerId peer : started_) coordinator_->tell(WorkerExited{peer, 1, 0, 0, ""});
  turn_until([&] { return finish_.has_value(); });
  EXPECT_EQ(finish_->exit_code, 0);
  for (size_t i = 0; i < news_.size(); ++i) EXPECT_EQ(news_[i].sequence, i + 1);
  EXPECT_EQ(news_.back().kind, "finish");
  EXPECT_EQ(coordinator_->status().state, "finished");
}

TEST_F(ElasticCoordinator, WishesThatCannotBeGrantedAreExplained) {
  run(standard());
  EXPECT_EQ(coordinator_->wish(JobWish::Resize{5}).code(), Code::kInvalid);
  EXPECT_EQ(coordinator_->wish(JobWish::DrainHost{"x"}).error().message, "the job has no host 'x'");
  EXPECT_FALSE(coordinator_->wish(JobWish::DrainPeer{{0, 3, 1}}).ok());
  EXPECT_TRUE(coordinator_->wish(JobWish::DrainPeer{started_[0]}).ok());
  turn_until([&] { return all_have(2); });
}

TEST(FixedCoordinator, HasAStatusAndStops) {
  Loop loop;
  const std::lock_guard guard(loop);
  CoordinatorOptions options;
  options.address = *parse_address("127.0.0.1", 0);
  options.workers = {{{.host = 0, .slot = 0, .incarnation = 1}, "a"}};
  options.name = "train";
  const auto coordinator = std::move(*Coordinator::open(loop, std::move(options), {}));
  const JobStatus status = coordinator->status();
  EXPECT_EQ(status.name, "train");
  EXPECT_EQ(status.state, "starting");
  EXPECT_EQ(status.max, 1u);
  EXPECT_EQ(coordinator->wish(JobWish::Resize{2}).code(), Code::kInvalid);
  EXPECT_EQ(coordinator->wish(JobWish::DrainHost{"a"}).code(), Code::kInvalid);
  EXPECT_TRUE(coordinator->wish(JobWish::Stop{}).ok());
  EXPECT_EQ(coordinator->status().state, "finished");
}

}  // namespace
}  // namespace pliant
