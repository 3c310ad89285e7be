#include "pliant/runtime/peer_store.h"

#include <gtest/gtest.h>

#include <optional>

#include "pliant/transport/fake.h"
#include "pliant/transport/testing.h"

namespace pliant {
namespace {

using test::payload_of;
using test::peer_id;

constexpr size_t kWindow = 2;

// Stands between a network and a store, which needs the transport that needs it.
class Relay final : public Sink {
 public:
  Result<std::byte*> place(PeerId from, const Frame& frame) override {
    return store->place(from, frame);
  }
  void arrived(PeerId from, const Frame& frame, std::byte* payload) override {
    store->arrived(from, frame, payload);
  }
  void sent(uint64_t cookie) override { store->sent(cookie); }
  void lost(PeerId peer, const Error& error) override { store->lost(peer, error); }

  PeerStore* store = nullptr;
};

struct Side {
  explicit Side(FakeNetwork& network, PeerId self) : transport(network.open(self, relay)) {
    relay.store = &store;
    for (int slot = 0; slot < 2; ++slot) {
      Member member;
      member.id = peer_id(slot);
      transport->add_peer(member);
    }
  }
  Relay relay;
  std::unique_ptr<Transport> transport;
  PeerStore store{*transport, Epoch{1}};
};

class PeerStoreTest : public testing::Test {
 protected:
  // Runs once the answer is there.
  void ask(uint64_t version = PeerStore::kNewest) {
    answer_.reset();
    (void)asker_.store.request(peer_id(1), "model", version, [this](Result<StoredValue> answer) {
      EXPECT_FALSE(answer_) << "an answer comes once";
      answer_.emplace(std::move(answer));
    });
  }
  void settle() {
    while (asker_.transport->poll() || owner_.transport->poll()) {
    }
  }
  Status save(uint64_t version, uint64_t seed, size_t bytes = 1000) {
    return owner_.store.save("model", version, payload_of(seed, bytes), kWindow);
  }

  FakeNetwork network_;
  Side asker_{network_, peer_id(0)};
  Side owner_{network_, peer_id(1)};
  std::optional<Result<StoredValue>> answer_;
};

TEST_F(PeerStoreTest, TheAnswerTellsItsVersion) {
  ASSERT_TRUE(save(7, 1).ok());
  ASSERT_TRUE(save(9, 2).ok());
  ask();
  settle();
  ASSERT_TRUE(answer_ && answer_->ok());
  EXPECT_EQ((*answer_)->version, 9u);
  EXPECT_EQ((*answer_)->bytes, payload_of(2, 1000));
  ask(7);
  settle();
  ASSERT_TRUE(answer_ && answer_->ok());
  EXPECT_EQ((*answer_)->version, 7u);
  ASSERT_TRUE(save(10, 3).ok());
  ask(7);
  settle();
  ASSERT_TRUE(answer_ && !answer_->ok());
  EXPECT_EQ((*answer_).error().message, "holds versions 9 to 10 of 'model', not 7");
}

TEST_F(PeerStoreTest, AValueOnItsWayIsNotChangedByLaterOnes) {
  ASSERT_TRUE(save(1, 1).ok());
  network_.hold(peer_id(1), peer_id(0));
  ask();
  settle();
  for (uint64_t version = 2; version < 9; ++version) {
    // What is lent for the next value is never the one that is being sent.
    PeerStore::Value memory = owner_.store.spare("model", 1000, kWindow);
    std::fill(memory.begin(), memory.end(), std::byte{0xee});
    ASSERT_TRUE(save(version, version).ok());
  }
  network_.release(peer_id(1), peer_id(0));
  settle();
  ASSERT_TRUE(answer_ && answer_->ok());
  EXPECT_EQ((*answer_)->bytes, payload_of(1, 1000));
}

TEST_F(PeerStoreTest, MemoryIsUsedAgainOnceItsVersionLeavesTheWindow) {
  EXPECT_TRUE(owner_.store.spare("model", 1000, kWindow).empty());
  ASSERT_TRUE(save(1, 1).ok());
  EXPECT_TRUE(owner_.store.spare("model", 1000, kWindow).empty()) << "the newest stays";
  ASSERT_TRUE(save(2, 2).ok());
  EXPECT_TRUE(owner_.store.spare("model", 999, kWindow).empty()) << "of another size";
  EXPECT_EQ(owner_.store.spare("model", 1000, kWindow), payload_of(1, 1000));
  EXPECT_FALSE(owner_.store.get("model", 1).ok());
  EXPECT_TRUE(owner_.store.get("model", 2).ok());
}

TEST_F(PeerStoreTest, ALostPeerEndsARequestAtOnce) {
  ask();
  network_.drop(peer_id(1));
  settle();
  ASSERT_TRUE(answer_ && !answer_->ok());
  EXPECT_EQ(answer_->code(), Code::kPeerLost);
  ask();
  ASSERT_TRUE(answer_ && !answer_->ok()) << "later ones too, without a message";
}

TEST_F(PeerStoreTest, SoDoesOneThatIsSilentAndLetGo) {
  ASSERT_TRUE(save(1, 1).ok());
  network_.hold(peer_id(1), peer_id(0));
  ask();
  settle();
  asker_.store.let_go(peer_id(1), {Code::kPeerLost, "it is out", peer_id(1), {}});
  ASSERT_TRUE(answer_ && !answer_->ok());
  EXPECT_EQ(answer_->code(), Code::kPeerLost);
  // Its answer comes after all, and goes nowhere.
  network_.release(peer_id(1), peer_id(0));
  settle();
}

TEST_F(PeerStoreTest, ValuesForALostPeerAreNotKept) {
  ASSERT_TRUE(save(1, 1).ok());
  network_.hold(peer_id(1), peer_id(0));
  ask();
  settle();
  network_.drop(peer_id(0));
  settle();
  ASSERT_TRUE(save(2, 2).ok());
  EXPECT_FALSE(owner_.store.spare("model", 1000, kWindow).empty());
}

TEST_F(PeerStoreTest, TheEndOfTheSessionEndsRequests) {
  ask();
  asker_.store.cancel_all({Code::kCancelled, "the session ends", {}, {}});
  ASSERT_TRUE(answer_ && !answer_->ok());
  EXPECT_EQ(answer_->code(), Code::kCancelled);
  settle();
}

TEST_F(PeerStoreTest, WrongValuesAreRefused) {
  EXPECT_FALSE(owner_.store.save("", 1, {}, kWindow).ok());
  EXPECT_FALSE(owner_.store.save("x", PeerStore::kNewest, {}, kWindow).ok());
  EXPECT_TRUE(owner_.store.save("x", 1, {}, 0).ok());
  EXPECT_TRUE(owner_.store.get("x", 1).ok());
}

}  // namespace
}  // namespace pliant
