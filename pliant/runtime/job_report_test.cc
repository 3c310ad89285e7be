#include "pliant/runtime/job_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pliant {
namespace {

JobReport sample() {
  JobReport status{.job = "train \"x\"",
                   .state = JobState::kPaused,
                   .epoch = 3,
                   .target = 4,
                   .min = 2,
                   .max = 8,
                   .members = {},
                   .step = 120,
                   .samples = uint64_t{1} << 60,
                   .paused_reason = "1 of 2 members",
                   .views_total = 3,
                   .joins_total = 5,
                   .losses_total = 1,
                   .last_change = {1'500'000, 2, 3, 4, 5},
                   .coordinator_pid = 4710};
  status.members.push_back({0, {0, 1, 1}, "a", 4711, 1'700'000'000'123});
  status.members.push_back({1, {1, 0, 2}, "b", 4712, 1'700'000'000'456});
  return status;
}

TEST(JobReport, SurvivesJson) {
  const auto again = parse_report(report_json(sample()));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, sample());
  EXPECT_EQ(*parse_report(report_json(JobReport{})), JobReport{});
}

TEST(JobReport, EachMissingOrWrongFieldIsNamed) {
  const auto whole = nlohmann::json::parse(report_json(sample()));
  for (const auto& [name, value] : whole.items()) {
    auto changed = whole;
    changed.erase(name);
    const auto missing = parse_report(changed.dump());
    ASSERT_FALSE(missing.ok()) << name;
    EXPECT_NE(missing.error().message.find("'" + name + "'"), std::string::npos)
        << missing.error().message;
    changed[name] = true;
    EXPECT_FALSE(parse_report(changed.dump()).ok()) << name;
  }
  for (const char* text : {"", "[]", "{", "7", "{\"members\": [{}]}"})
    EXPECT_FALSE(parse_report(text).ok()) << text;
  auto changed = whole;
  changed["epoch"] = -1;
  EXPECT_FALSE(parse_report(changed.dump()).ok());
  changed["epoch"] = uint64_t{1} << 32;
  EXPECT_FALSE(parse_report(changed.dump()).ok());
}

TEST(JobReport, PartsOfItAsJson) {
  const auto view = nlohmann::json::parse(view_json(sample()));
  EXPECT_EQ(view["epoch"], 3);
  EXPECT_EQ(view["members"].size(), 2u);
  EXPECT_EQ(view["members"], nlohmann::json::parse(members_json(sample())));
  EXPECT_EQ(view["members"][1]["peer"], "1.0#2");
  EXPECT_EQ(members_json(JobReport{}), "[]");
}

TEST(JobReport, HostNamesNeedNotBeText) {
  JobReport status = sample();
  status.members[0].host = "\xff\xfe";
  EXPECT_TRUE(parse_report(report_json(status)).ok());
}

TEST(JobReport, Metrics) {
  const std::string text = metrics_text(sample());
  for (const char* line :
       {"# TYPE pliant_members gauge\n", "pliant_members{job=\"train \\\"x\\\"\"} 2\n",
        "pliant_target{job=\"train \\\"x\\\"\"} 4\n", "pliant_epoch{job=\"train \\\"x\\\"\"} 3\n",
        "pliant_paused{job=\"train \\\"x\\\"\"} 1\n", "pliant_step{job=\"train \\\"x\\\"\"} 120\n",
        "pliant_samples_total{job=\"train \\\"x\\\"\"} 1152921504606846976\n",
        "pliant_losses_total{job=\"train \\\"x\\\"\"} 1\n",
        "pliant_change_detect_seconds{job=\"train \\\"x\\\"\"} 0.0015\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

TEST(JobReport, EventsSurviveJson) {
  const Event event{.id = 7,
                    .time_ms = 1'700'000'000'000,
                    .kind = "loss",
                    .message = "0.2#1 was killed \"x\"",
                    .details = "{\"detect_ms\":1.5}"};
  EXPECT_EQ(*parse_event(event_json(event)), event);
  EXPECT_FALSE(parse_event("{\"id\": 7}").ok());
  EXPECT_FALSE(parse_event("nothing").ok());
  EXPECT_EQ(*parse_events(events_json({event, event})), (std::vector<Event>{event, event}));
  EXPECT_TRUE(parse_events(events_json({}))->empty());
  EXPECT_FALSE(parse_events("{}").ok());
  EXPECT_FALSE(parse_events("[{}]").ok());
}

TEST(JobReport, WishesSurviveJson) {
  EXPECT_EQ(wish_json(ResizeWish{4}), "{\"size\":4}");
  EXPECT_EQ(*parse_resize(wish_json(ResizeWish{4})), ResizeWish{4});
  const DrainWish host{.host = "a", .peer = {}};
  EXPECT_EQ(*parse_drain(wish_json(host)), host);
  const DrainWish peer{.host = "", .peer = {0, 2, 1}};
  EXPECT_EQ(wish_json(peer), "{\"peer\":\"0.2#1\"}");
  EXPECT_EQ(*parse_drain(wish_json(peer)), peer);
  for (const char* text : {"", "4", "{}", "{\"size\": -1}", "{\"size\": 1.5}", "{\"size\": \"4\"}",
                           "{\"size\": 4, \"x\": 1}", "{\"size\": 4294967296}"})
    EXPECT_FALSE(parse_resize(text).ok()) << text;
  for (const char* text : {"", "{}", "{\"host\": \"\"}", "{\"host\": 1}", "{\"peer\": \"0.2\"}",
                           "{\"host\": \"a\", \"peer\": \"0.2#1\"}", "[\"host\", \"a\"]"})
    EXPECT_FALSE(parse_drain(text).ok()) << text;
}

TEST(JobReport, PeersAsText) {
  EXPECT_EQ(*parse_peer_id("3.65535#2"), (PeerId{3, 65535, 2}));
  for (const char* text : {"", "0", "0.2", "0.2#", "0.2#0", "0.2#1 ", " 0.2#1", "0.65536#1",
                           "-1.2#1", "0.2#1#1", "a.2#1"})
    EXPECT_FALSE(parse_peer_id(text).ok()) << text;
}

TEST(JobReport, StoresComeBackAsTheyWere) {
  const std::vector<StoreReport> stores = {{0, "127.0.0.1:1", "127.0.0.1:2"},
                                           {3, "[::1]:1", "[::1]:2"}};
  const auto read = parse_stores(stores_json(stores));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, stores);
  EXPECT_EQ(parse_stores("[]").value(), std::vector<StoreReport>());
  for (const char* wrong : {"", "{}", "[3]", R"([{"host": 0, "endpoint": "a:1"}])",
                            R"([{"host": -1, "endpoint": "a:1", "transfer": "a:2"}])"})
    EXPECT_FALSE(parse_stores(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace pliant
