#include "pliant/runtime/job_watch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pliant {
namespace {

using std::chrono_literals::operator""ms;

JobNews news(const std::string& kind, std::map<std::string, std::string> fields = {}) {
  return {.sequence = 1,
          .time = std::chrono::system_clock::time_point(1'700'000'000'123ms),
          .kind = kind,
          .text = "about " + kind,
          .fields = std::move(fields)};
}

TEST(JobWatch, NewsBecomeEvents) {
  JobWatch watch(100);
  watch.hear(news("loss", {{"pid", "4711"}, {"host", "7"}, {"epoch", "many"}}));
  const auto events = watch.events().since(0).events;
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].id, 100u);
  EXPECT_EQ(events[0].time_ms, 1'700'000'000'123);
  EXPECT_EQ(events[0].kind, "loss");
  EXPECT_EQ(events[0].message, "about loss");
  const auto details = nlohmann::json::parse(events[0].details);
  EXPECT_EQ(details, (nlohmann::json{{"pid", 4711}, {"host", "7"}, {"epoch", "many"}}));
}

TEST(JobWatch, NewsAreCounted) {
  JobWatch watch;
  for (const char* kind : {"view", "join", "join", "loss", "view", "view", "start"})
    watch.hear(news(kind));
  watch.hear(news("recovered", {{"detect_ns", "1"},
                                {"agree_ns", "2"},
                                {"redo_ns", "3"},
                                {"transfer_ns", "4"},
                                {"transfer_bytes", "5"}}));
  const JobReport report = watch.report({}, now(), 0);
  EXPECT_EQ(report.views_total, 3u);
  EXPECT_EQ(report.joins_total, 2u);
  EXPECT_EQ(report.losses_total, 1u);
  EXPECT_EQ(report.last_change, (ChangeDurations{1, 2, 3, 4, 5}));
  // What the next change does not tell is not that of the last one.
  watch.hear(news("recovered", {{"agree_ns", "9"}}));
  EXPECT_EQ(watch.report({}, now(), 0).last_change, (ChangeDurations{0, 9, 0, 0, 0}));
}

TEST(JobWatch, StatusBecomesAReport) {
  const Instant time = Instant(5'000ms);
  JobStatus status;
  status.name = "train";
  status.state = "paused";
  status.paused = "1 of 2";
  status.epoch = 3;
  status.target = 4;
  status.min = 2;
  status.max = 8;
  status.step = 9;
  Member member;
  member.id = {1, 2, 3};
  member.pid = 4711;
  member.host = "a";
  status.members.push_back({.rank = 0, .member = member, .since = Instant(4'000ms)});
  const JobReport report = JobWatch().report(status, time, 100'000);
  EXPECT_EQ(report.job, "train");
  EXPECT_EQ(report.state, JobState::kPaused);
  EXPECT_EQ(report.paused_reason, "1 of 2");
  EXPECT_EQ(report.epoch, 3u);
  EXPECT_EQ(report.target, 4u);
  EXPECT_EQ(report.min, 2u);
  EXPECT_EQ(report.max, 8u);
  EXPECT_EQ(report.step, 9u);
  ASSERT_EQ(report.members.size(), 1u);
  EXPECT_EQ(report.members[0], (MemberReport{0, {1, 2, 3}, "a", 4711, 99'000}));
  for (const char* word : {"starting", "running", "paused", "ending"}) {
    status.state = word;
    EXPECT_STREQ(to_string(JobWatch().report(status, time, 0).state), word);
  }
  status.state = "finished";
  EXPECT_EQ(JobWatch().report(status, time, 0).state, JobState::kEnding);
}

TEST(JobWatch, WishesAreTheCoordinatorsOwn) {
  EXPECT_EQ(std::get<JobWish::Resize>(job_wish(ResizeWish{4})).size, 4u);
  EXPECT_EQ(std::get<JobWish::DrainHost>(job_wish(DrainWish{"a", {}})).host, "a");
  const PeerId peer{0, 2, 1};
  EXPECT_EQ(std::get<JobWish::DrainPeer>(job_wish(DrainWish{"", peer})).peer, peer);
  EXPECT_TRUE(std::holds_alternative<JobWish::Stop>(job_wish(StopWish{})));
}

}  // namespace
}  // namespace pliant
