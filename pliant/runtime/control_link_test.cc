// A worker's line against a coordinator that says what the test wants, all in one loop.
#include "pliant/runtime/control_link.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <mutex>
#include <utility>

#include "pliant/membership/test_view.h"
#include "pliant/runtime/herald.h"

namespace pliant {
namespace {

using namespace std::chrono_literals;

class ControlLinkTest : public ::testing::Test {
 protected:
  ControlLinkTest() : listener_(std::move(*listen_tcp(*parse_address("127.0.0.1", 0)))) {
    const std::lock_guard guard(loop_);
    loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept(); });
  }
  ~ControlLinkTest() override {
    const std::lock_guard guard(loop_);
    link_.reset();
    socket_.reset();
    loop_.unwatch(listener_.get());
  }
  void accept() {
    auto fd = accept_from(listener_);
    if (!fd || !fd->valid()) return;
    ++lines_;
    socket_ = std::make_unique<ControlSocket>(
        loop_, std::move(*fd), ControlSocket::State::kOpen, kControlBytesMax,
        ControlSocket::Callbacks{[this](const Message& message) {
                                   const auto* const join = std::get_if<Join>(&message);
                                   if (join == nullptr) return;
                                   joins_.push_back(join->epoch);
                                   if (joins_.size() == 1) socket_->send(answer_);
                                 },
                                 [](const Error&) {}});
  }
  // Joins; `answer` is what the coordinator says to that.
  void join(Message answer) {
    answer_ = std::move(answer);
    SessionOptions options;
    options.coordinator = to_string(*local_address(listener_));
    options.self = test_member(0).id;
    options.elastic = true;
    options.heartbeat = 60s;
    auto link = ControlLink::join(loop_, options, test_member(0));
    ASSERT_TRUE(link.ok()) << link.error().message;
    link_ = std::move(*link);
    const std::lock_guard guard(loop_);
    link_->watch({.on_coordinator_gone = [](const Error&) {},
                  .on_view = [this](const ViewDecided& decided) { views_.push_back(decided); }});
  }
  void say(const Message& message) {
    const std::lock_guard guard(loop_);
    socket_->send(message);
  }
  template <typename Done>
  void turn_until(Done done) {
    const Instant deadline = now() + 60s;
    while (!done() && now() < deadline) {
      loop_.wait(deadline - now());
      const std::lock_guard guard(loop_);
      loop_.turn();
    }
    ASSERT_TRUE(done());
  }

  Loop loop_;
  Fd listener_;
  Message answer_;
  std::unique_ptr<ControlSocket> socket_;  // the coordinator's end
  int lines_ = 0;
  std::vector<uint32_t> joins_;  // their epochs
  std::unique_ptr<ControlLink> link_;
  std::vector<ViewDecided> views_;
};

const std::vector<Departure> kOneIsGone = {{test_member(1).id, true, false, "died"}};

TEST_F(ControlLinkTest, AChangeIsAView) {
  join(ViewDecided{test_view(3, {0, 1, 2}), {}});
  say(ViewChanged{*diff(test_view(3, {0, 1, 2}), test_view(4, {0, 2, 5}), kOneIsGone)});
  turn_until([&] { return !views_.empty(); });
  EXPECT_EQ(views_[0], (ViewDecided{test_view(4, {0, 2, 5}), kOneIsGone}));
  EXPECT_EQ(joins_, std::vector<uint32_t>{0});
}

TEST_F(ControlLinkTest, AChangeOfAnotherViewIsAnsweredByAskingForTheWhole) {
  join(ViewDecided{test_view(3, {0, 1, 2}), {}});
  // The change from 3 to 4 never came, and that from 3 to 5 is of another 3.
  say(ViewChanged{*diff(test_view(4, {0, 1, 2}), test_view(5, {0, 2}), kOneIsGone)});
  turn_until([&] { return joins_.size() == 2; });
  say(ViewChanged{*diff(test_view(3, {0, 1, 7}), test_view(5, {0, 7}), kOneIsGone)});
  turn_until([&] { return joins_.size() == 3; });
  EXPECT_EQ(joins_, (std::vector<uint32_t>{0, 3, 3}));
  EXPECT_EQ(lines_, 1) << "over the same line: a closed one is a loss";
  EXPECT_TRUE(views_.empty());
  say(ViewDecided{test_view(5, {0, 2}), kOneIsGone});
  turn_until([&] { return !views_.empty(); });
  EXPECT_EQ(link_->view(), test_view(5, {0, 2}));
}

TEST_F(ControlLinkTest, OldChangesAreIgnored) {
  join(ViewDecided{test_view(3, {0, 1, 2}), {}});
  say(ViewChanged{*diff(test_view(2, {0, 1}), test_view(3, {0}), kOneIsGone)});
  say(ViewChanged{*diff(test_view(3, {0, 1, 2}), test_view(4, {0, 2}), kOneIsGone)});
  turn_until([&] { return !views_.empty(); });
  EXPECT_EQ(views_[0].view, test_view(4, {0, 2}));
  EXPECT_EQ(joins_.size(), 1u);
}

TEST_F(ControlLinkTest, ACandidateWaitsForAWholeView) {
  join(Meet{{test_member(1), test_member(2)}});
  ASSERT_TRUE(link_->candidate());
  say(ViewChanged{*diff(test_view(3, {1, 2}), test_view(4, {1, 2, 0}), {})});
  say(ViewDecided{test_view(4, {1, 2, 0}), {}});
  turn_until([&] { return !views_.empty(); });
  EXPECT_EQ(views_.size(), 1u);
  EXPECT_EQ(link_->view(), test_view(4, {1, 2, 0}));
  EXPECT_FALSE(link_->candidate());
}

}  // namespace
}  // namespace pliant
