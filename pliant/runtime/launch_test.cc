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

}  // namespace
}  // namespace pliant
