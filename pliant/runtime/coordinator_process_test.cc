#include "pliant/runtime/coordinator_process.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

CoordinatorSpec example() {
  CoordinatorSpec spec;
  spec.listener = 5;
  spec.control_listener = 7;
  spec.token = "secret";
  spec.control_token = "another";
  spec.name = "train \"x\"";
  spec.journal = "/tmp/job/journal";
  spec.life = 3;
  spec.verbose = true;
  spec.grace = std::chrono::milliseconds(1500);
  spec.join_timeout = std::chrono::seconds(60);
  spec.roster.hosts = {{"a", 8}, {"b", 2}};
  spec.roster.initial = 4;
  spec.roster.min = 2;
  spec.roster.max = 10;
  spec.roster.restarts = RosterOptions::kAnyNumber;
  spec.roster.schedule = {{4, 0}, {8, 100}};
  spec.roster.heartbeat = std::chrono::milliseconds(250);
  return spec;
}

TEST(CoordinatorSpec, IsReadAsItWasWritten) {
  const std::string text = spec_json(example());
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto read = parse_coordinator_spec(text);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(spec_json(*read), text);
  EXPECT_EQ(read->roster.hosts, example().roster.hosts);
  EXPECT_EQ(read->roster.schedule, example().roster.schedule);
  EXPECT_EQ(read->roster.join_timeout, std::chrono::seconds(60));
  EXPECT_EQ(read->roster.heartbeat, std::chrono::milliseconds(250));
}

TEST(CoordinatorSpec, IsRefusedIfItIsIncompleteOrWrong) {
  for (const char* text :
       {"", "[]", "{}", "3", R"({"listener": "5"})", R"({"listener": 5, "token": "x"})",
        R"({"listener": 5, "token": "x", "journal": "j", "hosts": {}})",
        R"({"listener": 5, "token": "x", "journal": "j", "hosts": [3]})",
        R"({"listener": 5, "token": "x", "journal": "j", "hosts": [{"name": 3}]})"})
    EXPECT_FALSE(parse_coordinator_spec(text).ok()) << text;
  EXPECT_TRUE(parse_coordinator_spec(
                  R"({"listener": 5, "token": "x", "journal": "j", "hosts": [{"name": "a"}]})")
                  .ok());
  CoordinatorSpec spec = example();
  spec.control_token.clear();
  EXPECT_FALSE(parse_coordinator_spec(spec_json(spec)).ok());
}

}  // namespace
}  // namespace pliant
