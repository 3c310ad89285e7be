#include "pliant/runtime/event_log.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

Event event_of(const std::string& message) {
  return {.id = 0, .time_ms = 1, .kind = "test", .message = message, .details = ""};
}

std::vector<std::string> messages(const EventLog::Since& since) {
  std::vector<std::string> list;
  for (const Event& event : since.events) list.push_back(event.message);
  return list;
}

using Messages = std::vector<std::string>;

TEST(EventLog, NumbersGrowAndTheRingIsBounded) {
  EventLog log(3);
  EXPECT_EQ(log.newest_id(), 0u);
  EXPECT_TRUE(log.since(0).events.empty());
  for (const char* message : {"a", "b", "c", "d", "e"}) log.append(event_of(message));
  EXPECT_EQ(log.newest_id(), 5u);
  EXPECT_EQ(messages(log.since(0)), (Messages{"c", "d", "e"}));
  EXPECT_EQ(messages(log.since(4)), Messages{"e"});
  EXPECT_EQ(messages(log.since(5)), Messages{});
  EXPECT_EQ(log.since(0).events[0].id, 3u);
}

TEST(EventLog, AGapIsTold) {
  EventLog log(2);
  for (const char* message : {"a", "b", "c", "d"}) log.append(event_of(message));
  EXPECT_TRUE(log.since(1).gap);   // "b" is lost
  EXPECT_FALSE(log.since(2).gap);  // "c" is the next
  EXPECT_FALSE(log.since(4).gap);
  EXPECT_FALSE(log.since(0).gap);
}

TEST(EventLog, AnotherLifeGoesOnCounting) {
  EventLog log(8, 101);
  EXPECT_EQ(log.append(event_of("a")), 101u);
  EXPECT_TRUE(log.since(50).gap);
  EXPECT_EQ(messages(log.since(50)), Messages{"a"});
  EXPECT_EQ(messages(log.since(100)), Messages{"a"});
  EXPECT_EQ(messages(log.since(999)), Messages{"a"});  // a number that was never given out
}

TEST(EventLog, SubscribersHearOfEachOnce) {
  EventLog log;
  Messages heard;
  const auto one = log.subscribe([&](const Event& event) { heard.push_back(event.message); });
  log.append(event_of("a"));
  log.unsubscribe(one);
  log.append(event_of("b"));
  EXPECT_EQ(heard, Messages{"a"});
}

TEST(EventLog, SubscribersMayLeaveWhileTheyAreTold) {
  EventLog log;
  int count = 0;
  EventLog::Subscription other{};
  EventLog::Subscription self{};
  self = log.subscribe([&](const Event&) {
    ++count;
    log.unsubscribe(self);
    log.unsubscribe(other);
  });
  other = log.subscribe([&](const Event&) { ++count; });
  log.append(event_of("a"));
  log.append(event_of("b"));
  EXPECT_EQ(count, 1);
}

TEST(EventLog, TextsAreMadeSafe) {
  EventLog log;
  log.append({.id = 9, .time_ms = 0, .kind = "a\nb", .message = "x\r\ny", .details = "[1]"});
  log.append({.id = 0, .time_ms = 0, .kind = "k", .message = "", .details = "{\"a\": 1}"});
  log.append({.id = 0, .time_ms = 0, .kind = "k", .message = "", .details = "{\"a\": "});
  const auto events = log.since(0).events;
  EXPECT_EQ(events[0].id, 1u);
  EXPECT_EQ(events[0].kind, "a b");
  EXPECT_EQ(events[0].message, "x  y");
  EXPECT_EQ(events[0].details, "");
  EXPECT_EQ(events[1].details, "{\"a\": 1}");
  EXPECT_EQ(events[2].details, "");
}

}  // namespace
}  // namespace pliant
