#include "cli/event_feed.h"

#include <gtest/gtest.h>

#include "pliant/runtime/control_api.h"
#include "pliant/runtime/test_http.h"

namespace pliant::cli {
namespace {

TEST(SentEvents, AreTakenApartWhateverThePieces) {
  const std::string text =
      "retry: 1000\n\n: alive\n\nid: 1\nevent: view\ndata: {\"a\":1}\n\nevent: gap\ndata: x\n\nid";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    SentEvents events;
    std::vector<SentEvents::Item> items;
    for (size_t at = 0; at < text.size(); at += piece)
      for (SentEvents::Item& item : events.take(text.substr(at, piece))) items.push_back(item);
    ASSERT_EQ(items.size(), 2u) << piece;
    EXPECT_EQ(items[0].kind, "view");
    EXPECT_EQ(items[0].data, "{\"a\":1}");
    EXPECT_EQ(items[1].kind, "gap");
  }
}

class EventFeedTest : public testing::Test {
 protected:
  ~EventFeedTest() override {
    thread_.run([this] { api_.reset(); });
  }
  void open() {
    thread_.run([this] {
      ControlOptions options;
      options.http.address = *parse_address("127.0.0.1", 0);
      options.http.token = "secret";
      auto api = ControlApi::open(thread_.loop, events_,
                                  {.status = [] { return Result<JobReport>(JobReport{}); },
                                   .wish = [](const Wish&) { return Status(); }},
                                  options);
      ASSERT_TRUE(api.ok());
      api_ = std::move(*api);
    });
  }
  void happen(const std::string& message) {
    thread_.run([&] {
      events_.append({.id = 0, .time_ms = 1, .kind = "view", .message = message, .details = ""});
    });
  }
  Result<JobEntry> entry() const {
    return JobEntry{.job = "train", .endpoint = api_->endpoint(), .token = token_, .pid = 1};
  }
  // The messages of the next `count` events.
  static std::vector<std::string> take(EventFeed& feed, size_t count) {
    std::vector<std::string> messages;
    while (messages.size() < count) {
      const auto events = feed.next(std::chrono::seconds(30));
      if (!events.ok()) return {events.error().message};
      for (const Event& event : *events) messages.push_back(event.message);
    }
    return messages;
  }

  LoopThread thread_;
  EventLog events_{3};
  std::unique_ptr<ControlApi> api_;
  std::string token_ = "secret";
};

using Messages = std::vector<std::string>;

TEST_F(EventFeedTest, TellsWhatHappensUntilTheJobEnds) {
  open();
  happen("a");
  EventFeed feed([this] { return entry(); }, 0);
  EXPECT_EQ(feed.fd(), -1);
  EXPECT_EQ(take(feed, 1), Messages{"a"});
  EXPECT_GE(feed.fd(), 0);
  happen("b");
  EXPECT_EQ(take(feed, 1), Messages{"b"});
  thread_.run([this] { api_.reset(); });
  while (!feed.ended()) ASSERT_TRUE(feed.next(std::chrono::seconds(30)).ok());
}

TEST_F(EventFeedTest, BeginsWhereItIsTold) {
  open();
  for (const char* message : {"a", "b", "c", "d", "e"}) happen(message);
  EventFeed late([this] { return entry(); }, 4);
  EXPECT_EQ(take(late, 1), Messages{"e"});
  EventFeed gap([this] { return entry(); }, 1);
  EXPECT_EQ(take(gap, 4), (Messages{"older events are no longer kept", "c", "d", "e"}));
}

TEST_F(EventFeedTest, RefusalsAndAbsenceAreErrors) {
  open();
  token_ = "wrong";
  EventFeed refused([this] { return entry(); }, 0);
  const auto events = refused.next(std::chrono::seconds(30));
  ASSERT_FALSE(events.ok());
  EXPECT_NE(events.error().message.find("token"), std::string::npos);
  EventFeed none([]() -> Result<JobEntry> { return invalid("no such job"); }, 0);
  EXPECT_EQ(none.next(std::chrono::seconds(30)).error().message, "no such job");
}

}  // namespace
}  // namespace pliant::cli
