// What every transport promises, tried on each of them. To register a further one, write a kind
// (how its transports are opened, how its peers are reached) and add it to `Kinds`.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pliant/transport/fake.h"
#include "pliant/transport/shm/transport.h"
#include "pliant/transport/tcp/transport.h"
#include "pliant/transport/testing.h"

namespace pliant::test {
namespace {

template <FakeNetwork::Taking kTaking>
class FakeKind {
 public:
  std::unique_ptr<Transport> open(Loop&, Sink& sink, PeerId self) {
    return network_.open(self, sink);
  }
  Member member(PeerId id) {
    return {.id = id, .pid = 0, .host = "", .address = "", .port = 0, .local_name = ""};
  }

 private:
  FakeNetwork network_{kTaking};
};
using FakeTakesLate = FakeKind<FakeNetwork::Taking::kOnArrival>;
using FakeTakesEarly = FakeKind<FakeNetwork::Taking::kInSend>;

template <bool kIpv6, size_t kConnections>
class TcpKind {
 public:
  std::unique_ptr<Transport> open(Loop& loop, Sink& sink, PeerId self) {
    Result<std::unique_ptr<TcpTransport>> opened =
        TcpTransport::open(loop, sink,
                           {.self = self,
                            .job = "contract",
                            .token = std::string(kTokenBytesMin, 't'),
                            .connections = kConnections,
                            .address = kHost,
                            .port = port(self)});
    return std::move(opened.value());
  }
  Member member(PeerId id) {
    return {.id = id, .pid = 0, .host = "", .address = kHost, .port = port(id), .local_name = ""};
  }

 private:
  static constexpr const char* kHost = kIpv6 ? "::1" : "127.0.0.1";
  uint16_t port(PeerId id) { return ports_.try_emplace(id, kHost).first->second.number(); }
  std::map<PeerId, ReservedPort> ports_;
};
using TcpIpv4 = TcpKind<false, 1>;
using TcpIpv6 = TcpKind<true, 3>;

class ShmKind {
 public:
  std::unique_ptr<Transport> open(Loop& loop, Sink& sink, PeerId self) {
    segments_.push_back(std::move(Segment::create(size_t{1} << 20).value()));
    auto opened = ShmTransport::open(loop, sink, *segments_.back(),
                                     {.self = self,
                                      .job = "contract",
                                      .token = std::string(kTokenBytesMin, 't'),
                                      .epoch = Epoch{1},
                                      .name = member(self).local_name});
    return std::move(opened.value());
  }
  Member member(PeerId id) {
    return {.id = id,
            .pid = 0,
            .host = "",
            .address = "",
            .port = 0,
            .local_name = "pliant-contract-" + std::to_string(getpid()) + "-" + to_string(id)};
  }

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
};

using Kinds = testing::Types<FakeTakesLate, FakeTakesEarly, TcpIpv4, TcpIpv6, ShmKind>;

struct KindNames {
  template <typename Kind>
  static std::string GetName(int) {
    if (std::is_same_v<Kind, FakeTakesLate>) return "FakeTakesLate";
    if (std::is_same_v<Kind, FakeTakesEarly>) return "FakeTakesEarly";
    if (std::is_same_v<Kind, TcpIpv4>) return "TcpIpv4";
    if (std::is_same_v<Kind, TcpIpv6>) return "TcpIpv6";
    if (std::is_same_v<Kind, ShmKind>) return "Shm";
    return "Unnamed";
  }
};

template <typename Kind>
class TransportContract : public testing::Test {
 protected:
  // A peer that knows nobody yet.
  Node& open(int slot) {
    Node& node = job_.add(peer_id(slot));
    node.transport = kind_.open(node.loop, node.sink, node.id);
    return node;
  }
  // Peers 0..count-1, each of which knows all others.
  std::vector<Node*> open_all(int count) {
    std::vector<Node*> nodes;
    for (int slot = 0; slot < count; ++slot) nodes.push_back(&open(slot));
    for (Node* node : nodes) {
      for (Node* other : nodes) {
        if (other != node) introduce(*node, other->id);
      }
    }
    return nodes;
  }
  void introduce(Node& node, PeerId other) { node.transport->add_peer(kind_.member(other)); }

  // Every node greets every other on every stream, so that all links are open.
  void greet(const std::vector<Node*>& nodes) {
    constexpr uint8_t kStreams = 3;
    for (Node* node : nodes) {
      for (Node* other : nodes) {
        if (other == node) continue;
        for (uint8_t stream = 0; stream < kStreams; ++stream)
          node->send(other->id, payload_of(1, 100), stream);
      }
    }
    ASSERT_TRUE(job_.turn_until([&] {
      return std::all_of(nodes.begin(), nodes.end(), [&](const Node* node) {
        return node->sink.arrivals.size() == kStreams * (nodes.size() - 1) && node->all_sent();
      });
    }));
    for (Node* node : nodes) node->sink.arrivals.clear();
  }

  Kind kind_;
  Job job_;
};

TYPED_TEST_SUITE(TransportContract, Kinds, KindNames);

TYPED_TEST(TransportContract, DeliversPayloadsOfEverySize) {
  const auto nodes = this->open_all(2);
  const std::vector<size_t> sizes = {0, 1, 63, 64, 65, 0, 64 << 10, (1 << 20) + 3, 20 << 20, 1, 0};
  for (size_t i = 0; i < sizes.size(); ++i)
    nodes[0]->send(nodes[1]->id, payload_of(i, sizes[i]), 0, i);
  Recorder& sink = nodes[1]->sink;
  ASSERT_TRUE(this->job_.turn_until(
      [&] { return sink.arrivals.size() == sizes.size() && nodes[0]->all_sent(); }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(sink.arrivals[i].from, nodes[0]->id);
    EXPECT_EQ(sink.arrivals[i].frame.key, i);
    EXPECT_TRUE(sink.arrivals[i].payload == payload_of(i, sizes[i])) << sizes[i] << " bytes";
  }
  EXPECT_TRUE(sink.losses.empty());
}

TYPED_TEST(TransportContract, CarriesTheWholeFrame) {
  const auto nodes = this->open_all(2);
  Frame frame;
  frame.type = 1;
  frame.collective = 2;
  frame.dtype = 3;
  frame.op = 4;
  frame.phase = 5;
  frame.stream = 255;
  frame.epoch = 0xfedcba98;
  frame.sequence = 7;
  frame.key = 0x0123456789abcdef;
  frame.count = uint64_t{1} << 40;
  frame.lane = 8;
  frame.root = -1;
  frame.shape = 9;
  nodes[0]->transport->send(nodes[1]->id, frame, {}, 1);
  ASSERT_TRUE(this->job_.turn_until([&] { return !nodes[1]->sink.arrivals.empty(); }));
  EXPECT_EQ(nodes[1]->sink.arrivals[0].frame, frame);
}

TYPED_TEST(TransportContract, KeepsTheOrderOfEachStream) {
  constexpr uint64_t kStreams = 5;
  constexpr uint64_t kMessages = 400;
  const auto nodes = this->open_all(2);
  std::mt19937_64 prng(1);
  for (uint64_t i = 0; i < kMessages; ++i) {
    for (uint64_t stream = 0; stream < kStreams; ++stream)
      nodes[0]->send(nodes[1]->id, payload_of(i, prng() % 3000), static_cast<uint8_t>(stream), i);
    if (i % 50 == 0) this->job_.turn();
  }
  Recorder& sink = nodes[1]->sink;
  ASSERT_TRUE(this->job_.turn_until(
      [&] { return sink.arrivals.size() == kStreams * kMessages && nodes[0]->all_sent(); }));
  std::map<uint8_t, uint64_t> next;
  for (const Recorder::Arrival& arrival : sink.arrivals) {
    EXPECT_EQ(arrival.frame.key, next[arrival.frame.stream]++);
    ASSERT_TRUE(arrival.payload == payload_of(arrival.frame.key, arrival.payload.size()));
  }
}

TYPED_TEST(TransportContract, FivePeersAllToAll) {
  constexpr int kPeers = 5;
  constexpr uint64_t kRounds = 30;
  const auto nodes = this->open_all(kPeers);
  std::mt19937_64 prng(2);
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (Node* node : nodes) {
      for (Node* other : nodes) {
        if (other == node) continue;
        const uint64_t seed = prng();
        const size_t size = prng() % (prng() % 8 == 0 ? 300'000 : 2'000);
        node->send(other->id, payload_of(seed, size), static_cast<uint8_t>(round % 4), seed);
      }
    }
    this->job_.turn();
  }
  ASSERT_TRUE(this->job_.turn_until([&] {
    return std::all_of(nodes.begin(), nodes.end(), [&](const Node* node) {
      return node->sink.arrivals.size() == kRounds * (kPeers - 1) && node->all_sent();
    });
  }));
  for (const Node* node : nodes) {
    std::map<PeerId, uint64_t> heard;
    for (const Recorder::Arrival& arrival : node->sink.arrivals) {
      ++heard[arrival.from];
      EXPECT_TRUE(arrival.payload == payload_of(arrival.frame.key, arrival.payload.size()));
    }
    EXPECT_EQ(heard.size(), nodes.size() - 1);
    for (const auto& [from, count] : heard) EXPECT_EQ(count, kRounds) << to_string(from);
    EXPECT_TRUE(node->sink.losses.empty());
  }
}

TYPED_TEST(TransportContract, ReportsEachSendOnce) {
  const auto nodes = this->open_all(2);
  for (uint64_t i = 0; i < 2000; ++i)
    nodes[0]->send(nodes[1]->id, payload_of(i, i % 700), static_cast<uint8_t>(i % 3));
  nodes[0]->send(nodes[1]->id, payload_of(0, 5 << 20));
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[0]->all_sent(); }));
  this->job_.settle();
  EXPECT_EQ(nodes[0]->sink.sent_counts.size(), 2001u);
  for (const auto& [cookie, count] : nodes[0]->sink.sent_counts) EXPECT_EQ(count, 1) << cookie;
}

TYPED_TEST(TransportContract, WaitsForAPeerThatIsNotThereYet) {
  Node& early = this->open(0);
  this->introduce(early, peer_id(1));
  early.send(peer_id(1), payload_of(1, 1000), 0, 1);
  early.send(peer_id(1), payload_of(2, 1 << 20), 1, 2);
  this->job_.settle();
  Node& late = this->open(1);
  ASSERT_TRUE(
      this->job_.turn_until([&] { return late.sink.arrivals.size() == 2 && early.all_sent(); }));
  EXPECT_TRUE(early.sink.losses.empty());
}

TYPED_TEST(TransportContract, HearsAPeerThatWasNeverAdded) {
  Node& known = this->open(0);
  Node& unknown = this->open(1);
  this->introduce(unknown, known.id);
  unknown.send(known.id, payload_of(1, 5000), 0, 1);
  ASSERT_TRUE(this->job_.turn_until([&] { return known.sink.arrivals.size() == 1; }));
  EXPECT_EQ(known.sink.arrivals[0].from, unknown.id);
  // Introduced afterwards, it can be answered.
  this->introduce(known, unknown.id);
  known.send(unknown.id, payload_of(2, 5000), 0, 2);
  ASSERT_TRUE(this->job_.turn_until([&] { return unknown.sink.arrivals.size() == 1; }));
}

TYPED_TEST(TransportContract, LosesAPeerThatWasNeverAddedButSentTo) {
  Node& node = this->open(0);
  node.send(peer_id(9), payload_of(1, 10));
  node.send(peer_id(9), payload_of(1, 10));
  ASSERT_TRUE(this->job_.turn_until([&] { return node.sink.has_lost(peer_id(9)); }));
  this->job_.settle();
  ASSERT_EQ(node.sink.losses[peer_id(9)].size(), 1u);
  EXPECT_EQ(node.sink.losses[peer_id(9)][0].peer, peer_id(9));
  EXPECT_TRUE(node.sink.sent_counts.empty());
}

TYPED_TEST(TransportContract, LosesADestroyedPeerOnceAndByName) {
  const auto nodes = this->open_all(3);
  this->greet(nodes);
  const PeerId gone = nodes[1]->id;
  this->job_.remove(*nodes[1]);
  for (Node* node : {nodes[0], nodes[2]}) {
    ASSERT_TRUE(this->job_.turn_until([&] { return node->sink.has_lost(gone); }));
    const Error& error = node->sink.losses[gone][0];
    EXPECT_EQ(error.code, Code::kPeerLost);
    EXPECT_EQ(error.peer, gone);
    EXPECT_NE(error.message.find(to_string(gone)), std::string::npos) << error.message;
  }
  // The others go on, and a loss is told once, also when more is sent to the lost peer.
  const uint64_t cookie = nodes[0]->send(gone, payload_of(3, 100));
  nodes[0]->send(nodes[2]->id, payload_of(4, 100'000));
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[2]->sink.arrivals.size() == 1; }));
  this->job_.settle();
  EXPECT_FALSE(nodes[0]->sink.sent_counts.contains(cookie));
  for (Node* node : {nodes[0], nodes[2]}) {
    EXPECT_EQ(node->sink.losses.size(), 1u);
    EXPECT_EQ(node->sink.losses[gone].size(), 1u);
  }
}

TYPED_TEST(TransportContract, IsLinkedToThePeersItSentTo) {
  const auto nodes = this->open_all(2);
  // Shared memory connects peers before the first message; the others then.
  constexpr bool kConnectsEarly = std::is_same_v<TypeParam, ShmKind>;
  EXPECT_TRUE(kConnectsEarly || !nodes[0]->transport->linked(nodes[1]->id));
  EXPECT_FALSE(nodes[0]->transport->linked(peer_id(9)));
  nodes[0]->send(nodes[1]->id, payload_of(1, 10));
  EXPECT_TRUE(nodes[0]->transport->linked(nodes[1]->id));
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[1]->sink.arrivals.size() == 1; }));
  EXPECT_TRUE(nodes[0]->transport->linked(nodes[1]->id));
  EXPECT_EQ(nodes[1]->transport->linked(nodes[0]->id), kConnectsEarly) << "it only heard it";
  const PeerId gone = nodes[1]->id;
  this->job_.remove(*nodes[1]);
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[0]->sink.has_lost(gone); }));
  EXPECT_FALSE(nodes[0]->transport->linked(gone));
}

TYPED_TEST(TransportContract, NoticesTheLossOfAPeerItOnlyHears) {
  const auto nodes = this->open_all(2);
  nodes[1]->send(nodes[0]->id, payload_of(1, 10));
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[0]->sink.arrivals.size() == 1; }));
  const PeerId gone = nodes[1]->id;
  this->job_.remove(*nodes[1]);
  EXPECT_TRUE(this->job_.turn_until([&] { return nodes[0]->sink.has_lost(gone); }));
}

TYPED_TEST(TransportContract, NoticesTheLossOfAPeerItOnlyTalksTo) {
  const auto nodes = this->open_all(2);
  nodes[0]->send(nodes[1]->id, payload_of(1, 10));
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[1]->sink.arrivals.size() == 1; }));
  const PeerId gone = nodes[1]->id;
  this->job_.remove(*nodes[1]);
  EXPECT_TRUE(this->job_.turn_until([&] { return nodes[0]->sink.has_lost(gone); }));
}

TYPED_TEST(TransportContract, DeliversTheLastWordsOfALeavingPeer) {
  const auto nodes = this->open_all(2);
  this->greet(nodes);
  constexpr uint64_t kMessages = 40;
  Node& leaving = *nodes[1];
  for (uint64_t i = 0; i < kMessages; ++i)
    leaving.send(nodes[0]->id, payload_of(i, 1000), static_cast<uint8_t>(i % 4), i);
  ASSERT_TRUE(this->job_.turn_until([&] { return leaving.all_sent(); }));
  const PeerId gone = leaving.id;
  this->job_.remove(leaving);
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[0]->sink.has_lost(gone); }));
  EXPECT_EQ(nodes[0]->sink.arrivals.size(), kMessages);
}

TYPED_TEST(TransportContract, LosesAPeerThatEndsInTheMiddleOfAMessage) {
  const auto nodes = this->open_all(2);
  this->greet(nodes);
  const PeerId gone = nodes[1]->id;
  nodes[1]->send(nodes[0]->id, payload_of(1, 20 << 20));
  for (int i = 0; i < 3; ++i) nodes[1]->turn();
  this->job_.remove(*nodes[1]);
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[0]->sink.has_lost(gone); }));
  this->job_.settle();
  EXPECT_EQ(nodes[0]->sink.losses[gone].size(), 1u);
  for (const Recorder::Arrival& arrival : nodes[0]->sink.arrivals)
    EXPECT_TRUE(arrival.payload == payload_of(1, 20 << 20));
}

TYPED_TEST(TransportContract, ARefusedMessageCostsTheSenderItsLink) {
  const auto nodes = this->open_all(3);
  this->greet(nodes);
  nodes[0]->sink.refuse = [](const Frame& frame) -> std::optional<Error> {
    if (frame.key != 13) return {};
    return Error{Code::kInvalid, "13 is refused", {}, {}};
  };
  nodes[1]->send(nodes[0]->id, payload_of(1, 100'000), 0, 13);
  nodes[1]->send(nodes[0]->id, payload_of(1, 100), 0, 14);
  // Other streams may be ahead of the refusal; nothing of them comes behind it.
  for (int i = 0; i < 50; ++i) nodes[1]->send(nodes[0]->id, payload_of(1, 200'000), 1, 15);
  ASSERT_TRUE(this->job_.turn_until([&] {
    return nodes[0]->sink.has_lost(nodes[1]->id) && nodes[1]->sink.has_lost(nodes[0]->id);
  }));
  const Error& error = nodes[0]->sink.losses[nodes[1]->id][0];
  EXPECT_EQ(error.code, Code::kInvalid);
  EXPECT_EQ(error.message, "13 is refused");
  EXPECT_EQ(error.peer, nodes[1]->id);
  for (const Recorder::Arrival& arrival : nodes[0]->sink.arrivals)
    EXPECT_EQ(arrival.frame.key, 15u);
  nodes[0]->sink.arrivals.clear();
  // The third is none the worse.
  nodes[2]->send(nodes[0]->id, payload_of(2, 1000));
  nodes[2]->send(nodes[1]->id, payload_of(2, 1000));
  ASSERT_TRUE(this->job_.turn_until(
      [&] { return nodes[0]->sink.arrivals.size() == 1 && nodes[1]->sink.arrivals.size() == 1; }));
  this->job_.settle();
  EXPECT_EQ(nodes[0]->sink.losses.size(), 1u);
  EXPECT_EQ(nodes[0]->sink.losses[nodes[1]->id].size(), 1u);
  EXPECT_TRUE(nodes[2]->sink.losses.empty());
}

TYPED_TEST(TransportContract, ArrivalsMayBeAnsweredAtOnce) {
  constexpr uint64_t kRounds = 1000;
  const auto nodes = this->open_all(2);
  for (Node* node : nodes) {
    node->sink.on_arrived = [node](PeerId from, const Frame& frame) {
      if (frame.key < kRounds) node->send(from, payload_of(frame.key, 200), 0, frame.key + 1);
    };
  }
  nodes[0]->send(nodes[1]->id, payload_of(0, 200), 0, 1);
  ASSERT_TRUE(this->job_.turn_until(
      [&] { return nodes[0]->sink.arrivals.size() + nodes[1]->sink.arrivals.size() == kRounds; }));
}

TYPED_TEST(TransportContract, ASendMayFollowEachSentWithoutRecursion) {
  constexpr uint64_t kMessages = 50'000;
  const auto nodes = this->open_all(2);
  Node& sender = *nodes[0];
  uint64_t depth = 0;
  uint64_t depth_max = 0;
  sender.sink.on_sent = [&](uint64_t cookie) {
    depth_max = std::max(depth_max, ++depth);
    if (cookie < kMessages) sender.transport->send(nodes[1]->id, Frame{}, {}, cookie + 1);
    --depth;
  };
  sender.transport->send(nodes[1]->id, Frame{}, {}, 1);
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[1]->sink.arrivals.size() == kMessages; }));
  EXPECT_EQ(depth_max, 1u);
}

TYPED_TEST(TransportContract, CopiesWhatIsToBeSentFromForgottenMemory) {
  const auto nodes = this->open_all(2);
  Node& sender = *nodes[0];
  constexpr size_t kSize = 6 << 20;
  for (uint64_t i = 0; i < 3; ++i) sender.send(nodes[1]->id, payload_of(i, kSize), 0, i);
  nodes[0]->turn();
  sender.transport->forget(sender.outbox[0]);
  sender.transport->forget(std::span(sender.outbox[1]).subspan(10, 1));
  for (size_t i = 0; i < 2; ++i)
    std::fill(sender.outbox[i].begin(), sender.outbox[i].end(), std::byte{0});
  ASSERT_TRUE(this->job_.turn_until(
      [&] { return nodes[1]->sink.arrivals.size() == 3 && sender.all_sent(); }));
  for (uint64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(nodes[1]->sink.arrivals[i].payload == payload_of(i, kSize));
}

TYPED_TEST(TransportContract, WastesWhatWouldArriveInForgottenMemory) {
  const auto nodes = this->open_all(2);
  Node& receiver = *nodes[1];
  constexpr size_t kSize = 20 << 20;
  nodes[0]->send(receiver.id, payload_of(1, kSize), 0, 1);
  ASSERT_TRUE(this->job_.turn_until([&] { return receiver.sink.placed == 1; }));
  nodes[0]->send(receiver.id, payload_of(2, 1000), 0, 2);
  // Some transports move a message as a whole; the others are in the middle of it.
  const size_t whole = receiver.sink.arrivals.size();
  std::byte* const room = whole == 0 ? receiver.sink.room() : nullptr;
  if (whole == 0) {
    receiver.transport->forget({room, kSize});
    std::fill(room, room + kSize, std::byte{7});
  }
  ASSERT_TRUE(this->job_.turn_until([&] { return receiver.sink.arrivals.size() > whole; }));
  EXPECT_EQ(receiver.sink.arrivals.back().frame.key, 2u);
  EXPECT_TRUE(receiver.sink.arrivals.back().payload == payload_of(2, 1000));
  const bool untouched = whole != 0 || std::count(room, room + kSize, std::byte{7}) == kSize;
  EXPECT_TRUE(untouched) << "forgotten memory was written to";
  EXPECT_TRUE(receiver.sink.losses.empty());
}

TYPED_TEST(TransportContract, IsSilentOnceDestroyed) {
  const auto nodes = this->open_all(2);
  this->greet(nodes);
  Node& node = *nodes[0];
  for (int i = 0; i < 10; ++i) {
    node.send(nodes[1]->id, payload_of(1, 4 << 20));
    nodes[1]->send(node.id, payload_of(1, 4 << 20));
  }
  this->job_.turn();
  const uint64_t before = node.sink.callbacks;
  node.transport.reset();
  EXPECT_EQ(node.sink.callbacks, before) << "the destructor calls nobody";
  // Its memory may be changed now: nobody reads it any more.
  node.outbox.clear();
  ASSERT_TRUE(this->job_.turn_until([&] { return nodes[1]->sink.has_lost(node.id); }));
  this->job_.settle();
  EXPECT_EQ(node.sink.callbacks, before);
}

TYPED_TEST(TransportContract, IsSilentWhenDestroyedBeforeAnybodyAnswered) {
  Node& node = this->open(0);
  this->introduce(node, peer_id(1));
  node.send(peer_id(1), payload_of(1, 1000));
  this->job_.settle();
  node.transport.reset();
  node.outbox.clear();
  this->job_.settle();
  EXPECT_EQ(node.sink.callbacks, node.sink.sent_counts.size());
  EXPECT_TRUE(node.sink.losses.empty());
}

TYPED_TEST(TransportContract, LeavesNoDescriptorBehind) {
  const size_t before = open_descriptors();
  {
    TypeParam kind;
    Job job;
    std::vector<Node*> nodes;
    for (int slot = 0; slot < 4; ++slot) {
      Node& node = job.add(peer_id(slot));
      node.transport = kind.open(node.loop, node.sink, node.id);
      nodes.push_back(&node);
    }
    for (Node* node : nodes) {
      for (Node* other : nodes) {
        if (other == node) continue;
        node->transport->add_peer(kind.member(other->id));
        for (uint8_t stream = 0; stream < 3; ++stream)
          node->send(other->id, payload_of(1, 10'000), stream);
      }
    }
    ASSERT_TRUE(job.turn_until([&] {
      return std::all_of(nodes.begin(), nodes.end(),
                         [](const Node* node) { return node->sink.arrivals.size() == 9; });
    }));
    EXPECT_GE(open_descriptors(), before);
    job.remove(*nodes[3]);
    ASSERT_TRUE(job.turn_until([&] { return nodes[0]->sink.has_lost(peer_id(3)); }));
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace pliant::test
