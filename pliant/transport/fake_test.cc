#include "pliant/transport/fake.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pliant/transport/testing.h"

namespace pliant {
namespace {

using test::Job;
using test::Node;
using test::payload_of;
using test::peer_id;

class FakeNetworkTest : public testing::Test {
 protected:
  Node& open(int slot, int peers = 3) {
    Node& node = job_.add(peer_id(slot));
    node.transport = network_.open(node.id, node.sink);
    for (int other = 0; other < peers; ++other) {
      Member member;
      member.id = peer_id(other);
      node.transport->add_peer(member);
    }
    return node;
  }
  std::vector<uint64_t> keys(const Node& node) {
    std::vector<uint64_t> keys;
    for (const auto& arrival : node.sink.arrivals) keys.push_back(arrival.frame.key);
    return keys;
  }

  FakeNetwork network_;
  Job job_;
};

TEST_F(FakeNetworkTest, HoldsOneDirectionOfOneLink) {
  Node& a = open(0);
  Node& b = open(1);
  Node& c = open(2);
  network_.hold(a.id, b.id);
  a.send(b.id, payload_of(1, 10), 0, 1);
  b.send(a.id, payload_of(1, 10), 0, 2);
  c.send(b.id, payload_of(1, 10), 0, 3);
  job_.settle();
  EXPECT_EQ(keys(a), std::vector<uint64_t>{2});
  EXPECT_EQ(keys(b), std::vector<uint64_t>{3});
  EXPECT_EQ(network_.in_flight(), 1u);
  EXPECT_FALSE(a.all_sent());
  network_.release(a.id, b.id);
  job_.settle();
  EXPECT_EQ(keys(b), (std::vector<uint64_t>{3, 1}));
  EXPECT_TRUE(a.all_sent());
}

TEST_F(FakeNetworkTest, ADroppedPeerIsSilentAndLost) {
  Node& a = open(0);
  Node& b = open(1);
  Node& c = open(2);
  a.send(b.id, payload_of(1, 10));
  b.send(a.id, payload_of(1, 10), 0, 1);
  job_.settle();
  const uint64_t before = b.sink.callbacks;
  b.send(a.id, payload_of(1, 10), 0, 2);  // under way when it is killed
  network_.drop(b.id);
  b.send(a.id, payload_of(1, 10), 0, 3);
  a.send(b.id, payload_of(1, 10));
  job_.settle();
  EXPECT_EQ(keys(a), std::vector<uint64_t>{1});
  EXPECT_EQ(a.sink.losses[b.id].size(), 1u);
  EXPECT_EQ(b.sink.callbacks, before);
  EXPECT_TRUE(c.sink.losses.empty()) << "it never spoke with it";
  // It learns so when it tries.
  c.send(b.id, payload_of(1, 10));
  job_.settle();
  EXPECT_EQ(c.sink.losses[b.id].size(), 1u);
}

TEST_F(FakeNetworkTest, AHeldLossWaitsBehindTheMessages) {
  Node& a = open(0);
  Node& b = open(1);
  a.send(b.id, payload_of(1, 10), 0, 1);
  job_.settle();
  network_.hold(b.id, a.id);
  b.send(a.id, payload_of(1, 10), 0, 2);
  // Its payload must outlive it to be delivered: the network takes it when it is forgotten.
  b.transport->forget(b.outbox.back());
  job_.settle();
  EXPECT_TRUE(a.sink.losses.empty());
  network_.release(b.id, a.id);
  job_.settle();
  EXPECT_EQ(keys(a), std::vector<uint64_t>{2});
}

TEST_F(FakeNetworkTest, ReordersStreamsButNotMessagesOfOne) {
  const auto run = [](uint64_t seed) {
    FakeNetwork network;
    Job job;
    Node& a = job.add(peer_id(0));
    Node& b = job.add(peer_id(1));
    for (Node* node : {&a, &b}) node->transport = network.open(node->id, node->sink);
    Member member;
    member.id = b.id;
    a.transport->add_peer(member);
    network.reorder(seed);
    for (uint64_t i = 0; i < 60; ++i) a.send(b.id, {}, static_cast<uint8_t>(i % 3), i);
    job.settle();
    std::vector<uint64_t> order;
    for (const auto& arrival : b.sink.arrivals) order.push_back(arrival.frame.key);
    return order;
  };
  const std::vector<uint64_t> order = run(1);
  ASSERT_EQ(order.size(), 60u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  for (uint64_t stream = 0; stream < 3; ++stream) {
    std::vector<uint64_t> of_stream;
    std::copy_if(order.begin(), order.end(), std::back_inserter(of_stream),
                 [&](uint64_t key) { return key % 3 == stream; });
    EXPECT_TRUE(std::is_sorted(of_stream.begin(), of_stream.end()));
  }
  EXPECT_EQ(order, run(1)) << "the seed decides";
  EXPECT_NE(order, run(2));
}

}  // namespace
}  // namespace pliant
