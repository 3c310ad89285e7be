#include "pliant/membership/view_delta.h"

#include <algorithm>
#include <random>

#include "pliant/membership/test_roster.h"
#include "pliant/membership/test_view.h"

namespace pliant {
namespace {

std::vector<Departure> gone_of(const std::vector<uint16_t>& slots) {
  std::vector<Departure> gone;
  for (const uint16_t slot : slots) gone.push_back({test_member(slot).id, true, false, "died"});
  return gone;
}

TEST(ViewDelta, LeavesNamesAndComesToTheSameView) {
  const View before = test_view(3, {0, 1, 2, 3});
  const View after = test_view(7, {0, 2, 5, 4});
  const auto delta = diff(before, after, gone_of({3, 1}));
  ASSERT_TRUE(delta.has_value());
  EXPECT_EQ(delta->before, Epoch{3});
  EXPECT_EQ(delta->joined, (std::vector{test_member(5), test_member(4)}));
  EXPECT_EQ(delta->gone, gone_of({3, 1}));
  const auto applied = apply(*delta, before);
  ASSERT_TRUE(applied.ok()) << applied.error().message;
  EXPECT_EQ(*applied, after);
}

TEST(ViewDelta, WhatHasNoDeltaIsNotGivenOne) {
  const View before = test_view(3, {0, 1, 2});
  EXPECT_TRUE(diff(before, test_view(4, {0, 1, 2}), {}).has_value()) << "only the number is new";
  EXPECT_FALSE(diff(View{}, test_view(1, {0}), {}).has_value()) << "the first view";
  EXPECT_FALSE(diff(before, before, {}).has_value());
  EXPECT_FALSE(diff(before, test_view(2, {0, 1, 2}), {}).has_value()) << "an older one";
  EXPECT_FALSE(diff(before, test_view(4, {1, 0, 2}), {}).has_value()) << "another order";
  EXPECT_FALSE(diff(before, test_view(4, {0, 2}), {}).has_value()) << "not said to be gone";
  EXPECT_FALSE(diff(before, test_view(4, {0, 2}), gone_of({1, 1})).has_value());
  EXPECT_FALSE(diff(before, test_view(4, {0, 2}), gone_of({1, 5})).has_value()) << "a stranger";
  EXPECT_FALSE(diff(before, test_view(4, {0, 2, 1}), {}).has_value()) << "left and came back";
  EXPECT_FALSE(diff(before, test_view(4, {0, 1, 2, 4, 4}), {}).has_value()) << "twice";
  View moved = test_view(4, {0, 1, 2});
  moved.members[1].port = 77;
  EXPECT_FALSE(diff(before, moved, {}).has_value()) << "reached in another way";
}

TEST(ViewDelta, AnotherBaseIsRefused) {
  const View before = test_view(3, {0, 1, 2});
  const ViewDelta delta = *diff(before, test_view(4, {0, 2, 4}), gone_of({1}));
  ASSERT_TRUE(apply(delta, before).ok());
  for (const uint32_t epoch : {0u, 2u, 4u, 5u})
    EXPECT_EQ(apply(delta, test_view(epoch, {0, 1, 2})).code(), Code::kInvalid) << epoch;
  EXPECT_FALSE(apply(delta, test_view(3, {0, 2})).ok()) << "who is gone was no member";
  EXPECT_FALSE(apply(delta, test_view(3, {0, 1, 2, 4})).ok()) << "who joins is a member";
  EXPECT_FALSE(apply(delta, test_view(3, {0, 1, 3})).ok()) << "other members";
  EXPECT_FALSE(apply(delta, test_view(3, {2, 1, 0})).ok()) << "other ranks";
  EXPECT_FALSE(apply(delta, View{}).ok());
}

TEST(ViewDelta, ForgeriesAreRefused) {
  const View before = test_view(3, {0, 1, 2});
  const ViewDelta right = *diff(before, test_view(4, {0, 2, 4}), gone_of({1}));
  const auto refused = [&](auto&& forge) {
    ViewDelta forged = right;
    forge(forged);
    return !apply(forged, before).ok();
  };
  EXPECT_TRUE(refused([](ViewDelta& d) { d.gone.push_back(d.gone[0]); }));
  EXPECT_TRUE(refused([](ViewDelta& d) { d.gone[0].peer = test_member(9).id; }));
  EXPECT_TRUE(refused([](ViewDelta& d) { d.joined.push_back(d.joined[0]); }));
  EXPECT_TRUE(refused([](ViewDelta& d) { d.joined[0] = test_member(2); }));
  EXPECT_TRUE(refused([](ViewDelta& d) { d.epoch = Epoch{3}; }));
  EXPECT_TRUE(refused([](ViewDelta& d) { d.epoch = Epoch{5}; }));
  EXPECT_TRUE(refused([](ViewDelta& d) { ++d.fingerprint; }));
}

// Every view that the roster decides, in jobs whose members come and go at random.
class ViewsOfTheRoster : public RosterTest {
 protected:
  void change(std::mt19937& random) {
    const auto draw = [&](size_t below) {
      return std::uniform_int_distribution<size_t>(0, below - 1)(random);
    };
    const auto before = roster_->view();
    switch (draw(5)) {
      case 0: kill(at(static_cast<Rank>(draw(before.members.size())))); break;
      case 1: send(Event::Left{at(static_cast<Rank>(draw(before.members.size())))}); break;
      case 2: (void)roster_->resize(static_cast<uint32_t>(2 + draw(7)), now_); break;
      case 3:
        for (const PeerId peer : started_) join(peer);
        break;
      default:
        for (const PeerId peer : started_) meet(peer, started_);
    }
    wait(std::chrono::seconds(1));
  }
};

TEST_F(ViewsOfTheRoster, FollowFromEachOther) {
  int deltas = 0;
  int wholes = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    RosterOptions options = standard();
    options.restarts = RosterOptions::kAnyNumber;
    started_.clear();
    last_ = {};
    run(options);
    View held = last_;
    for (int i = 0; i < 60 && size() > 0 && !finish_; ++i) {
      const int views = views_;
      change(random);
      if (views_ == views || last_.epoch == held.epoch) continue;
      const auto delta = diff(held, last_, gone_);
      // With two views in one go, or one that left and came back, there need not be one.
      ++(delta ? deltas : wholes);
      if (delta) {
        const auto applied = apply(*delta, held);
        ASSERT_TRUE(applied.ok()) << "seed " << seed << ": " << applied.error().message;
        EXPECT_EQ(*applied, last_) << "seed " << seed;
      }
      held = last_;
    }
    finish_.reset();
  }
  EXPECT_GT(deltas, 200);
  EXPECT_LT(wholes, deltas / 10);
}

}  // namespace
}  // namespace pliant
