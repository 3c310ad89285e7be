// The coordinator and the workers' ControlLink together, over real sockets.
#include "pliant/runtime/coordinator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "pliant/runtime/control_link.h"

namespace pliant {
namespace {

using namespace std::chrono_literals;

constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

// Runs a coordinator for workers on one host in a thread of its own.
class CoordinatorTest : public ::testing::Test {
 protected:
  void start(uint16_t workers, Duration join_timeout = 60s, Duration stranger_timeout = 60s) {
    CoordinatorOptions options;
    options.address = *parse_address("127.0.0.1", 0);
    options.token = kToken;
    options.job.join_timeout = join_timeout;
    options.stranger_timeout = stranger_timeout;
    for (uint16_t slot = 0; slot < workers; ++slot)
      options.workers.push_back({{.host = 0, .slot = slot, .incarnation = 1}, "a"});
    const std::lock_guard guard(loop_);
    coordinator_ = std::move(*Coordinator::open(
        loop_, std::move(options),
        {.on_start = [](const StartWorkers&) {},
         .on_signal = [](int) {},
         .on_finish = [this](const JobAction::Finish& finish) { finish_.set_value(finish); }}));
    coordinator_->tell(AgentReady{0, "127.0.0.1", 1, 0, ""});
    thread_ = std::thread([this] {
      while (!stop_) {
        loop_.wait(1h);
        const std::lock_guard turn_guard(loop_);
        loop_.turn();
      }
    });
  }
  void TearDown() override {
    loop_.post([this] {
      coordinator_.reset();
      stop_ = true;
    });
    thread_.join();
  }
  void tell(const JobEvent::Any& event) {
    const std::lock_guard guard(loop_);
    coordinator_->tell(event);
  }

  SessionOptions options_of(uint16_t slot) const {
    SessionOptions options;
    options.coordinator = coordinator_->endpoint();
    options.token = kToken;
    options.self = {.host = 0, .slot = slot, .incarnation = 1};
    return options;
  }
  static Member member_of(uint16_t slot) {
    return {.id = {.host = 0, .slot = slot, .incarnation = 1},
            .pid = 100 + slot,
            .host = "a",
            .address = "127.0.0.1",
            .port = static_cast<uint16_t>(1000 + slot),
            .local_name = ""};
  }
  Fd connect_raw() const {
    Fd fd = std::move(*connect_tcp(*parse_endpoint(coordinator_->endpoint())));
    wait_for(fd, POLLOUT);
    return fd;
  }
  static void wait_for(const Fd& fd, short events) {
    pollfd entry{fd.get(), events, 0};
    ASSERT_EQ(poll(&entry, 1, 60'000), 1);
  }
  // All that comes until the other end closes.
  static std::vector<std::byte> read_all(const Fd& fd) {
    std::vector<std::byte> all;
    std::array<std::byte, 4096> room;
    while (true) {
      wait_for(fd, POLLIN);
      const ssize_t got = recv(fd.get(), room.data(), room.size(), 0);
      if (got <= 0) return all;
      all.insert(all.end(), room.begin(), room.begin() + got);
    }
  }

  Loop loop_;
  std::unique_ptr<Coordinator> coordinator_;
  std::promise<JobAction::Finish> finish_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// A worker as the Session is one: joins, then has its loop turned.
struct Worker {
  Result<View> join(const SessionOptions& options, const Member& self) {
    auto joined = ControlLink::join(loop, options, self);
    if (!joined) return joined.error();
    link = std::move(*joined);
    return link->view();
  }
  void watch() {
    const std::lock_guard guard(loop);
    ControlLink::Callbacks callbacks;
    callbacks.on_lost = [this](PeerId, const Error& error) { lost.push_back(error); };
    callbacks.on_coordinator_gone = [this](const Error&) { gone = true; };
    link->watch(std::move(callbacks));
  }
  template <typename Done>
  void turn_until(Done done) {
    const Instant deadline = now() + 60s;
    while (!done() && now() < deadline) {
      loop.wait(deadline - now());
      const std::lock_guard guard(loop);
      loop.turn();
    }
    EXPECT_TRUE(done());
  }
  void leave() {
    const std::lock_guard guard(loop);
    link->leave();
    link.reset();
  }
  void crash() {
    const std::lock_guard guard(loop);
    link.reset();
  }
  ~Worker() {
    if (link) crash();
  }

  Loop loop;
  std::unique_ptr<ControlLink> link;
  std::vector<Error> lost;
  bool gone = false;
};

TEST_F(CoordinatorTest, AllMembersGetTheSameViewAndMayJoinAgain) {
  constexpr uint16_t kWorkers = 5;
  start(kWorkers);
  std::array<Worker, kWorkers> workers;
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    std::vector<std::thread> threads;
    std::array<View, kWorkers> views;
    for (uint16_t slot = 0; slot < kWorkers; ++slot) {
      threads.emplace_back([&, slot] {
        auto view = workers[slot].join(options_of(slot), member_of(slot));
        ASSERT_TRUE(view.ok()) << view.error().message;
        views[slot] = *view;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(number(views[0].epoch), epoch);
    for (uint16_t slot = 0; slot < kWorkers; ++slot) {
      EXPECT_EQ(views[slot], views[0]);
      EXPECT_EQ(views[0].at(slot), member_of(slot));
      workers[slot].leave();
    }
  }
}

class TwoWorkers : public CoordinatorTest {
 protected:
  void join_both() {
    start(2);
    auto other = std::async(std::launch::async,
                            [this] { return second_.join(options_of(1), member_of(1)); });
    ASSERT_TRUE(first_.join(options_of(0), member_of(0)).ok());
    ASSERT_TRUE(other.get().ok());
  }
  Worker first_;
  Worker second_;
};

TEST_F(TwoWorkers, LossIsToldWithTheAgentsReason) {
  join_both();
  first_.watch();
  second_.crash();
  tell(WorkerExited{{0, 1, 1}, 101, 137, 9, ""});
  first_.turn_until([&] { return !first_.lost.empty(); });
  const Error& error = first_.lost[0];
  EXPECT_EQ(error.code, Code::kPeerLost);
  EXPECT_EQ(error.peer, (PeerId{0, 1, 1}));
  EXPECT_EQ(number(error.epoch), 1u);
  EXPECT_EQ(error.message, "rank 1 (host a, pid 101) was killed by signal 9 (Killed)");
}

TEST_F(TwoWorkers, LossBeforeWatchIsNotForgotten) {
  join_both();
  second_.crash();
  tell(WorkerExited{{0, 1, 1}, 101, 1, 0, ""});
  // Nothing else is sent to it, so what wakes it is that news.
  first_.loop.wait(60s);
  {
    const std::lock_guard guard(first_.loop);
    first_.loop.turn();
  }
  EXPECT_TRUE(first_.lost.empty());
  first_.watch();
  EXPECT_EQ(first_.lost.size(), 1u);
}

TEST_F(TwoWorkers, ReportedLossNamesTheRoot) {
  join_both();
  {
    const std::lock_guard guard(first_.loop);
    first_.link->report_lost({0, 1, 1}, "its memory is gone");
  }
  first_.leave();
  tell(WorkerExited{{0, 0, 1}, 100, 1, 0, ""});
  tell(WorkerExited{{0, 1, 1}, 101, 139, 11, ""});
  const JobAction::Finish finish = finish_.get_future().get();
  EXPECT_EQ(finish.exit_code, 139);
  EXPECT_EQ(finish.message,
            "rank 1 (host a, pid 101) was killed by signal 11 (Segmentation fault); the job ends");
}

TEST_F(TwoWorkers, CoordinatorsEndIsNoDisaster) {
  join_both();
  first_.watch();
  {
    const std::lock_guard guard(loop_);
    coordinator_.reset();
  }
  first_.turn_until([&] { return first_.gone; });
  EXPECT_TRUE(first_.lost.empty());
  {
    const std::lock_guard guard(first_.loop);
    first_.link->report_lost({0, 1, 1}, "nobody listens");
  }
  first_.leave();
}

TEST_F(CoordinatorTest, MissingMembersAreNamed) {
  start(3, 50ms);
  Worker worker;
  const auto view = worker.join(options_of(1), member_of(1));
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.code(), Code::kTimeout);
  EXPECT_NE(view.error().message.find("1 of 3 members joined within 50.00 ms; missing: rank 0 "
                                      "(host a slot 0), rank 2 (host a slot 2)"),
            std::string::npos)
      << view.error().message;
}

TEST_F(CoordinatorTest, WrongTokenIsRefusedAndTheJobGoesOn) {
  start(1);
  Worker stranger;
  SessionOptions options = options_of(0);
  options.token = "0123456789abcdef0123456789abcdeX";
  const auto refused = stranger.join(options, member_of(0));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), Code::kInvalid);
  EXPECT_NE(refused.error().message.find("token"), std::string::npos);
  EXPECT_EQ(refused.error().message.find("0123456789abcdef"), std::string::npos);
  Worker worker;
  EXPECT_TRUE(worker.join(options_of(0), member_of(0)).ok());
}

TEST_F(CoordinatorTest, SecondProcessOfAWorkerIsRefused) {
  start(1);
  Worker worker;
  ASSERT_TRUE(worker.join(options_of(0), member_of(0)).ok());
  Worker copy;
  const auto refused = copy.join(options_of(0), member_of(0));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("joined already"), std::string::npos);
}

TEST_F(CoordinatorTest, GarbageIsDroppedAtOnce) {
  start(1);
  const std::string garbage = "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
  const Fd fd = connect_raw();
  ASSERT_EQ(send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), std::ssize(garbage));
  EXPECT_TRUE(read_all(fd).empty());
  Worker worker;
  EXPECT_TRUE(worker.join(options_of(0), member_of(0)).ok());
}

TEST_F(CoordinatorTest, MessageBeforeTheGreetingIsDropped) {
  start(1);
  const Fd fd = connect_raw();
  const auto bytes = encode_message(Join{member_of(0)});
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  EXPECT_TRUE(read_all(fd).empty());
}

TEST_F(CoordinatorTest, OtherVersionIsToldSo) {
  start(1);
  const Fd fd = connect_raw();
  const auto bytes = encode_message(Greeting{kControlVersion + 1, kToken});
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  MessageReader reader(kControlBytesMax);
  reader.feed(read_all(fd));
  auto answer = reader.next();
  ASSERT_TRUE(answer.ok() && answer->has_value());
  EXPECT_NE(std::get<Refused>(**answer).reason.find(fmt::format("version {}", kControlVersion + 1)),
            std::string::npos);
}

TEST_F(CoordinatorTest, SilentStrangersAreBoundedAndDropped) {
  start(1, 60s, 20ms);
  std::vector<Fd> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(connect_raw());
  // More than the bound hold connections and say nothing; a member gets in nevertheless.
  Worker worker;
  EXPECT_TRUE(worker.join(options_of(0), member_of(0)).ok());
  for (const Fd& fd : strangers) EXPECT_TRUE(read_all(fd).empty());
}

TEST_F(CoordinatorTest, NobodyThereIsATimeout) {
  start(1);
  Worker worker;
  SessionOptions options = options_of(0);
  const auto free_port = listen_tcp(*parse_address("127.0.0.1", 0));
  const Address address = *local_address(*free_port);
  options.coordinator = to_string(address);
  // Listened on but never accepted from: connects, and no answer comes.
  options.join_timeout = 10ms;
  const auto view = worker.join(options, member_of(0));
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.code(), Code::kTimeout);
  options.coordinator = "nonsense";
  EXPECT_EQ(worker.join(options, member_of(0)).code(), Code::kInvalid);
}

}  // namespace
}  // namespace pliant
