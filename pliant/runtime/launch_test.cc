#include "pliant/runtime/launch.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

using Words = std::vector<std::string>;

TEST(LauncherWords, AreSplitAsAShellDoes) {
  EXPECT_EQ(*launcher_words("ssh {host}", "a"), (Words{"ssh", "a"}));
  EXPECT_EQ(*launcher_words("  ssh\t-o 'X Y' {host}.example.org ", "a"),
            (Words{"ssh", "-o", "X Y", "a.example.org"}));
  EXPECT_EQ(*launcher_words("x \"\" '{host}' {host}{host}", "b"), (Words{"x", "", "b", "bb"}));
}

TEST(LauncherWords, WrongOnesAreRefused) {
  EXPECT_FALSE(launcher_words("ssh 'a {host}", "a").ok());
  EXPECT_FALSE(launcher_words("ssh host", "a").ok());
  EXPECT_FALSE(launcher_words("", "a").ok());
}

TEST(RevocationFor, FillsInDefaultsAndTheHost) {
  const auto off = revocation_for({}, "a");
  ASSERT_TRUE(off.ok());
  EXPECT_EQ(*off, RevocationOptions{});
  EXPECT_EQ(*revocation_for({"aws", "", 0}, "a"),
            (RevocationOptions{"aws", "http://169.254.169.254", 5'000'000'000}));
  EXPECT_EQ(
      revocation_for({"gcp", "http://[::1]:8080/{host}/{host}", 1'000'000'000}, "b")->metadata_url,
      "http://[::1]:8080/b/b");
}

TEST(RevocationFor, WrongOnesAreRefused) {
  for (const RevocationOptions& wrong : {RevocationOptions{"ibm", "", 0},
                                         {"off", "http://127.0.0.1", 0},
                                         {"off", "", 1'000'000'000},
                                         {"aws", "", 1},
                                         {"aws", "", -1},
                                         {"azure", "http://{host}", 0}})
    EXPECT_FALSE(revocation_for(wrong, "a").ok()) << wrong.provider << wrong.metadata_url;
}

TEST(Launch, ErrorsComeBeforeAnythingStarts) {
  LaunchOptions options;
  options.count = 3;
  EXPECT_FALSE(launch(options).ok());
  options.command = {"/bin/true"};
  options.hosts = {{"a", 1, ""}, {"b", 1, ""}};
  EXPECT_EQ(launch(options).error().message,
            "3 workers do not fit into 2 slots on 2 hosts; add hosts or slots");
  options.hosts = {{"localhost", 3, ""}};
  options.address = "not-an-address";
  EXPECT_EQ(launch(options).code(), Code::kInvalid);
  options.address = "192.0.2.1";  // reserved for documentation, so not ours
  EXPECT_EQ(launch(options).code(), Code::kInvalid);
}

TEST(Launch, GivesTheFirstFailuresCode) {
  LaunchOptions options;
  options.count = 2;
  options.output.quiet = true;
  options.command = {"/bin/sh", "-c", "exit $((RANK * 5))"};
  const auto result = launch(options);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->exit_code, 5);
  EXPECT_NE(result->message.find("rank 1 (host localhost, pid "), std::string::npos);
}

TEST(ElasticRoster, DefaultsComeFromTheSlots) {
  const auto alone = elastic_roster({.max = 6}, 4, {});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->hosts, (std::vector<PlaceHost>{{"localhost", 6}}));
  EXPECT_EQ(alone->initial, 4u);
  EXPECT_EQ(alone->min, 1u);
  EXPECT_EQ(alone->max, 6u);
  const auto hosts = elastic_roster({.min = 2}, 0, {{"a", 2, ""}, {"b", 3, ""}});
  ASSERT_TRUE(hosts.ok());
  EXPECT_EQ(hosts->initial, 5u);
  EXPECT_EQ(hosts->max, 5u);
  const auto scheduled = elastic_roster({.schedule = "2@0,4@10"}, 0, {});
  ASSERT_TRUE(scheduled.ok());
  EXPECT_EQ(scheduled->initial, 2u);
  EXPECT_EQ(scheduled->max, 4u);
}

TEST(ElasticRoster, ContradictionsAreExplained) {
  const std::vector<Host> four = {{"a", 4, ""}};
  const auto why = [&](const ElasticOptions& options, int count) {
    const auto roster = elastic_roster(options, count, four);
    return roster.ok() ? std::string() : roster.error().message;
  };
  EXPECT_EQ(why({.max = 5}, 2), "--max 5: there are only 4 slots; add hosts or slots");
  EXPECT_EQ(why({.min = 3, .max = 2}, 2), "--min 3 is more than --max 2");
  EXPECT_EQ(why({.min = 3}, 2), "-n 2 is less than --min 3");
  EXPECT_EQ(why({.max = 2}, 3), "3 workers are more than --max 2");
  EXPECT_EQ(why({.schedule = "2@0"}, 3), "-n 3 contradicts the schedule, which begins with 2");
  EXPECT_EQ(why({.schedule = "2@0,9@5"}, 2),
            "the schedule asks for 9 members; --min is 1, --max is 4");
  EXPECT_NE(why({.schedule = "two"}, 2).find("'two'"), std::string::npos);
  EXPECT_NE(why({.heartbeat = std::chrono::milliseconds(99)}, 2).find("too short"),
            std::string::npos);
}

}  // namespace
}  // namespace pliant
