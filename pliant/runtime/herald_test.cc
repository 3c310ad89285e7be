#include "pliant/runtime/herald.h"

#include <gtest/gtest.h>

#include "pliant/membership/test_view.h"

namespace pliant {
namespace {

std::vector<PeerId> peers(const std::vector<uint16_t>& slots) {
  std::vector<PeerId> list;
  for (const uint16_t slot : slots) list.push_back(test_member(slot).id);
  return list;
}

template <typename T>
const Herald::Telling* find(const std::vector<Herald::Telling>& tellings) {
  for (const Herald::Telling& telling : tellings)
    if (std::holds_alternative<T>(telling.message)) return &telling;
  return nullptr;
}

const std::vector<Departure> kOneIsGone = {{test_member(1).id, true, false, "died"}};

TEST(Herald, FirstViewIsWholeAndTheNextAChange) {
  Herald herald;
  for (const PeerId peer : peers({0, 1, 2})) herald.joined(peer, 0);
  const View first = test_view(1, {0, 1, 2});
  const auto whole = herald.tell(first, {}, peers({0, 1, 2}));
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].to, peers({0, 1, 2}));
  EXPECT_EQ(whole[0].message, Message(ViewDecided{first, {}}));

  const View second = test_view(2, {0, 2});
  const auto change = herald.tell(second, kOneIsGone, peers({0, 2}));
  ASSERT_EQ(change.size(), 1u);
  EXPECT_EQ(change[0].to, peers({0, 2}));
  const auto decided = complete(std::get<ViewChanged>(change[0].message), first);
  ASSERT_TRUE(decided.ok());
  EXPECT_EQ(*decided, (ViewDecided{second, kOneIsGone}));
  EXPECT_EQ(herald.newest(), second);
}

TEST(Herald, NewcomersAndThoseThatComeBackLateGetTheWhole) {
  Herald herald(test_view(5, {0, 1, 2}));
  herald.joined(test_member(0).id, 5);
  herald.joined(test_member(2).id, 4);
  const View next = test_view(6, {0, 2, 3});
  const auto tellings = herald.tell(next, kOneIsGone, peers({0, 2, 3}));
  ASSERT_EQ(tellings.size(), 2u);
  ASSERT_NE(find<ViewChanged>(tellings), nullptr);
  EXPECT_EQ(find<ViewChanged>(tellings)->to, peers({0}));
  EXPECT_EQ(find<ViewDecided>(tellings)->to, peers({2, 3}));
  EXPECT_EQ(find<ViewDecided>(tellings)->message, Message(ViewDecided{next, kOneIsGone}));
}

TEST(Herald, WhoJoinsAgainHoldsNothingUntilItWasTold) {
  Herald herald(test_view(5, {0, 1, 2}));
  for (const PeerId peer : peers({0, 1, 2})) herald.joined(peer, 5);
  herald.joined(test_member(2).id, 3);
  const auto again = herald.tell(test_view(5, {0, 1, 2}), {}, peers({2}));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].message, Message(ViewDecided{test_view(5, {0, 1, 2}), {}}));
  const auto next = herald.tell(test_view(6, {0, 2}), kOneIsGone, peers({0, 2}));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].to, peers({0, 2}));
  EXPECT_TRUE(std::holds_alternative<ViewChanged>(next[0].message));
}

TEST(Herald, WhatIsNoChangeIsToldWhole) {
  Herald herald(test_view(5, {0, 1, 2}));
  for (const PeerId peer : peers({0, 1, 2})) herald.joined(peer, 5);
  const auto moved = herald.tell(test_view(6, {0, 2, 1}), {}, peers({0, 2, 1}));
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ViewDecided>(moved[0].message));
}

TEST(Herald, AChangeOfAnotherViewIsNotCompleted) {
  Herald herald(test_view(5, {0, 1, 2}));
  herald.joined(test_member(0).id, 5);
  const auto tellings = herald.tell(test_view(6, {0, 2}), kOneIsGone, peers({0, 2}));
  const auto& changed = std::get<ViewChanged>(find<ViewChanged>(tellings)->message);
  EXPECT_TRUE(complete(changed, test_view(5, {0, 1, 2})).ok());
  EXPECT_FALSE(complete(changed, test_view(4, {0, 1, 2})).ok());
  EXPECT_FALSE(complete(changed, test_view(5, {0, 1, 3})).ok());
}

}  // namespace
}  // namespace pliant
