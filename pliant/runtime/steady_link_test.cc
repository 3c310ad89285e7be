#include "pliant/runtime/steady_link.h"

#include <gtest/gtest.h>

#include <mutex>

namespace pliant {
namespace {

// Both ends in one loop; the test is the coordinator.
class SteadyLinkTest : public ::testing::Test {
 protected:
  void accept() {
    Fd fd;
    turn_until([&] {
      auto accepted = accept_from(listener_);
      if (accepted && accepted->valid()) fd = std::move(*accepted);
      return fd.valid();
    });
    heard_.clear();
    coordinator_ = std::make_unique<ControlSocket>(
        loop_, std::move(fd), ControlSocket::State::kOpen, kControlBytesMax,
        ControlSocket::Callbacks{[this](const Message& message) { heard_.push_back(message); },
                                 [](const Error&) {}});
  }
  template <typename Condition>
  void turn_until(const Condition& condition) {
    while (!condition()) {
      loop_.unlock();
      loop_.wait(std::chrono::milliseconds(5));
      loop_.lock();
      loop_.turn();
    }
  }

  Loop loop_;
  std::lock_guard<Loop> guard_{loop_};
  Fd listener_ = std::move(*listen_tcp(*parse_address("127.0.0.1", 0)));
  std::unique_ptr<ControlSocket> coordinator_;
  std::vector<Message> heard_;
};

TEST_F(SteadyLinkTest, IntroducesItselfAgainAfterEachLoss) {
  std::vector<Message> orders;
  int closed = 0;
  int signal = 1;
  SteadyLink link(loop_, *local_address(listener_), "token",
                  {[&]() -> std::vector<Message> {
                     return {LauncherSignal{signal}, Alive{}};
                   },
                   [&](const Message& message) { orders.push_back(message); },
                   [&](const Error&) { ++closed; }});
  for (int life = 1; life <= 3; ++life) {
    accept();
    turn_until([&] { return heard_.size() == 3; });
    EXPECT_EQ(heard_[0], Message(Greeting{kControlVersion, "token"}));
    EXPECT_EQ(heard_[1], Message(LauncherSignal{life}));
    EXPECT_EQ(heard_[2], Message(Alive{}));
    link.send(Leave{});
    turn_until([&] { return heard_.size() == 4; });
    coordinator_->send(SignalWorkers{life});
    turn_until([&] { return orders.size() == static_cast<size_t>(life); });
    signal = life + 1;
    coordinator_.reset();
    turn_until([&] { return closed == life; });
    link.send(Leave{});  // lost, and no harm
  }
}

TEST_F(SteadyLinkTest, KeepsDiallingAnEndThatDoesNotAnswer) {
  const Address address = *local_address(listener_);
  listener_.reset();
  int closed = 0;
  SteadyLink link(loop_, address, "token",
                  {[] { return std::vector<Message>(); }, [](const Message&) {},
                   [&](const Error&) { ++closed; }});
  turn_until([&] { return closed >= 3; });
  EXPECT_FALSE(link.open());
  EXPECT_NE(link.why_closed(), "");
  listener_ = std::move(*listen_tcp(address));
  accept();
  turn_until([&] { return heard_.size() == 1; });
  EXPECT_TRUE(link.open());
}

}  // namespace
}  // namespace pliant
