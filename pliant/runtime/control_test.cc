#include "pliant/runtime/control.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

Member member(uint16_t slot) {
  return {.id = {.host = 1, .slot = slot, .incarnation = 2},
          .pid = 4711,
          .host = "a",
          .address = "10.0.0.1",
          .port = 999,
          .local_name = "pliant-x"};
}

std::vector<Message> samples() {
  return {
      Greeting{kControlVersion, "secret"},
      Join{member(3), 7},
      Leave{},
      ViewDecided{View{Epoch{2}, {member(0), member(1)}},
                  {{member(2).id, true, false, "was killed by signal 9 (Killed)"},
                   {member(3).id, false, true, ""}}},
      Refused{Code::kTimeout, "3 of 4 members joined"},
      PeerLost{{.host = 1, .slot = 2, .incarnation = 1}, "was killed by signal 9"},
      AgentReady{.host = 2,
                 .address = "fd00::1",
                 .free_port = 12345,
                 .exit_code = 127,
                 .problem = "no such program",
                 .running = {{2, 0, 3}, {2, 1, 1}},
                 .ended = {{{2, 0, 2}, 4711, 137, 9, ""}, {{2, 2, 1}, 0, 1, 0, "no memory"}},
                 .notice = "AWS will stop it"},
      StartWorkers{"10.0.0.1", 29500, {"10.0.0.1:1", ""}},
      SignalWorkers{15},
      WorkerExited{{.host = 0, .slot = 1, .incarnation = 1}, 77, 137, 9, ""},
      AgentSpec{.coordinator = "127.0.0.1:1",
                .token = "t",
                .host_name = "b",
                .address = "",
                .host = 1,
                .group_rank = 1,
                .first_rank = 2,
                .worker_count = 2,
                .world_size = 4,
                .command = {"sh", "-c", "", "echo 'x y'"},
                .directory = "/tmp",
                .environment = {{"A", "1"}, {"B", ""}},
                .output = {.prefix = false, .quiet = true, .log_directory = "logs"},
                .elastic = true,
                .revocation = {"gcp", "http://127.0.0.1:80/a", 5'000'000'000},
                .store = {uint64_t{1} << 40, 3, 2, "/store"}},
      Meet{{member(4), member(5)}},
      Met{{member(0).id, member(4).id}},
      Paused{"2 of at least 3 members are left"},
      Alive{},
      Progress{100, 6400},
      Proposal{8},
      Recovered{3, 101, 1'200'000, 18'000'000, 5, uint64_t{1} << 40, true},
      StartWorker{3, 70000, 12},
      SignalWorker{{.host = 0, .slot = 1, .incarnation = 1}, 15},
      WorkerDied{{.host = 0, .slot = 1, .incarnation = 1}},
      Notice{2, Notice::kWholeHost, "the machine is taken away in 30 s"},
      LauncherSignal{15},
      AgentEnded{1, "host b: 'ssh b pliant agent' ended with code 255"},
      JobFinished{137, "rank 2 was killed by signal 9 (Killed); the job ends"},
      ViewChanged{{Epoch{6},
                   Epoch{9},
                   {{member(2).id, false, true, "leaves: 2 members are wanted"}},
                   {member(4), member(5)},
                   uint64_t{0x0123456789abcdef}}},
  };
}

Bytes body_of(const std::vector<std::byte>& whole) { return Bytes(whole).subspan(4); }

TEST(Control, EveryMessageSurvivesTheWire) {
  const std::vector<Message> messages = samples();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (const Message& message : messages) {
    const auto decoded = decode_message(body_of(encode_message(message)));
    ASSERT_TRUE(decoded.ok()) << message.index() << ": " << decoded.error().message;
    EXPECT_EQ(*decoded, message) << message.index();
  }
}

TEST(Control, EveryCutAndEveryExtraByteIsRefused) {
  for (const Message& message : samples()) {
    const std::vector<std::byte> whole = encode_message(message);
    const Bytes body = body_of(whole);
    for (size_t size = 0; size < body.size(); ++size)
      EXPECT_FALSE(decode_message(body.subspan(0, size)).ok()) << message.index() << "/" << size;
    std::vector<std::byte> longer(body.begin(), body.end());
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode_message(longer).ok()) << message.index();
  }
}

TEST(Control, CountsBeyondTheBytesAreRefused) {
  // Every position is overwritten by a huge number in turn: nothing may be believed unseen.
  for (const Message& message : samples()) {
    const std::vector<std::byte> whole = encode_message(message);
    for (size_t at = 5; at + 4 <= whole.size(); ++at) {
      std::vector<std::byte> forged = whole;
      for (size_t i = 0; i < 4; ++i) forged[at + i] = std::byte{0xff};
      (void)decode_message(body_of(forged));
    }
  }
  EXPECT_FALSE(decode_message(std::vector<std::byte>{std::byte{200}}).ok());
}

TEST(Control, StreamIsCutIntoMessages) {
  std::vector<std::byte> stream;
  for (const Message& message : samples()) {
    const auto bytes = encode_message(message);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  for (const size_t step : {size_t{1}, size_t{7}, stream.size()}) {
    MessageReader reader(kControlBytesMax);
    std::vector<Message> got;
    for (size_t at = 0; at < stream.size(); at += step) {
      reader.feed(Bytes(stream).subspan(at, std::min(step, stream.size() - at)));
      while (true) {
        auto next = reader.next();
        ASSERT_TRUE(next.ok());
        if (!next->has_value()) break;
        got.push_back(**next);
      }
    }
    EXPECT_EQ(got, samples()) << "in steps of " << step;
  }
}

TEST(Control, LengthIsCheckedBeforeTheBody) {
  MessageReader reader(kStrangerBytesMax);
  Writer huge;
  huge.put(uint32_t{0xffffffff});
  reader.feed(huge.bytes());
  EXPECT_FALSE(reader.next().ok());

  MessageReader stranger(kStrangerBytesMax);
  const auto bytes = encode_message(PeerLost{{}, std::string(2 * kStrangerBytesMax, 'x')});
  stranger.feed(bytes);
  EXPECT_FALSE(stranger.next().ok());
  MessageReader known(kControlBytesMax);
  known.feed(bytes);
  EXPECT_TRUE(known.next().ok());
}

}  // namespace
}  // namespace pliant
