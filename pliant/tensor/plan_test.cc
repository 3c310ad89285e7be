#include "pliant/tensor/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "pliant/tensor/plan_json.h"
#include "pliant/tensor/presets.h"
#include "pliant/tensor/test_layouts.h"
#include "pliant/tensor/test_memory.h"

namespace pliant::tensor {
namespace {

std::shared_ptr<const Collection> collection_of(std::vector<TensorInfo> tensors) {
  return std::make_shared<Collection>(*Collection::make(std::move(tensors)));
}

Rule sharded(const std::string& match, uint32_t dim, std::vector<std::string> axes) {
  Rule rule;
  rule.match = {match};
  rule.shard = {{.dim = dim, .axes = std::move(axes)}};
  return rule;
}

Rule replicated(const std::string& match) {
  Rule rule;
  rule.match = {match};
  rule.replicated = true;
  return rule;
}

Layout layout_of(std::vector<Axis> axes, uint32_t ranks_per_host, std::vector<Rule> rules,
                 const std::shared_ptr<const Collection>& collection) {
  auto layout = Layout::make(
      {.mesh = *Mesh::make(std::move(axes), ranks_per_host), .rules = std::move(rules)},
      collection);
  PLIANT_CHECK(layout.ok(), layout.ok() ? "" : layout.error().message.c_str());
  return *layout;
}

const auto kMatrix = collection_of({{"w", DType::kF32, {16, 8}}});

Layout preset(const char* model, const char* sizes, uint32_t slots,
              const std::shared_ptr<const Collection>& state) {
  auto layout =
      Layout::make(*make_spec(*find_model(model), *parse_parallelism(sizes), slots), state);
  PLIANT_CHECK(layout.ok(), layout.ok() ? "" : layout.error().message.c_str());
  return *layout;
}

TEST(Plan, NothingMovesIfNothingChanges) {
  const Layout layout = layout_of({{"tp", 4}}, 2, {sharded("w", 0, {"tp"})}, kMatrix);
  const auto plan = make_plan(layout, layout);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->totals.bytes_moved, 0u);
  EXPECT_EQ(plan->totals.bytes_in_place, 16u * 8 * 4);
  EXPECT_EQ(plan->totals.predicted_s, 0);
  EXPECT_TRUE(plan->links.empty());
}

TEST(Plan, WhatIsInPlaceIsNotMoved) {
  const Layout whole = layout_of({{"tp", 1}}, 4, {sharded("w", 0, {"tp"})}, kMatrix);
  const Layout halves = layout_of({{"tp", 2}}, 4, {sharded("w", 0, {"tp"})}, kMatrix);
  const auto split = make_plan(whole, halves);
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->totals.bytes_in_place, 256u);
  EXPECT_EQ(split->totals.bytes_moved, 256u);
  EXPECT_EQ(split->totals.bytes_network, 0u);
  const auto merge = make_plan(halves, whole);
  EXPECT_EQ(merge->totals.bytes_in_place, 256u);
  EXPECT_EQ(merge->totals.bytes_moved, 256u);
}

// Four replicas on two hosts; the newcomers of each host take from their own.
TEST(Plan, TheSameHostGivesFirst) {
  const Layout few = layout_of({{"dp", 4}}, 2, {replicated("w")}, kMatrix);
  const auto mesh = Mesh::make_on({{"dp", 6}}, {0, 0, 1, 1, 0, 1});
  const auto many = Layout::make({.mesh = *mesh, .rules = {replicated("w")}}, kMatrix);
  const auto plan = make_plan(few, *many);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->totals.bytes_network, 0u);
  EXPECT_EQ(plan->totals.bytes_inside, 2 * 512u);
  EXPECT_EQ(plan->links, (std::vector<HostLink>{{0, 0, 512}, {1, 1, 512}}));
  EXPECT_EQ(plan->hosts[1].bytes_inside, 512u);
}

TEST(Plan, ReplicasShareTheWork) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 40; ++i) tensors.push_back({fmt::format("w{}", i), DType::kF32, {64}});
  const auto state = collection_of(std::move(tensors));
  const Layout four = layout_of({{"dp", 4}}, 1, {replicated("*")}, state);
  const Layout eight = layout_of({{"dp", 8}}, 1, {replicated("*")}, state);
  const auto plan = make_plan(four, eight);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->totals.bytes_moved, 4 * state->bytes());
  EXPECT_EQ(plan->totals.bytes_sent_max, state->bytes());
  for (int host = 0; host < 4; ++host)
    EXPECT_EQ(plan->hosts[static_cast<size_t>(host)].bytes_out, state->bytes());
}

// More replicas than are looked at each time: still even.
TEST(Plan, ManyReplicasShareTheWork) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 64; ++i) tensors.push_back({fmt::format("w{}", i), DType::kF32, {64}});
  const auto state = collection_of(std::move(tensors));
  const Layout before = layout_of({{"dp", 128}}, 1, {replicated("*")}, state);
  const Layout after = layout_of({{"dp", 256}}, 1, {replicated("*")}, state);
  const auto plan = make_plan(before, after);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->totals.bytes_moved, 128 * state->bytes());
  EXPECT_LE(plan->totals.bytes_sent_max, state->bytes() * 5 / 4);
}

// A new host of four fetches the state once, if asked to, and hands it on inside.
TEST(Plan, AHostCanFetchOnce) {
  const Layout four = layout_of({{"dp", 4}}, 4, {replicated("w")}, kMatrix);
  const Layout eight = layout_of({{"dp", 8}}, 4, {replicated("w")}, kMatrix);
  const auto each = make_plan(four, eight);
  const auto once = make_plan(four, eight, {.wire = PlanOptions::Wire::kOnceAHost});
  ASSERT_TRUE(each.ok() && once.ok());
  EXPECT_EQ(each->totals.bytes_network, 4 * 512u);
  EXPECT_EQ(once->totals.bytes_network, 512u);
  EXPECT_EQ(once->totals.bytes_inside, 3 * 512u);
  EXPECT_EQ(once->totals.bytes_moved, once->totals.bytes_lower_bound);
  EXPECT_EQ(once->relays.size(), 3u);
  Memory before(four);
  before.fill();
  Memory after(eight);
  after.execute(*once, before);
  after.expect_whole();
}

TEST(Plan, PredictsFromTheBusiestHost) {
  const Layout one = layout_of({{"dp", 1}}, 1, {replicated("w")}, kMatrix);
  const Layout three = layout_of({{"dp", 3}}, 1, {replicated("w")}, kMatrix);
  const auto plan = make_plan(one, three, {.speeds = {.host = 1e9, .network = 1e6}});
  ASSERT_TRUE(plan.ok());
  EXPECT_DOUBLE_EQ(plan->totals.predicted_s, 1024 / 1e6);  // the only giver sends 512 bytes twice
  EXPECT_FALSE(make_plan(one, three, {.speeds = {.host = 0}}).ok());
}

TEST(Plan, AMappingOfMembersDecidesWhatIsInPlace) {
  const Layout before = layout_of({{"tp", 2}}, 0, {sharded("w", 0, {"tp"})}, kMatrix);
  const auto swapped = make_plan(before, before, {.members = {1, 0}});
  ASSERT_TRUE(swapped.ok());
  EXPECT_EQ(swapped->totals.bytes_moved, 512u);
  const auto newcomers = make_plan(before, before, {.members = {kNewcomer, kNewcomer}});
  EXPECT_EQ(newcomers->totals.bytes_in_place, 0u);
  const auto fault = [&](std::vector<Rank> members) {
    const auto plan = make_plan(before, before, {.members = std::move(members)});
    return plan ? "" : plan.error().message;
  };
  EXPECT_NE(fault({0}).find("1 are given, but the new layout has 2"), std::string::npos);
  EXPECT_NE(fault({0, 0}).find("old rank 0 becomes two"), std::string::npos);
  EXPECT_NE(fault({0, 2}).find("old rank 2, but the old layout has 0 to 1"), std::string::npos);
}

TEST(Plan, AProcessDoesNotChangeItsHost) {
  const Layout before = layout_of({{"dp", 4}}, 2, {replicated("w")}, kMatrix);
  const Layout after = layout_of({{"dp", 4}}, 1, {replicated("w")}, kMatrix);
  const auto plan = make_plan(before, after);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("old rank 1 is on host 0, but as new rank 1 on host 1"),
            std::string::npos);
}

TEST(Plan, ChosenMembersKeepWhatTheyHave) {
  const auto state =
      std::make_shared<const Collection>(*make_state(*find_model("gpt-tiny"), DType::kBF16));
  const Layout before = preset("gpt-tiny", "dp=2,tp=2,pp=4", 2, state);
  const Layout after = preset("gpt-tiny", "dp=4,tp=2,pp=4", 2, state);
  const auto kept = make_plan(before, after);
  const auto chosen = make_plan(before, after, {.choice = PlanOptions::Members::kChosen});
  ASSERT_TRUE(kept.ok() && chosen.ok());
  // Every old process keeps all that it has: half of the new ranks lack nothing.
  EXPECT_EQ(chosen->totals.bytes_moved, chosen->totals.bytes_in_place);
  EXPECT_LT(chosen->totals.bytes_moved, kept->totals.bytes_moved);
  std::set<Rank> used;
  for (size_t rank = 0; rank < chosen->members.size(); ++rank) {
    const Rank member = chosen->members[rank];
    if (member == kNewcomer) continue;
    EXPECT_TRUE(used.insert(member).second);
    EXPECT_EQ(before.mesh().host_of(member), chosen->to_hosts[rank]);
  }
  EXPECT_EQ(used.size(), 16u);
  // What it says of hosts is what a mesh on these hosts gives.
  LayoutSpec spec = after.spec();
  spec.mesh = *Mesh::make_on(spec.mesh.axes(), chosen->to_hosts);
  const auto there = Layout::make(spec, state);
  const auto again = make_plan(before, *there, {.members = chosen->members});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->totals, chosen->totals);
}

TEST(Plan, ChoosingNeverMovesMoreThanKeeping) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(seed);
    const auto a = Layout::make(world.random_spec(), world.collection());
    const auto b = Layout::make(world.random_spec(), world.collection());
    ASSERT_TRUE(a.ok() && b.ok());
    const auto chosen = make_plan(*a, *b, {.choice = PlanOptions::Members::kChosen});
    ASSERT_TRUE(chosen.ok());
    ASSERT_EQ(chosen->totals.bytes_moved, chosen->totals.bytes_lower_bound);
    const auto kept = make_plan(*a, *b);
    if (!kept.ok()) continue;  // hosts that do not fit
    ASSERT_LE(chosen->totals.bytes_moved, kept->totals.bytes_moved);
  }
}

// ---- Losses -------------------------------------------------------------------------------------

TEST(PlanAfterALoss, TheOtherReplicaGives) {
  const Layout before = layout_of({{"dp", 2}, {"tp", 2}}, 2, {sharded("w", 0, {"tp"})}, kMatrix);
  const Layout after = layout_of({{"dp", 1}, {"tp", 2}}, 2, {sharded("w", 0, {"tp"})}, kMatrix);
  const auto plan = make_plan(before, after, {.lost = {0, 1}});
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_TRUE(plan->is_complete());
  EXPECT_EQ(plan->totals.bytes_moved, 512u);  // the new processes have nothing
  for (const Move& move : plan->moves) EXPECT_GE(move.from, 2);
  const auto survivors = make_plan(before, after, {.members = {2, 3}, .lost = {0, 1}});
  // The survivors are on host 1, the new ranks on host 0.
  EXPECT_FALSE(survivors.ok());
}

TEST(PlanAfterALoss, WhatIsGoneIsNamedExactly) {
  const Layout before = layout_of({{"dp", 2}, {"tp", 2}}, 0, {sharded("w", 0, {"tp"})}, kMatrix);
  const auto plan = make_plan(before, before, {.lost = {1, 3}});
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->is_complete());
  ASSERT_EQ(plan->gone.size(), 1u);
  EXPECT_EQ(to_string(plan->gone[0].box), "[8:16, 0:8]");
  EXPECT_EQ(plan->totals.bytes_in_place, 512u);
  const auto wrong = make_plan(before, before, {.lost = {4}});
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("no rank 4; it has 0 to 3"), std::string::npos);
  const auto marks = make_plan(before, before, {.tensors = {true, false}});
  ASSERT_FALSE(marks.ok());
  EXPECT_NE(marks.error().message.find("2 are marked, but there are 1"), std::string::npos);
}

// ---- Bad input ----------------------------------------------------------------------------------

TEST(PlanFaults, LayoutsOfDifferentTensors) {
  const auto of = [](std::vector<TensorInfo> tensors) {
    return layout_of({{"tp", 1}}, 0, {replicated("*")}, collection_of(std::move(tensors)));
  };
  const auto fault = [](const Layout& a, const Layout& b) {
    const auto plan = make_plan(a, b);
    return plan ? "" : plan.error().message;
  };
  const Layout base = of({{"w", DType::kF32, {4, 2}}});
  EXPECT_EQ(fault(base, of({{"w", DType::kF32, {4, 4}}})),
            "the layouts are of different tensors: 'w' is f32 [4, 2] in the old layout and f32 "
            "[4, 4] in the new one");
  EXPECT_NE(fault(base, of({{"w", DType::kBF16, {4, 2}}})).find("bf16 [4, 2] in the new one"),
            std::string::npos);
  EXPECT_NE(fault(base, of({{"w", DType::kF32, {8}}})), "");
  EXPECT_NE(fault(base, of({})).find("'w' is in the old layout alone"), std::string::npos);
  EXPECT_NE(fault(of({}), base).find("'w' is in the new layout alone"), std::string::npos);
}

// ---- Text ---------------------------------------------------------------------------------------

TEST(PlanJson, SurvivesItsTextForm) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    RandomWorld world(seed);
    const auto a = Layout::make(world.random_spec(), world.collection());
    const auto b = Layout::make(world.random_spec(), world.collection());
    const auto plan = make_plan(*a, *b,
                                {.choice = PlanOptions::Members::kChosen,
                                 .lost = {0},
                                 .wire = PlanOptions::Wire::kOnceAHost});
    ASSERT_TRUE(plan.ok());
    const auto parsed = parse_plan(to_json(*plan));
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed->moves, plan->moves);
    EXPECT_EQ(parsed->relays, plan->relays);
    EXPECT_EQ(parsed->boxes, plan->boxes);
    EXPECT_EQ(parsed->first_move, plan->first_move);
    EXPECT_EQ(parsed->gone, plan->gone);
    EXPECT_EQ(parsed->links, plan->links);
    EXPECT_EQ(parsed->hosts, plan->hosts);
    EXPECT_EQ(parsed->members, plan->members);
    EXPECT_EQ(parsed->to_hosts, plan->to_hosts);
    EXPECT_EQ(parsed->totals, plan->totals);
    EXPECT_EQ(*parsed->collection, *plan->collection);
    EXPECT_TRUE(diff(*parsed, *plan).is_empty());
  }
}

TEST(PlanJson, RefusesMovesOfWhatIsNotThere) {
  const Layout layout = layout_of({{"tp", 2}}, 0, {sharded("w", 0, {"tp"})}, kMatrix);
  const std::string text = to_json(*make_plan(layout, layout));
  const auto fault = [&](const std::string& old_text, const std::string& new_text) {
    std::string changed = text;
    changed.replace(changed.find(old_text), old_text.size(), new_text);
    const auto parsed = parse_plan(changed);
    return parsed ? "" : parsed.error().message;
  };
  EXPECT_EQ(fault("\"moves\": [0,0,0,0", "\"moves\": [0,0,0,0"), "");
  EXPECT_NE(fault("\"moves\": [0,", "\"moves\": [1,").find("move 0 names"), std::string::npos);
  EXPECT_NE(fault("\"moves\": [0,0,", "\"moves\": [0,9,").find("move 0 names"), std::string::npos);
  EXPECT_NE(fault("\"moves\": [0,", "\"moves\": [").find("four numbers"), std::string::npos);
  EXPECT_NE(fault("\"boxes\": [[0,0,8,8]", "\"boxes\": [[0,0,8,9]").find("not inside tensor 'w'"),
            std::string::npos);
  EXPECT_NE(fault("\"to_ranks\": 2", "\"to_ranks\": 3").find("members"), std::string::npos);
  EXPECT_NE(fault("\"links\"", "\"lynx\"").find("lynx"), std::string::npos);
}

TEST(PlanJson, ADifferenceNamesTheMoves) {
  const Layout before = layout_of({{"tp", 2}}, 0, {sharded("w", 0, {"tp"})}, kMatrix);
  const auto kept = make_plan(before, before);
  const auto swapped = make_plan(before, before, {.members = {1, 0}});
  EXPECT_TRUE(diff(*kept, *swapped).is_empty());  // the same boxes go to the same ranks
  const Layout after = layout_of({{"tp", 2}}, 0, {sharded("w", 1, {"tp"})}, kMatrix);
  const auto other = make_plan(before, after);
  const PlanDiff found = diff(*kept, *other);
  EXPECT_EQ(found.only_first.moves, 2u);
  EXPECT_EQ(found.only_second.moves, 4u);
  EXPECT_EQ(found.only_second.bytes, 512u);
  EXPECT_EQ(found.only_first.lines[0], "'w' [0:8, 0:8] from rank 0 to rank 0");
}

}  // namespace
}  // namespace pliant::tensor
