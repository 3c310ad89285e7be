#include "pliant/transport/shm/transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "pliant/transport/testing.h"

namespace pliant {
namespace {

using test::Job;
using test::Node;
using test::open_descriptors;
using test::peer_id;

constexpr size_t kHeapBytes = size_t{1} << 20;

class ShmTransportTest : public testing::Test {
 protected:
  Node& open(int slot) {
    const PeerId self = peer_id(slot);
    segments_[self] = std::move(Segment::create(kHeapBytes, self.slot).value());
    Node& node = job_.add(self);
    const ShmOptions options{
        .self = self, .job = "job", .token = std::string(kTokenBytesMin, 't'), .name = ""};
    node.transport =
        std::move(ShmTransport::open(node.loop, node.sink, *segments_[self], options).value());
    return node;
  }
  static ShmTransport& shm(const Node& node) { return static_cast<ShmTransport&>(*node.transport); }
  void meet(Node& one, Node& other) {
    for (auto [from, to] : {std::pair(&one, &other), std::pair(&other, &one)}) {
      Member member;
      member.id = to->id;
      member.local_name = shm(*to).local_name();
      from->transport->add_peer(member);
    }
    ASSERT_TRUE(job_.turn_until([&] {
      return shm(one).segment_of(other.id) != nullptr && shm(other).segment_of(one.id) != nullptr;
    }));
  }

  std::map<PeerId, std::unique_ptr<Segment>> segments_;  // outlive the transports
  Job job_;
};

TEST_F(ShmTransportTest, MemoryOutlivesItsPeerUntilItIsDropped) {
  Node& here = open(0);
  Node& other = open(1);
  meet(here, other);
  const PeerId dead = other.id;
  auto& memory = *segments_[dead];
  const auto given = memory.allocate(64);
  ASSERT_TRUE(given.ok());
  (*given)[5] = std::byte{7};
  const uint64_t offset = memory.offset_of(given->data());
  const std::byte* seen = shm(here).segment_of(dead)->at(offset);
  EXPECT_EQ(shm(here).owner_of(seen, 64), dead);
  EXPECT_EQ(shm(here).owner_of(given->data(), 64), std::nullopt) << "mapped by its owner only";

  job_.remove(other);
  segments_.erase(dead);
  ASSERT_TRUE(job_.turn_until([&] { return here.sink.has_lost(dead); }));
  EXPECT_EQ(seen[5], std::byte{7});
  shm(here).drop_lost({&dead, 1});
  EXPECT_EQ(seen[5], std::byte{7}) << "it was to be kept";
  const size_t descriptors = open_descriptors();
  shm(here).drop_lost({});
  EXPECT_EQ(shm(here).segment_of(dead), nullptr);
  EXPECT_EQ(shm(here).owner_of(seen, 64), std::nullopt);
  ASSERT_TRUE(job_.turn_until([&] { return open_descriptors() == descriptors - 1; }));
  job_.settle();  // nothing refers to it any more
}

TEST_F(ShmTransportTest, AnswersOtherThreadsWhilePeersComeAndGo) {
  Node& here = open(0);
  Node& other = open(1);
  meet(here, other);
  const PeerId stays = other.id;
  std::atomic<uint32_t>& asleep = segments_.at(stays)->header().asleep;
  // As an operation in shared memory does, which runs without the loop.
  std::atomic<bool> over = false;
  std::atomic<size_t> asked = 0;
  std::thread asker([&] {
    for (; !over; ++asked) {
      EXPECT_NE(shm(here).segment_of(stays), nullptr);
      asleep.store(kWakeForMessages);
      shm(here).wake(stays);
      shm(here).wake(peer_id(static_cast<int>(2 + asked % 8)));
    }
  });
  for (int slot = 2; slot < 10; ++slot) {
    Node& guest = open(slot);
    const PeerId id = guest.id;
    meet(here, guest);
    job_.remove(guest);
    ASSERT_TRUE(job_.turn_until([&] { return here.sink.has_lost(id); }));
    if (slot % 2 == 0) shm(here).drop_lost({});
  }
  while (asked < 100) std::this_thread::yield();
  over = true;
  asker.join();
  job_.settle();
}

TEST_F(ShmTransportTest, DropsNobodyWhoLives) {
  Node& here = open(0);
  Node& other = open(1);
  meet(here, other);
  shm(here).drop_lost({});
  EXPECT_NE(shm(here).segment_of(other.id), nullptr);
  here.send(other.id, test::payload_of(1, 100));
  EXPECT_TRUE(job_.turn_until([&] { return other.sink.arrivals.size() == 1; }));
}

TEST_F(ShmTransportTest, ADroppedPeerThatIsStillDialledIsForgotten) {
  Node& here = open(1);
  Member nobody;
  nobody.id = peer_id(0);
  nobody.local_name = "pliant-nobody-listens-here";
  here.transport->add_peer(nobody);
  here.send(peer_id(2), test::payload_of(2, 10));  // not known: lost at the next turn
  ASSERT_TRUE(job_.turn_until([&] { return here.sink.has_lost(peer_id(2)); }));
  shm(here).drop_lost({});
  job_.settle();
  EXPECT_FALSE(shm(here).linked(peer_id(2)));
}

}  // namespace
}  // namespace pliant
