#include "pliant/transport/tcp/transport.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "pliant/transport/testing.h"

namespace pliant {
namespace {

using test::Job;
using test::Node;
using test::open_descriptors;
using test::payload_of;
using test::peer_id;
using test::ReservedPort;

class TcpTransportTest : public testing::Test {
 protected:
  TcpTransport::Options options(PeerId self) {
    return {.self = self, .job = "job", .token = std::string(kTokenBytesMin, 't')};
  }
  Node& open(int slot) { return open(options(peer_id(slot))); }
  Node& open(const TcpTransport::Options& options) {
    Node& node = job_.add(options.self);
    node.transport = std::move(TcpTransport::open(node.loop, node.sink, options).value());
    return node;
  }
  static uint16_t port_of(const Node& node) {
    return static_cast<TcpTransport&>(*node.transport).port();
  }
  static Member member_of(const Node& node, PeerId id) {
    Member member;
    member.id = id;
    member.address = "127.0.0.1";
    member.port = port_of(node);
    return member;
  }
  static void introduce(Node& node, const Node& other) {
    node.transport->add_peer(member_of(other, other.id));
  }
  // A raw connection of somebody to a node.
  Fd stranger(const Node& node) {
    Result<Fd> fd = connect_tcp(*parse_address("127.0.0.1", port_of(node)));
    pollfd entry{fd->get(), POLLOUT, 0};
    EXPECT_EQ(::poll(&entry, 1, 30'000), 1);
    return std::move(*fd);
  }
  static void say(const Fd& fd, Bytes bytes) {
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Turns until the node has closed the connection; returns what it said before.
  std::vector<std::byte> said_before_closing(const Fd& fd) {
    std::vector<std::byte> bytes;
    const bool closed = job_.turn_until([&] {
      std::byte byte{};
      const ssize_t got = recv(fd.get(), &byte, 1, 0);
      if (got == 1) bytes.push_back(byte);
      return got == 0 || (got < 0 && errno != EAGAIN);
    });
    EXPECT_TRUE(closed);
    return bytes;
  }
  Answer answer_to(const Node& node, const Hello& hello) {
    const Fd fd = stranger(node);
    say(fd, encode(hello));
    const std::vector<std::byte> bytes = said_before_closing(fd);
    EXPECT_EQ(bytes.size(), kAnswerBytes);
    if (bytes.size() != kAnswerBytes) return Answer::kAccepted;
    return *decode_answer(std::span(bytes).first<kAnswerBytes>());
  }
  Hello hello_to(const Node& node) {
    return {.job = "job",
            .token = std::string(kTokenBytesMin, 't'),
            .from = peer_id(77),
            .to = node.id,
            .epoch = Epoch{1},
            .stream = 0,
            .streams = 1};
  }
  void expect_healthy(Node& from, Node& to) {
    const size_t before = to.sink.arrivals.size();
    from.send(to.id, payload_of(5, 100'000));
    EXPECT_TRUE(job_.turn_until([&] { return to.sink.arrivals.size() == before + 1; }));
    EXPECT_TRUE(from.sink.losses.empty());
    EXPECT_TRUE(to.sink.losses.empty());
  }
  Error loss_of(Node& node, PeerId peer) {
    EXPECT_TRUE(job_.turn_until([&] { return node.sink.has_lost(peer); }));
    return node.sink.losses[peer].at(0);
  }

  Job job_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(TcpTransportTest, ChecksItsOptions) {
  Node& node = job_.add(peer_id(0));
  const auto refused = [&](auto change) {
    TcpTransport::Options wrong = options(peer_id(0));
    change(wrong);
    return !TcpTransport::open(node.loop, node.sink, wrong).ok();
  };
  EXPECT_TRUE(refused([](auto& o) { o.token = "short"; }));
  EXPECT_TRUE(refused([](auto& o) { o.job = ""; }));
  EXPECT_TRUE(refused([](auto& o) { o.job = std::string(300, 'j'); }));
  EXPECT_TRUE(refused([](auto& o) { o.self = PeerId{}; }));
  EXPECT_TRUE(refused([](auto& o) { o.connections = 0; }));
  EXPECT_TRUE(refused([](auto& o) { o.connections = 1000; }));
  EXPECT_TRUE(refused([](auto& o) { o.address = "localhost"; }));
  EXPECT_FALSE(refused([](auto&) {}));
}

TEST_F(TcpTransportTest, SaysThatItsPortIsInUse) {
  const Node& first = open(0);
  TcpTransport::Options wrong = options(peer_id(1));
  wrong.port = port_of(first);
  Node& second = job_.add(peer_id(1));
  const auto opened = TcpTransport::open(second.loop, second.sink, wrong);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.code(), Code::kInvalid);
  EXPECT_TRUE(contains(opened.error().message, "in use")) << opened.error().message;
}

TEST_F(TcpTransportTest, TurnsAwayStrangers) {
  Node& a = open(0);
  Node& b = open(1);
  introduce(a, b);
  introduce(b, a);
  expect_healthy(a, b);
  const size_t before = open_descriptors();

  std::vector<std::byte> garbage(100'000);
  std::memcpy(garbage.data(), "GET / HTTP/1.1\r\n", 16);
  Fd fd = stranger(b);
  say(fd, std::span(garbage).first(5000));
  EXPECT_TRUE(said_before_closing(fd).empty()) << "a stranger is told nothing";

  // A hello that announces 64 KiB.
  std::vector<std::byte> huge = encode(hello_to(b));
  huge[6] = huge[7] = std::byte{0xff};
  fd = stranger(b);
  say(fd, huge);
  EXPECT_TRUE(said_before_closing(fd).empty());

  // A right head with a wrong body.
  std::vector<std::byte> bent = encode(hello_to(b));
  std::memset(bent.data() + kHelloHeadBytes, 0xff, bent.size() - kHelloHeadBytes);
  fd = stranger(b);
  say(fd, bent);
  EXPECT_TRUE(said_before_closing(fd).empty());

  // One that leaves in the middle of its hello.
  fd = stranger(b);
  say(fd, std::span(bent).first(20));
  fd.reset();
  EXPECT_TRUE(job_.turn_until([&] { return open_descriptors() == before; }));
  expect_healthy(a, b);
  expect_healthy(b, a);
}

TEST_F(TcpTransportTest, TurnsAwayTheWrongTokenJobPeerAndVersion) {
  Node& node = open(0);
  Hello hello = hello_to(node);
  hello.token[5] = 'x';
  EXPECT_EQ(answer_to(node, hello), Answer::kWrongSecret);
  hello = hello_to(node);
  hello.job = "another";
  EXPECT_EQ(answer_to(node, hello), Answer::kWrongSecret);
  hello = hello_to(node);
  hello.to = peer_id(3);
  EXPECT_EQ(answer_to(node, hello), Answer::kWrongPeer);

  std::vector<std::byte> future = encode(hello_to(node));
  future[4] = std::byte{99};
  const Fd fd = stranger(node);
  say(fd, future);
  const auto bytes = said_before_closing(fd);
  ASSERT_EQ(bytes.size(), kAnswerBytes);
  EXPECT_EQ(*decode_answer(std::span(bytes).first<kAnswerBytes>()), Answer::kWrongVersion);
  EXPECT_EQ(node.sink.callbacks, 0u);
}

TEST_F(TcpTransportTest, AHelloMayComeByteByByte) {
  Node& node = open(0);
  const Fd fd = stranger(node);
  std::vector<std::byte> bytes = encode(hello_to(node));
  const Frame frame;
  const auto head = std::as_bytes(std::span(&frame, 1));
  bytes.insert(bytes.end(), head.begin(), head.end());  // not even waiting for the answer
  for (const std::byte& byte : bytes) {
    say(fd, {&byte, 1});
    job_.turn();
  }
  ASSERT_TRUE(job_.turn_until([&] { return node.sink.arrivals.size() == 1; }));
  EXPECT_EQ(node.sink.arrivals[0].from, peer_id(77));
}

TEST_F(TcpTransportTest, TurnsAwayTheSameConnectionTwiceAndALostPeer) {
  Node& node = open(0);
  Fd first = stranger(node);
  say(first, encode(hello_to(node)));
  std::array<std::byte, kAnswerBytes> bytes{};
  ASSERT_TRUE(job_.turn_until([&] {
    return recv(first.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  }));
  EXPECT_EQ(*decode_answer(bytes), Answer::kAccepted);
  EXPECT_EQ(answer_to(node, hello_to(node)), Answer::kDuplicate);
  EXPECT_TRUE(node.sink.losses.empty());
  first.reset();
  loss_of(node, peer_id(77));
  EXPECT_EQ(answer_to(node, hello_to(node)), Answer::kLost);
}

TEST_F(TcpTransportTest, HearsALeavingPeerOutOnItsOtherConnections) {
  TcpTransport::Options patient = options(peer_id(0));
  patient.leaving_deadline = std::chrono::hours(1);
  Node& node = open(patient);
  Hello hello = hello_to(node);
  hello.streams = 2;
  Fd first = stranger(node);
  say(first, encode(hello));
  hello.stream = 1;
  Fd second = stranger(node);
  say(second, encode(hello));
  job_.settle();
  first.reset();
  job_.settle();
  EXPECT_TRUE(node.sink.losses.empty());
  const Frame frame;
  say(second, std::as_bytes(std::span(&frame, 1)));
  EXPECT_TRUE(job_.turn_until([&] { return node.sink.arrivals.size() == 1; }));
  second.reset();
  EXPECT_EQ(loss_of(node, peer_id(77)).code, Code::kPeerLost);
}

TEST_F(TcpTransportTest, GivesUpOnALeavingPeerThatDoesNotLeave) {
  TcpTransport::Options hasty = options(peer_id(0));
  hasty.leaving_deadline = std::chrono::milliseconds(20);
  Node& node = open(hasty);
  Hello hello = hello_to(node);
  hello.streams = 2;
  Fd first = stranger(node);
  say(first, encode(hello));
  hello.stream = 1;
  const Fd second = stranger(node);
  say(second, encode(hello));
  job_.settle();
  first.reset();
  loss_of(node, peer_id(77));
  said_before_closing(second);
}

TEST_F(TcpTransportTest, LosesAProvenPeerThatSendsGarbage) {
  Node& a = open(0);
  Node& b = open(1);
  introduce(a, b);
  const Fd fd = stranger(b);
  say(fd, encode(hello_to(b)));
  say(fd, std::vector<std::byte>(200, std::byte{0x5a}));
  const Error error = loss_of(b, peer_id(77));
  EXPECT_EQ(error.code, Code::kInvalid);
  EXPECT_EQ(error.peer, peer_id(77));
  EXPECT_EQ(b.sink.placed, 0u);
  said_before_closing(fd);
  b.sink.losses.clear();
  expect_healthy(a, b);
}

TEST_F(TcpTransportTest, LosesAProvenPeerThatAnnouncesTooMuch) {
  Node& node = open(0);
  const Fd fd = stranger(node);
  say(fd, encode(hello_to(node)));
  Frame frame;
  frame.payload_bytes = kPayloadBytesMax + 1;
  say(fd, std::as_bytes(std::span(&frame, 1)));
  loss_of(node, peer_id(77));
  EXPECT_EQ(node.sink.placed, 0u) << "refused before anything was allocated";
}

TEST_F(TcpTransportTest, DropsTheSilentAtTheDeadline) {
  TcpTransport::Options quick = options(peer_id(0));
  quick.handshake_deadline = std::chrono::milliseconds(30);
  Node& node = open(quick);
  const Fd silent = stranger(node);
  const Fd slow = stranger(node);
  const std::vector<std::byte> hello = encode(hello_to(node));
  say(slow, std::span(hello).first(10));
  EXPECT_TRUE(said_before_closing(silent).empty());
  EXPECT_TRUE(said_before_closing(slow).empty());
}

TEST_F(TcpTransportTest, ManySilentStrangersDoNotKeepAPeerOut) {
  TcpTransport::Options crowded = options(peer_id(0));
  crowded.strangers_max = 4;
  crowded.handshake_deadline = std::chrono::hours(1);
  Node& node = open(crowded);
  std::vector<Fd> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(stranger(node));
  const size_t before = open_descriptors();
  Node& peer = open(1);
  introduce(peer, node);
  expect_healthy(peer, node);
  // The loop and listener of `peer` are 4, its connection has two ends; the rest are strangers.
  EXPECT_LE(open_descriptors(), before + 4 + 2 + crowded.strangers_max);
}

TEST_F(TcpTransportTest, ADiallerIsToldWhyItIsRefused) {
  TcpTransport::Options other = options(peer_id(0));
  other.token = std::string(kTokenBytesMin, 'u');
  Node& stranger = open(other);
  Node& node = open(1);
  introduce(stranger, node);
  const uint64_t cookie = stranger.send(node.id, payload_of(1, 10));
  const Error error = loss_of(stranger, node.id);
  EXPECT_EQ(error.code, Code::kInvalid);
  EXPECT_EQ(error.peer, node.id);
  EXPECT_TRUE(contains(error.message, "wrong token or job")) << error.message;
  EXPECT_FALSE(contains(error.message, other.token));
  EXPECT_FALSE(stranger.sink.sent_counts.contains(cookie));
  EXPECT_EQ(node.sink.callbacks, 0u);
}

TEST_F(TcpTransportTest, ADiallerIsToldThatItMetAnotherPeer) {
  Node& a = open(0);
  Node& b = open(1);
  a.transport->add_peer(member_of(b, peer_id(5)));
  a.send(peer_id(5), payload_of(1, 10));
  EXPECT_TRUE(contains(loss_of(a, peer_id(5)).message, "another peer has this address"));
}

TEST_F(TcpTransportTest, GivesUpAtTheConnectDeadline) {
  const ReservedPort nobody("127.0.0.1");
  TcpTransport::Options hasty = options(peer_id(0));
  hasty.connect_deadline = std::chrono::milliseconds(500);
  Node& node = open(hasty);
  Member member;
  member.id = peer_id(1);
  member.address = "127.0.0.1";
  member.port = nobody.number();
  node.transport->add_peer(member);
  node.send(peer_id(1), payload_of(1, 10));
  const Error error = loss_of(node, peer_id(1));
  EXPECT_EQ(error.code, Code::kTimeout);
  EXPECT_EQ(error.peer, peer_id(1));
  EXPECT_TRUE(contains(error.message, "refused")) << error.message;
}

TEST_F(TcpTransportTest, GivesUpOnAPeerThatTakesTheConnectionAndSaysNothing) {
  const Result<Fd> deaf = listen_tcp(*parse_address("127.0.0.1", 0));
  TcpTransport::Options hasty = options(peer_id(0));
  hasty.connect_deadline = std::chrono::milliseconds(500);
  Node& node = open(hasty);
  Member member;
  member.id = peer_id(1);
  member.address = "127.0.0.1";
  member.port = local_address(*deaf)->port();
  node.transport->add_peer(member);
  node.send(peer_id(1), payload_of(1, 10));
  const Error error = loss_of(node, peer_id(1));
  EXPECT_EQ(error.code, Code::kTimeout);
  EXPECT_TRUE(contains(error.message, "said nothing")) << error.message;
}

TEST_F(TcpTransportTest, LosesAPeerWithoutAnAddress) {
  Node& node = open(0);
  Member member;
  member.id = peer_id(1);
  member.address = "no address";
  node.transport->add_peer(member);
  node.send(peer_id(1), payload_of(1, 10));
  EXPECT_EQ(loss_of(node, peer_id(1)).code, Code::kInvalid);
}

TEST_F(TcpTransportTest, OneBrokenConnectionOfSeveralLosesThePeer) {
  TcpTransport::Options wide = options(peer_id(0));
  wide.connections = 3;
  Node& a = open(wide);
  wide.self = peer_id(1);
  Node& b = open(wide);
  introduce(a, b);
  introduce(b, a);
  for (uint8_t stream = 0; stream < 3; ++stream) {
    a.send(b.id, payload_of(1, 10), stream);
    b.send(a.id, payload_of(1, 10), stream);
  }
  ASSERT_TRUE(
      job_.turn_until([&] { return a.sink.arrivals.size() == 3 && b.sink.arrivals.size() == 3; }));
  // The network resets one of them: descriptors are found by their peer's port.
  int victim = -1;
  for (int fd = 3; fd < 1024 && victim < 0; ++fd) {
    sockaddr_in remote{};
    socklen_t size = sizeof remote;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &size) == 0 &&
        ntohs(remote.sin_port) == port_of(b))
      victim = fd;
  }
  ASSERT_GE(victim, 0);
  shutdown(victim, SHUT_RDWR);
  loss_of(a, b.id);
  loss_of(b, a.id);
  job_.settle();
  EXPECT_EQ(a.sink.losses[b.id].size(), 1u);
  EXPECT_EQ(b.sink.losses[a.id].size(), 1u);
}

}  // namespace
}  // namespace pliant
