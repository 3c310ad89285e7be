// What must hold for every plan, over random collections, meshes and rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/plan.h"
#include "pliant/tensor/test_layouts.h"
#include "pliant/tensor/test_memory.h"

namespace pliant::tensor {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kWorlds = 300;  // a sanitized one takes twenty times as long
#else
constexpr uint64_t kWorlds = 3000;
#endif

Layout make_layout(LayoutSpec spec, const std::shared_ptr<const Collection>& collection) {
  auto layout = Layout::make(std::move(spec), collection);
  PLIANT_CHECK(layout.ok(), layout.ok() ? "" : layout.error().message.c_str());
  return *layout;
}

// Processes keep their ranks in some worlds and are shuffled in others; ranks of different hosts
// cannot be the same process.
std::vector<Rank> random_members(const Mesh& from, const Mesh& to, Chance& chance) {
  std::vector<Rank> members(to.size(), kNewcomer);
  std::vector<Rank> old;
  for (Rank rank = 0; rank < static_cast<Rank>(from.size()); ++rank) old.push_back(rank);
  chance.shuffle(old);
  for (Rank rank = 0; rank < static_cast<Rank>(to.size()); ++rank) {
    if (chance.percent(20)) continue;
    const auto found = std::ranges::find_if(
        old, [&](Rank member) { return from.host_of(member) == to.host_of(rank); });
    if (found == old.end()) continue;
    members[static_cast<size_t>(rank)] = *found;
    old.erase(found);
  }
  return members;
}

std::vector<Rank> inverse(const std::vector<Rank>& members, uint32_t size) {
  std::vector<Rank> back(size, kNewcomer);
  for (size_t rank = 0; rank < members.size(); ++rank)
    if (members[rank] != kNewcomer)
      back[static_cast<size_t>(members[rank])] = static_cast<Rank>(rank);
  return back;
}

// Every element of the target exactly once, there and back bit for bit, and no byte more than the
// members lack: expect_round_trip() checks all of it.
TEST(PlanProperty, ThereAndBackIsIdentityAndMovesTheLowerBound) {
  for (uint64_t seed = 1; seed <= kWorlds; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(seed);
    const Layout a = make_layout(world.random_spec(), world.collection());
    const Layout b = make_layout(world.random_spec(), world.collection());
    const auto members = random_members(a.mesh(), b.mesh(), world.chance());
    const auto wire = seed % 2 == 0 ? PlanOptions::Wire::kOnceAHost : PlanOptions::Wire::kOnceARank;
    expect_round_trip(a, b, {.members = members, .wire = wire},
                      {.members = inverse(members, a.mesh().size())});
    if (HasFatalFailure()) return;
  }
}

// The same moves, by what they mean.
using Meaning = std::multiset<std::tuple<std::string, Box, Rank, Rank>>;

Meaning meaning(const Plan& plan) {
  Meaning moves;
  for (const Move& move : plan.moves)
    moves.emplace((*plan.collection)[move.tensor].name, plan.boxes[move.box], move.from, move.to);
  return moves;
}

TEST(PlanProperty, IsIndependentOfTheOrderOfTensorsAndRules) {
  for (uint64_t seed = 1; seed <= kWorlds / 3; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(seed);
    LayoutSpec spec_a = world.random_spec();
    LayoutSpec spec_b = world.random_spec();
    const auto members = random_members(spec_a.mesh, spec_b.mesh, world.chance());
    // The order of tensors is what a flat group is made of; theirs must stay.
    const auto is_flat = [](const Rule& rule) { return rule.flat.has_value(); };
    const bool any_flat =
        std::ranges::any_of(spec_a.rules, is_flat) || std::ranges::any_of(spec_b.rules, is_flat);
    const auto before = make_plan(make_layout(spec_a, world.collection()),
                                  make_layout(spec_b, world.collection()), {.members = members});
    auto shuffled = world.collection();
    if (!any_flat) {
      std::vector<TensorInfo> tensors = world.collection()->tensors();
      world.chance().shuffle(tensors);
      shuffled = std::make_shared<Collection>(*Collection::make(std::move(tensors)));
    }
    for (LayoutSpec* spec : {&spec_a, &spec_b}) {
      world.chance().shuffle(spec->rules);
      for (Rule& rule : spec->rules) world.chance().shuffle(rule.pieces);
    }
    const auto after = make_plan(make_layout(spec_a, shuffled), make_layout(spec_b, shuffled),
                                 {.members = members});
    ASSERT_TRUE(before.ok() && after.ok());
    ASSERT_EQ(meaning(*before), meaning(*after));
    ASSERT_EQ(before->totals, after->totals);
    ASSERT_EQ(before->links, after->links);
  }
}

// With some members lost: what the plan brings and what it says is gone is everything, and nothing
// comes from the lost.
TEST(PlanProperty, AfterLossesEveryElementIsBroughtOrNamedAsGone) {
  size_t incomplete = 0;
  for (uint64_t seed = 1; seed <= kWorlds / 3; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(seed);
    const Layout a = make_layout(world.random_spec(), world.collection());
    const Layout b = make_layout(world.random_spec(), world.collection());
    PlanOptions options{.members = random_members(a.mesh(), b.mesh(), world.chance())};
    for (Rank rank = 0; rank < static_cast<Rank>(a.mesh().size()); ++rank)
      if (world.chance().percent(25)) options.lost.push_back(rank);
    const auto plan = make_plan(a, b, options);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    for (const Move& move : plan->moves)
      ASSERT_FALSE(std::ranges::count(options.lost, move.from)) << "from a lost rank";
    incomplete += plan->is_complete() ? 0 : 1;
    const Memory memory(b);
    for (size_t tensor = 0; tensor < b.collection().size(); ++tensor) {
      // Nobody who is left has what is said to be gone.
      std::vector<Box> gone;
      for (const Gone& part : plan->gone)
        if (part.tensor == tensor) gone.push_back(part.box);
      for (const Shard& shard : a.placement(tensor).shards) {
        const bool is_held = std::ranges::any_of(shard.holders, [&](Rank holder) {
          return std::ranges::count(options.lost, holder) == 0;
        });
        for (const Box& box : gone) ASSERT_FALSE(is_held && overlap(box, shard.box));
      }
      for (Rank rank = 0; rank < static_cast<Rank>(b.mesh().size()); ++rank) {
        uint64_t brought = 0;
        for (const Move& move : plan->moves_to(rank))
          if (move.tensor == tensor) brought += volume(plan->boxes[move.box]);
        uint64_t needed = 0;
        uint64_t lost = 0;
        for (const Piece& piece : memory.holding(rank).pieces_of(tensor)) {
          needed += volume(piece.box);
          for (const Box& box : gone) lost += volume(intersect(box, piece.box));
        }
        ASSERT_EQ(needed, brought + lost) << b.collection()[tensor].name;
      }
    }
  }
  EXPECT_GT(incomplete, kWorlds / 30);
}

// Some tensors in one plan and the others in another: together they are the plan of all, but for
// who gives what several have.
TEST(PlanProperty, TensorsCanBePlannedApart) {
  for (uint64_t seed = 1; seed <= kWorlds / 3; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(seed);
    const Layout a = make_layout(world.random_spec(), world.collection());
    const Layout b = make_layout(world.random_spec(), world.collection());
    PlanOptions options{.members = random_members(a.mesh(), b.mesh(), world.chance())};
    options.lost.push_back(static_cast<Rank>(world.chance().below(a.mesh().size())));
    const auto all = make_plan(a, b, options);
    for (size_t i = 0; i < b.collection().size(); ++i)
      options.tensors.push_back(world.chance().percent(50));
    const auto some = make_plan(a, b, options);
    std::vector<bool> chosen = options.tensors;
    options.tensors.flip();
    const auto others = make_plan(a, b, options);
    ASSERT_TRUE(all.ok() && some.ok() && others.ok());
    for (const Move& move : some->moves) ASSERT_TRUE(chosen[move.tensor]);
    for (const Gone& gone : some->gone) ASSERT_TRUE(chosen[gone.tensor]);
    for (const Move& move : others->moves) ASSERT_FALSE(chosen[move.tensor]);
    ASSERT_EQ(all->gone.size(), some->gone.size() + others->gone.size());
    const auto sum = [&](uint64_t PlanTotals::*bytes) {
      return some->totals.*bytes + others->totals.*bytes;
    };
    ASSERT_EQ(all->totals.bytes_total, sum(&PlanTotals::bytes_total));
    ASSERT_EQ(all->totals.bytes_moved, sum(&PlanTotals::bytes_moved));
    ASSERT_EQ(all->totals.bytes_in_place, sum(&PlanTotals::bytes_in_place));
  }
}

TEST(PlanProperty, LayoutsSurviveTheirTextForm) {
  for (uint64_t seed = 1; seed <= kWorlds / 3; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(seed);
    const LayoutDocument document{world.random_spec(), *world.collection()};
    const auto parsed = parse_layout(to_json(document));
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    ASSERT_EQ(*parsed, document);
  }
}

}  // namespace
}  // namespace pliant::tensor
