#include "pliant/data/redeal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace pliant {
namespace {

using Part = Redeal::Part;

std::vector<PeerId> peers(size_t count) {
  std::vector<PeerId> made;
  for (size_t i = 0; i < count; ++i)
    made.push_back({.host = 0, .slot = static_cast<uint16_t>(i), .incarnation = 1});
  return made;
}

std::vector<uint64_t> positions(const std::vector<Range>& ranges) {
  std::vector<uint64_t> all;
  for (const Range& range : ranges)
    for (uint64_t at = range.begin; at < range.end; ++at) all.push_back(at);
  return all;
}

std::vector<uint64_t> positions(const Draw& draw) {
  std::vector<uint64_t> all;
  for (const auto& ranges : draw.members) {
    const auto part = positions(ranges);
    all.insert(all.end(), part.begin(), part.end());
  }
  std::ranges::sort(all);
  return all;
}

TEST(Redeal, NothingIsRedealtIfNobodyIsLost) {
  const auto members = peers(3);
  EXPECT_EQ(redeal_lost(members, {}, members, {}), std::nullopt);
  // What the dead one handed in counts.
  EXPECT_EQ(redeal_lost(members, {}, std::vector{members[0], members[2]}, std::vector{members[1]}),
            std::nullopt);
}

TEST(Redeal, TheLivingTakeOverWhatTheLostHad) {
  const auto members = peers(4);
  const auto redeal =
      redeal_lost(members, {}, std::vector{members[0], members[3]}, std::vector{members[2]});
  ASSERT_TRUE(redeal.has_value());
  EXPECT_EQ(redeal->parts,
            (std::vector{Part::kTakesOver, Part::kLost, Part::kKeeps, Part::kTakesOver}));
  Draw draw{.epoch = 0, .members = {{{0, 3}}, {{3, 6}}, {{6, 8}}, {{8, 10}}}};
  apply(*redeal, draw);
  EXPECT_EQ(draw.members[0], (std::vector<Range>{{0, 3}, {3, 5}}));
  EXPECT_TRUE(draw.members[1].empty());
  EXPECT_EQ(draw.members[2], (std::vector<Range>{{6, 8}}));
  EXPECT_EQ(draw.members[3], (std::vector<Range>{{8, 10}, {5, 6}}));
}

// Its samples are others' by then: counting what it had handed in would count them twice.
TEST(Redeal, WhoeverWasLostStaysLost) {
  const auto members = peers(3);
  const auto first = redeal_lost(members, {}, std::vector{members[0], members[2]}, {});
  ASSERT_TRUE(first.has_value());
  const std::vector before{*first};
  EXPECT_TRUE(is_lost(before, 1));
  EXPECT_FALSE(is_lost(before, 2));
  EXPECT_EQ(redeal_lost(members, before, std::vector{members[0], members[2]}, {}), std::nullopt);
  const auto second =
      redeal_lost(members, before, std::vector{members[0]}, std::vector{members[1]});
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->parts, (std::vector{Part::kTakesOver, Part::kKeeps, Part::kLost}));
}

TEST(Redeal, AMemberThatLeftItsInputsBehindMayBeLostLater) {
  const auto members = peers(3);
  const std::vector before{
      *redeal_lost(members, {}, std::vector{members[0]}, std::vector{members[1]})};
  EXPECT_EQ(before[0].parts, (std::vector{Part::kTakesOver, Part::kKeeps, Part::kLost}));
  const auto second = redeal_lost(members, before, std::vector{members[0]}, {});
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->parts, (std::vector{Part::kTakesOver, Part::kLost, Part::kKeeps}));
}

TEST(Redeal, AnEmptyPartIsLostWithoutATrace) {
  const auto members = peers(3);
  Draw draw{.epoch = 0, .members = {{{0, 1}}, {{1, 2}}, {}}};
  const Draw as_it_was = draw;
  apply(*redeal_lost(members, {}, std::vector{members[0], members[1]}, {}), draw);
  EXPECT_EQ(draw, as_it_was);
}

// However members die, one after the other or many at once, leaving something behind or not: the
// batch stays whole, and nobody's part changes but by growing at its end.
TEST(Redeal, AnyHistoryOfLossesKeepsTheBatch) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  for (int round = 0; round < 2000; ++round) {
    const size_t size = 1 + below(9);
    const auto members = peers(size);
    auto sampler = Sampler::make({.samples = 1 + below(200), .global_batch = 1 + below(40)});
    ASSERT_TRUE(sampler.ok());
    Draw draw = sampler->draw(static_cast<int>(size));
    const auto batch = positions(draw);
    std::vector<PeerId> active = members;
    std::vector<PeerId> left;
    std::vector<Redeal> redeals;
    while (active.size() > 1) {
      for (uint64_t deaths = 1 + below(active.size() - 1); deaths > 0; --deaths) {
        const auto dies = active.begin() + static_cast<std::ptrdiff_t>(below(active.size()));
        if (below(3) == 0) left.push_back(*dies);
        active.erase(dies);
      }
      if (!left.empty() && below(4) == 0) left.pop_back();
      const Draw before = draw;
      const auto redeal = redeal_lost(members, redeals, active, left);
      if (redeal) {
        redeals.push_back(*redeal);
        apply(*redeal, draw);
      }
      ASSERT_LE(redeals.size(), size);
      ASSERT_EQ(positions(draw), batch);
      for (size_t i = 0; i < size; ++i) {
        const auto had = positions(before.members[i]);
        auto has = positions(draw.members[i]);
        const bool alive = std::ranges::find(active, members[i]) != active.end();
        const bool counts = std::ranges::find(left, members[i]) != left.end();
        if (!alive && (!counts || is_lost(redeals, i))) {
          ASSERT_TRUE(has.empty());
          continue;
        }
        if (!alive) {
          ASSERT_EQ(has, had);
        }
        ASSERT_GE(has.size(), had.size());
        has.resize(had.size());
        ASSERT_EQ(has, had);
      }
    }
    // Who was told of all of them at once has the same.
    const auto bytes = encode(redeals);
    const auto told = decode_redeals(bytes, redeals.size(), size);
    ASSERT_TRUE(told.ok());
    Draw theirs = sampler->draw(static_cast<int>(size));
    for (const Redeal& redeal : *told) apply(redeal, theirs);
    ASSERT_EQ(theirs, draw);
  }
}

TEST(Redeal, WhatIsNoneIsRefused) {
  const std::vector<Redeal> redeals{{{Part::kTakesOver, Part::kLost}}};
  auto bytes = encode(redeals);
  EXPECT_TRUE(decode_redeals(bytes, 1, 2).ok());
  EXPECT_FALSE(decode_redeals(bytes, 2, 2).ok());
  EXPECT_FALSE(decode_redeals(bytes, 1, 3).ok());
  EXPECT_FALSE(decode_redeals(bytes, 0, 0).ok());
  EXPECT_TRUE(decode_redeals({}, 0, 2).ok());
  bytes[1] = std::byte{3};
  EXPECT_FALSE(decode_redeals(bytes, 1, 2).ok());
}

}  // namespace
}  // namespace pliant
