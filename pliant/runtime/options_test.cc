#include "pliant/runtime/options.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

using namespace std::chrono_literals;

TEST(Options, SurviveTheEnvironment) {
  SessionOptions options;
  options.coordinator = "[fd00::1]:4711";
  options.job = "train";
  options.token = "secret";
  options.self = {.host = 3, .slot = 2, .incarnation = 7};
  options.host = "node-a";
  options.address = "fd00::2";
  options.transport = TransportChoice::kTcp;
  options.strategy = "tree:0,0,1";
  options.timeout = 1500ms;
  options.join_timeout = Duration(1'234'567);
  options.connections = 4;
  options.heap_bytes_max = size_t{3} << 30;
  options.store_window = 9;

  const auto read = options_from(to_environment(options));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(to_environment(*read), to_environment(options));
  EXPECT_EQ(read->self, options.self);
  EXPECT_EQ(read->timeout, options.timeout);
  EXPECT_EQ(read->join_timeout, options.join_timeout);
  EXPECT_EQ(read->heap_bytes_max, options.heap_bytes_max);
}

TEST(Options, DefaultsAreKept) {
  const auto read = options_from({});
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read->coordinator.empty());
  EXPECT_EQ(read->timeout, 60s);
  EXPECT_EQ(to_environment(*read), to_environment(SessionOptions{}));
}

TEST(Options, ErrorNamesTheVariable) {
  const std::pair<const char*, const char*> wrong[] = {
      {"PLIANT_PEER", "1.2"},         {"PLIANT_PEER", "1.2#0"},     {"PLIANT_PEER", "1.99999#1"},
      {"PLIANT_PEER", "#.1"},         {"PLIANT_TRANSPORT", "rdma"}, {"PLIANT_TIMEOUT", "soon"},
      {"PLIANT_JOIN_TIMEOUT", "-1s"}, {"PLIANT_CONNECTIONS", "0"},  {"PLIANT_CONNECTIONS", "2x"},
      {"PLIANT_HEAP", "much"},        {"PLIANT_STORE_WINDOW", ""},
  };
  for (const auto& [name, value] : wrong) {
    const auto read = options_from({{name, value}});
    ASSERT_FALSE(read.ok()) << name << "=" << value;
    EXPECT_EQ(read.code(), Code::kInvalid);
    EXPECT_NE(read.error().message.find(name), std::string::npos) << read.error().message;
  }
}

TEST(Options, ReadsTheEnvironmentOfTheProcess) {
  setenv("PLIANT_STRATEGY", "ring", 1);
  setenv("PLIANT_STORE", "store-7", 1);
  const auto read = options_from_environment();
  const auto variables = environment_variables();
  unsetenv("PLIANT_STRATEGY");
  unsetenv("PLIANT_STORE");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->strategy, "ring");
  // What the agent says is there for those who change the rest.
  EXPECT_EQ(variables.at("PLIANT_STORE"), "store-7");
  EXPECT_EQ(options_from(variables)->store, "store-7");
}

}  // namespace
}  // namespace pliant
