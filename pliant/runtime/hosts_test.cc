#include "pliant/runtime/hosts.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

std::vector<Host> good(const Result<std::vector<Host>>& hosts) {
  EXPECT_TRUE(hosts.ok()) << hosts.error().message;
  return hosts.ok() ? *hosts : std::vector<Host>{};
}

TEST(Hosts, AllFormsAreRead) {
  EXPECT_EQ(good(parse_hosts("a")), (std::vector<Host>{{"a", 1, ""}}));
  EXPECT_EQ(good(parse_hosts("a:4, b-1.example.org:2")),
            (std::vector<Host>{{"a", 4, ""}, {"b-1.example.org", 2, ""}}));
  EXPECT_EQ(good(parse_hosts("a:4@10.0.0.1,b:2:10.0.0.2,c@10.0.0.3")),
            (std::vector<Host>{{"a", 4, "10.0.0.1"}, {"b", 2, "10.0.0.2"}, {"c", 1, "10.0.0.3"}}));
  EXPECT_EQ(good(parse_hosts("a:4@[fd00::1],b:2:[fd00::2],c:1@fd00::3")),
            (std::vector<Host>{{"a", 4, "fd00::1"}, {"b", 2, "fd00::2"}, {"c", 1, "fd00::3"}}));
  EXPECT_EQ(good(parse_hosts("127.0.0.2:3,[fd00::4]:2,[::1]")),
            (std::vector<Host>{
                {"127.0.0.2", 3, "127.0.0.2"}, {"fd00::4", 2, "fd00::4"}, {"::1", 1, "::1"}}));
}

TEST(Hosts, WrongOnesAreNamed) {
  for (const char* text : {"", ",", "a,", "a:", "a:0", "a:-1", "a:x", "a:65536", "a:2@", "a:2@host",
                           "a:2@10.0.0.1@x", "a:2@[fd00::1]x", "[a]:2", "[fd00::1", "fd00::1:2",
                           "-oProxyCommand=x:2", "a b:2", "a;b:1", "a:1,a:2"}) {
    const auto hosts = parse_hosts(text);
    ASSERT_FALSE(hosts.ok()) << text;
    EXPECT_EQ(hosts.code(), Code::kInvalid);
    EXPECT_FALSE(hosts.error().message.empty());
  }
  EXPECT_NE(parse_hosts("ok:1,bad:zero").error().message.find("'bad:zero'"), std::string::npos);
}

TEST(Hosts, FileHasCommentsAndLineNumbers) {
  EXPECT_EQ(
      good(parse_hostfile("# cluster\n\na slots=4 address=10.0.0.1\n b:2@10.0.0.2 # two\r\nc")),
      (std::vector<Host>{{"a", 4, "10.0.0.1"}, {"b", 2, "10.0.0.2"}, {"c", 1, ""}}));
  EXPECT_EQ(parse_hostfile("a\nb slots=many\n").error().message.substr(0, 7), "line 2:");
  EXPECT_EQ(parse_hostfile("a\n\na:2\n").error().message.substr(0, 7), "line 3:");
  EXPECT_FALSE(parse_hostfile("a weight=2").ok());
  EXPECT_FALSE(parse_hostfile("# nothing\n").ok());
}

TEST(Hosts, WorkersFillHostsInOrder) {
  const auto hosts = good(parse_hosts("a:2,b:3"));
  const auto places = place_workers(hosts, 4);
  ASSERT_TRUE(places.ok());
  ASSERT_EQ(places->size(), 4u);
  EXPECT_EQ((*places)[1], (WorkerPlace{{0, 1, 1}, "a"}));
  EXPECT_EQ((*places)[2], (WorkerPlace{{1, 0, 1}, "b"}));
  EXPECT_EQ((*places)[3], (WorkerPlace{{1, 1, 1}, "b"}));
}

TEST(Hosts, TooManyWorkersAreRefused) {
  EXPECT_EQ(place_workers(good(parse_hosts("a:2,b:2,c:2")), 8).error().message,
            "8 workers do not fit into 6 slots on 3 hosts; add hosts or slots");
  EXPECT_EQ(place_workers(good(parse_hosts("a")), 2).error().message,
            "2 workers do not fit into 1 slot on 1 host; add hosts or slots");
  EXPECT_FALSE(place_workers(good(parse_hosts("a")), 0).ok());
}

TEST(Hosts, LocalOnesAreKnown) {
  EXPECT_TRUE(is_local({"localhost", 1, ""}, "box"));
  EXPECT_TRUE(is_local({"127.0.0.9", 1, ""}, "box"));
  EXPECT_TRUE(is_local({"::1", 1, ""}, "box"));
  EXPECT_TRUE(is_local({"box", 1, ""}, "box"));
  EXPECT_FALSE(is_local({"127.example.org", 1, ""}, "box"));
  EXPECT_FALSE(is_local({"10.0.0.1", 1, ""}, "box"));
}

}  // namespace
}  // namespace pliant
