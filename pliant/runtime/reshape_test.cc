// One process alone: what needs others is in tests/process/reshape_test.py.
#include "pliant/runtime/reshape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "pliant/runtime/reshape_call.h"
#include "pliant/runtime/reshape_work.h"
#include "pliant/tensor/layout_json.h"

namespace pliant {
namespace {

using tensor::Layout;

Layout layout_of(const std::string& rules, const std::string& axes = "x") {
  const std::string text = R"({"format": "pliant.layout/1", "mesh": {"axes": [{"name": ")" + axes +
                           R"(", "size": 1}]}, "tensors": [
      {"name": "w", "dtype": "f32", "shape": [6, 5]},
      {"name": "b", "dtype": "f32", "shape": [5]},
      {"name": "step", "dtype": "i64", "shape": []}], "rules": )" +
                           rules + "}";
  auto document = tensor::parse_layout(text);
  EXPECT_TRUE(document.ok()) << document.error().message;
  auto layout = Layout::make(document->spec,
                             std::make_shared<const tensor::Collection>(*document->collection));
  EXPECT_TRUE(layout.ok()) << layout.error().message;
  return *layout;
}

const char* const kPlain = R"([{"match": "*", "replicated": true}])";
const char* const kFlat = R"([{"match": ["w", "b"],
    "flat": {"group": "all", "axes": ["x"], "align": 16, "fill": 1.5}},
   {"match": "step", "replicated": true}])";

std::span<float> floats(const ShardedState& state, const char* name) {
  const auto memory = state.buffer(state.find(name).value());
  return {reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float)};
}

class Reshaping : public ::testing::Test {
 protected:
  std::unique_ptr<Session> session_ = std::move(*Session::open(SessionOptions{}));
};

TEST_F(Reshaping, ThereAndBackAlone) {
  auto state = ShardedState::allocate(*session_, layout_of(kPlain));
  ASSERT_TRUE(state.ok());
  for (size_t i = 0; i < 30; ++i) floats(*state, "w")[i] = static_cast<float>(i);
  for (size_t i = 0; i < 5; ++i) floats(*state, "b")[i] = static_cast<float>(100 + i);
  const std::byte* const step = state->buffer(*state->find("step")).data();
  auto report = reshape(*session_, *state, layout_of(kFlat));
  ASSERT_TRUE(report.ok()) << report.error().message;
  const std::span<float> all = floats(*state, "all");
  EXPECT_EQ(all[29], 29);
  EXPECT_EQ(all[30], 1.5f);  // padding
  EXPECT_EQ(all[32 + 4], 104);
  EXPECT_FALSE(state->find("w"));
  // What lies in the same way stays where it is.
  EXPECT_EQ(state->buffer(*state->find("step")).data(), step);
  EXPECT_EQ(report->bytes_kept, 8u);
  EXPECT_EQ(report->bytes_in_place, 35 * 4u);
  ASSERT_TRUE(reshape(*session_, *state, layout_of(kPlain)).ok());
  EXPECT_EQ(floats(*state, "w")[29], 29);
  EXPECT_EQ(floats(*state, "b")[4], 104);
}

TEST_F(Reshaping, AnErrorChangesNothing) {
  auto state = ShardedState::allocate(*session_, layout_of(kPlain));
  ASSERT_TRUE(state.ok());
  floats(*state, "w")[7] = 7;
  auto document = tensor::parse_layout(
      R"({"format": "pliant.layout/1", "mesh": {"axes": [{"name": "x", "size": 1}]},
          "tensors": [{"name": "other", "dtype": "f32", "shape": [6, 5]}],
          "rules": [{"match": "*", "replicated": true}]})");
  const auto other = Layout::make(
      document->spec, std::make_shared<const tensor::Collection>(*document->collection));
  const auto report = reshape(*session_, *state, *other);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("different tensors"), std::string::npos);
  EXPECT_EQ(floats(*state, "w")[7], 7);
}

TEST_F(Reshaping, MemoryIsGivenBack) {
  SessionOptions small;
  small.heap_bytes_max = size_t{256} << 10;
  auto session = std::move(*Session::open(small));
  auto state = ShardedState::allocate(*session, layout_of(kPlain));
  ASSERT_TRUE(state.ok());
  for (int round = 0; round < 200; ++round) {
    const auto report = reshape(*session, *state, layout_of(round % 2 == 0 ? kFlat : kPlain));
    ASSERT_TRUE(report.ok()) << report.error().message;
  }
}

TEST_F(Reshaping, KeptMemoryIsUsedAgain) {
  auto state = ShardedState::allocate(*session_, layout_of(kFlat));
  ASSERT_TRUE(state.ok());
  floats(*state, "all")[3] = 3;
  const float* const before = floats(*state, "all").data();
  ASSERT_TRUE(reshape(*session_, *state, layout_of(kPlain), {.keeps_memory = true}).ok());
  ASSERT_TRUE(reshape(*session_, *state, layout_of(kFlat)).ok());
  EXPECT_EQ(floats(*state, "all").data(), before);
  EXPECT_EQ(floats(*state, "all")[3], 3);
  EXPECT_EQ(floats(*state, "all")[30], 1.5f);  // padding, as in fresh memory
}

TEST_F(Reshaping, WithLittleMemoryAlone) {
  auto state = ShardedState::allocate(*session_, layout_of(kPlain));
  ASSERT_TRUE(state.ok());
  floats(*state, "w")[29] = 29;
  floats(*state, "b")[4] = 104;
  const auto refused = reshape(*session_, *state, layout_of(kFlat), {.extra_bytes_max = 120});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("no snapshot"), std::string::npos);
  const auto report =
      reshape(*session_, *state, layout_of(kFlat), {.extra_bytes_max = 120, .has_snapshot = true});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(floats(*state, "all")[29], 29);
  EXPECT_EQ(floats(*state, "all")[32 + 4], 104);
}

TEST_F(Reshaping, DiscardedPagesAreZeroAndTheirNeighboursStay) {
  constexpr size_t kPage = 4096;
  const std::span<std::byte> memory = *session_->allocate(6 * kPage);
  std::fill(memory.begin(), memory.end(), std::byte{7});
  const std::span<std::byte> part = memory.subspan(100, 4 * kPage);
  session_->discard(part);
  EXPECT_EQ(memory[99], std::byte{7});
  EXPECT_EQ(memory[100 + 4 * kPage], std::byte{7});
  EXPECT_EQ(part[2 * kPage], std::byte{});
  EXPECT_GE(std::count(part.begin(), part.end(), std::byte{}), 3 * kPage);
  session_->discard(memory.subspan(5 * kPage + 10, 20));  // no whole page: nothing
  EXPECT_EQ(memory[5 * kPage + 12], std::byte{7});
  const std::span<std::byte> other = *session_->allocate(kPage + 10);
  std::fill(other.begin(), other.end(), std::byte{7});
  session_->discard(memory);  // the pages at its ends too
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{}), 6 * kPage);
  session_->discard(other.first(kPage + 5));  // of its last page somebody may need the rest
  EXPECT_EQ(other[0], std::byte{});
  EXPECT_EQ(other[kPage + 9], std::byte{7});
  session_->discard(other);
  EXPECT_EQ(other[kPage + 9], std::byte{});
  EXPECT_EQ(session_->peer_memory(0, *session_->place_of(memory), memory.size()), memory.data());
  EXPECT_EQ(session_->peer_memory(0, UINT64_MAX, 8), nullptr);
  EXPECT_EQ(session_->peer_memory(0, 0, 8), nullptr);  // not of the heap
  EXPECT_EQ(session_->peer_memory(1, 0, 8), nullptr);
}

// One that has `own` batches of the next layout, and knows of `known` that all have them.
ReshapeOpening member_at(uint64_t generation, uint64_t passed, uint64_t own = 0,
                         uint64_t known = 0) {
  return {.generation = generation,
          .passed = passed,
          .digest = 100 * generation + passed,
          .own = own,
          .known = known,
          .next_digest = 7,
          .holds_anything = 1};
}

TEST(ReshapeGrounds, WhatNobodyKnowsToBeCompleteDoesNotCount) {
  const std::vector<ReshapeOpening> openings = {member_at(3, 5), member_at(3, 5, 1), {}};
  const ReshapeGround ground = ground_of(openings);
  EXPECT_EQ(ground, (ReshapeGround{3, 5}));
  EXPECT_TRUE(openings[1].is_at(ground));
  EXPECT_EQ(openings[1].digest_of(ground), 305u);
  EXPECT_TRUE(openings[2].is_newcomer(ground));
  EXPECT_FALSE(openings[2].has(ground));
  EXPECT_EQ(ground_of(std::vector<ReshapeOpening>(2)), ReshapeGround{});
}

// Some have heard of batch 2, one has not; all have it.
TEST(ReshapeGrounds, TheMostBatchesThatAnybodyKnowsOfCount) {
  const std::vector<ReshapeOpening> openings = {member_at(3, 5, 1, 1), member_at(3, 5, 2, 1),
                                                member_at(3, 5, 3, 2), member_at(3, 5)};
  const ReshapeGround ground = ground_of(openings);
  EXPECT_EQ(ground, (ReshapeGround{4, 2}));
  EXPECT_FALSE(openings[0].has(ground)) << "it would not have two if it has one";
  EXPECT_TRUE(openings[1].can_advance_to(ground));
  EXPECT_EQ(openings[1].digest_of(ground), 7u);
  EXPECT_TRUE(openings[2].can_advance_to(ground));
  EXPECT_FALSE(openings[3].has(ground));
  EXPECT_FALSE(openings[3].is_newcomer(ground)) << "it was a member and has missed a change";
}

// A death has come into the agreement on it: one has gone on already.
TEST(ReshapeGrounds, OthersFollowWhoHasGoneOn) {
  const std::vector<ReshapeOpening> openings = {member_at(4, 2), member_at(3, 5, 2, 1),
                                                member_at(3, 5, 3, 2), member_at(4, 1)};
  const ReshapeGround ground = ground_of(openings);
  EXPECT_EQ(ground, (ReshapeGround{4, 2}));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(openings[i].has(ground)) << i;
  EXPECT_FALSE(openings[3].has(ground)) << "it has gone on from elsewhere";
}

TEST(ReshapeGrounds, WhoHoldsNothingHasMissedNothing) {
  ReshapeOpening opening = member_at(2, 1);
  EXPECT_FALSE(opening.is_newcomer({4, 2}));
  opening.holds_anything = 0;
  EXPECT_TRUE(opening.is_newcomer({4, 2}));
  EXPECT_FALSE(opening.is_newcomer({2, 1}));
}

TEST_F(Reshaping, NobodyHasAnything) {
  ShardedState state(*session_);
  const auto report = reshape(*session_, state, layout_of(kPlain));
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("nobody has a state"), std::string::npos);
}

// A move is damaged on its way: the receiver notices, and says which piece, whose and where.
TEST_F(Reshaping, DamageIsNamed) {
  const Layout layout = layout_of(kPlain);
  tensor::Plan plan = *make_plan(layout, layout);
  plan.members[0] = tensor::kNewcomer;  // as if it came from another process
  auto state = ShardedState::allocate(*session_, layout);
  auto target = ShardedState::allocate(*session_, layout);
  ReshapeScene scene{.session = *session_, .plan = plan, .from = layout};
  scene.givers = scene.takers = {0};
  scene.old_rank = scene.new_rank = 0;
  ReadableMemory& source = scene.sources[0];
  source.holding = state->holding();
  scene.is_reachable = [](Rank, Rank) { return true; };
  scene.target = &target->holding();
  for (size_t b = 0; b < state->holding().buffers.size(); ++b) {
    source.buffers.push_back(state->buffer(b).data());
    scene.target_buffers.push_back(target->buffer(b).data());
    scene.is_kept.push_back(false);
  }
  ReshapeWork work(scene);
  ASSERT_TRUE(work.run(1, {}).ok());
  std::vector<uint64_t> sums = work.own_sums();
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_TRUE(work.compare(sums).ok());
  for (uint64_t& sum : sums) {
    sum ^= 1;
    const Status status = work.compare(sums);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("arrived damaged: rank 0"), std::string::npos);
    sum ^= 1;
  }
}

}  // namespace
}  // namespace pliant
