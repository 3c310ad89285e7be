#include "cli/job_client.h"

#include <gtest/gtest.h>

#include "cli/top_screen.h"

namespace pliant::cli {
namespace {

JobReport sample(size_t count) {
  JobReport status;
  status.job = "train";
  status.state = JobState::kRunning;
  status.epoch = 3;
  status.target = 4;
  status.min = 1;
  status.max = 8;
  status.step = 120;
  status.samples = 7680;
  for (size_t i = 0; i < count; ++i)
    status.members.push_back(
        {static_cast<int>(i), {0, static_cast<uint16_t>(i), 1}, "host", 100, 1'000});
  return status;
}

TEST(JobClient, SpansOfTime) {
  EXPECT_EQ(human_span(-5), "0 s");
  EXPECT_EQ(human_span(59'999), "59 s");
  EXPECT_EQ(human_span(185'000), "3 m 05 s");
  EXPECT_EQ(human_span(7'500'000), "2 h 05 m");
  EXPECT_EQ(human_span(4 * 86'400'000LL + 7'200'000), "4 d 02 h");
}

TEST(JobClient, SummaryAndTable) {
  JobReport status = sample(2);
  EXPECT_EQ(summary(status), "running, epoch 3, 2 of 4 members (1 to 8), step 120, 7680 samples");
  status.state = JobState::kPaused;
  status.paused_reason = "too\nfew";
  EXPECT_TRUE(summary(status).starts_with("paused (too?few), epoch 3"));
  status.members[1].host = "a-long-name";
  const auto lines = member_lines(status, 61'000);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], " RANK  PEER          HOST              PID  MEMBER FOR");
  EXPECT_EQ(lines[2], "    1  0.1#1         a-long-name       100  1 m 00 s");
}

TEST(JobClient, NothingThatATerminalObeysIsShown) {
  const Event event{
      .id = 1, .time_ms = 1, .kind = "lo\x1bss", .message = "red\x1b[31m\r\n", .details = ""};
  EXPECT_TRUE(event_line(event).ends_with("lo?ss     red?[31m??")) << event_line(event);
  EXPECT_EQ(printable("h\xc3\xa9llo"), "h\xc3\xa9llo");
}

TEST(JobClient, RefusalsInTheJobsWords) {
  EXPECT_EQ(refusal_in({409, "{\"error\":\"no\"}"}).message, "no");
  for (const char* body : {"", "<html>", "{\"error\":1}", "[]"})
    EXPECT_EQ(refusal_in({500, body}).message, "the job answered with HTTP status 500") << body;
}

TopState top_state(size_t members, size_t events) {
  TopState state{.status = sample(members), .events = {}, .notice = "", .now_ms = 5'000};
  for (size_t i = 0; i < events; ++i) {
    state.events.push_back({.id = i + 1,
                            .time_ms = 1,
                            .kind = "view",
                            .message = "number " + std::to_string(i + 1),
                            .details = ""});
  }
  return state;
}

bool has(const std::vector<std::string>& lines, const std::string& text) {
  for (const std::string& line : lines) {
    if (line.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(TopScreen, FitsEveryTerminal) {
  for (const size_t members : {0u, 1u, 5u, 100u}) {
    for (const size_t events : {0u, 3u, 200u}) {
      const TopState state = top_state(members, events);
      for (size_t rows = 0; rows < 60; ++rows) {
        const auto lines = top_lines(state, 40, rows);
        EXPECT_LE(lines.size(), rows);
        for (const std::string& line : lines) EXPECT_LE(line.size(), 40u);
      }
    }
  }
}

TEST(TopScreen, ShowsTheLastEventsAndAsManyMembersAsFit) {
  const auto small = top_lines(top_state(4, 3), 100, 24);
  EXPECT_TRUE(has(small, "job train"));
  EXPECT_TRUE(has(small, "0.3#1"));
  EXPECT_TRUE(has(small, "number 1"));
  EXPECT_EQ(small.back(), "q ends");
  const auto large = top_lines(top_state(100, 200), 100, 24);
  EXPECT_TRUE(has(large, "more"));
  EXPECT_TRUE(has(large, "number 200"));
  EXPECT_FALSE(has(large, "number 1 "));
  TopState state = top_state(1, 0);
  state.notice = "the job does not answer";
  EXPECT_EQ(top_lines(state, 100, 24).back(), "the job does not answer");
}

TEST(TopScreen, CutsBetweenCharacters) {
  TopState state = top_state(0, 0);
  state.status.job = "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9";
  EXPECT_EQ(top_lines(state, 18, 24)[0], "pliant top: job \xc3\xa9\xc3\xa9");
}

}  // namespace
}  // namespace pliant::cli
