#include "pliant/data/sampler.h"

#include <gtest/gtest.h>
#ifdef PLIANT_RAPIDCHECK
#include <rapidcheck.h>
#endif

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "pliant/data/permutation.h"

namespace pliant {
namespace {

// One flag for each member. (A std::vector<bool> has no span.)
class Flags {
 public:
  explicit Flags(size_t size, bool value = true) : size_(size), flags_(new bool[size]) {
    std::fill_n(flags_.get(), size, value);
  }
  Flags(std::initializer_list<bool> flags) : Flags(flags.size()) {
    std::copy(flags.begin(), flags.end(), flags_.get());
  }
  bool& operator[](size_t member) { return flags_[member]; }
  bool operator[](size_t member) const { return flags_[member]; }
  size_t size() const { return size_; }
  operator std::span<const bool>() const { return {flags_.get(), size_}; }  // NOLINT: implicit

 private:
  size_t size_;
  std::unique_ptr<bool[]> flags_;
};

using Parts = std::vector<std::vector<Range>>;
using Ranges = std::vector<Range>;

Sampler sampler_of(const SamplerOptions& options, SamplerState state = {}) {
  auto made = Sampler::make(options, std::move(state));
  PLIANT_CHECK(made.ok(), "the test's options are right");
  return *made;
}

void commit_all(Sampler& sampler, const Draw& draw) {
  sampler.commit(draw, Flags(draw.members.size()));
}

// ---- Draws -------------------------------------------------------------------------------------

TEST(Draw, IsSplitAsEvenlyAsItGoes) {
  const Sampler sampler = sampler_of({.samples = 100, .global_batch = 11});
  EXPECT_EQ(sampler.draw(1).members, (Parts{{{0, 11}}}));
  EXPECT_EQ(sampler.draw(3).members, (Parts{{{0, 4}}, {{4, 8}}, {{8, 11}}}));
  EXPECT_EQ(sampler.draw(4).members, (Parts{{{0, 3}}, {{3, 6}}, {{6, 9}}, {{9, 11}}}));
}

TEST(Draw, LeavesMembersBeyondTheBatchWithNothing) {
  Sampler sampler = sampler_of({.samples = 100, .global_batch = 2});
  const Draw draw = sampler.draw(4);
  EXPECT_EQ(draw.members, (Parts{{{0, 1}}, {{1, 2}}, {}, {}}));
  EXPECT_EQ(draw.samples(), 2u);
  commit_all(sampler, draw);
  EXPECT_EQ(sampler.state(), (SamplerState{.epoch = 0, .cursor = 2, .returned = {}}));
}

TEST(Draw, EndsWithItsEpoch) {
  Sampler sampler = sampler_of({.samples = 10, .global_batch = 4, .epochs = 2});
  for (const uint64_t epoch : {0u, 1u})
    for (const uint64_t size : {4u, 4u, 2u}) {
      const Draw draw = sampler.draw(2);
      EXPECT_EQ(draw.epoch, epoch);
      EXPECT_EQ(draw.samples(), size);
      EXPECT_FALSE(sampler.done());
      commit_all(sampler, draw);
    }
  EXPECT_TRUE(sampler.done());
  const Draw nothing = sampler.draw(3);
  EXPECT_TRUE(nothing.empty());
  EXPECT_EQ(nothing.members.size(), 3u);
  commit_all(sampler, nothing);
  EXPECT_TRUE(sampler.done());
}

TEST(Draw, OfABatchLargerThanTheDatasetIsTheEpoch) {
  Sampler sampler = sampler_of({.samples = 3, .global_batch = 1000, .epochs = 0});
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const Draw draw = sampler.draw(2);
    EXPECT_EQ(draw, (Draw{.epoch = epoch, .members = {{{0, 2}}, {{2, 3}}}}));
    commit_all(sampler, draw);
  }
  EXPECT_FALSE(sampler.done()) << "0 epochs are no end";
}

TEST(Draw, OfOneSample) {
  Sampler sampler = sampler_of({.samples = 1, .global_batch = 1, .epochs = 1});
  const Draw draw = sampler.draw(5);
  EXPECT_EQ(draw.members, (Parts{{{0, 1}}, {}, {}, {}, {}}));
  EXPECT_EQ(sampler.indices(draw, 0), std::vector<uint64_t>{0});
  EXPECT_TRUE(sampler.indices(draw, 4).empty());
  commit_all(sampler, draw);
  EXPECT_TRUE(sampler.done());
}

TEST(Draw, OfTheLargestDataset) {
  const uint64_t all = Permutation::kSizeMax;
  Sampler sampler = sampler_of({.samples = all, .global_batch = UINT64_MAX, .epochs = 0});
  Draw draw = sampler.draw(2);
  EXPECT_EQ(draw.members, (Parts{{{0, all / 2}}, {{all / 2, all}}}));
  sampler.commit(draw, Flags{false, true});
  EXPECT_EQ(sampler.state(), (SamplerState{.cursor = all, .returned = {{0, all / 2}}}));
  commit_all(sampler, sampler.draw(3));
  EXPECT_EQ(sampler.state(), (SamplerState{.epoch = 1}));
}

// ---- Losses ------------------------------------------------------------------------------------

TEST(Commit, ReturnsWhatWasNotContributedToTheNextDraw) {
  Sampler sampler = sampler_of({.samples = 100, .global_batch = 8});
  const Draw first = sampler.draw(4);
  EXPECT_EQ(contributed_samples(first, Flags{true, false, true, true}), 6u);
  sampler.commit(first, Flags{true, false, true, true});
  EXPECT_EQ(sampler.state(), (SamplerState{.cursor = 8, .returned = {{2, 4}}}));
  EXPECT_EQ(sampler.state().consumed_in_epoch(), 6u);
  const Draw second = sampler.draw(3);
  EXPECT_EQ(second.members, (Parts{{{2, 4}, {8, 9}}, {{9, 12}}, {{12, 14}}}));
  EXPECT_EQ(second.samples(), 8u) << "the global batch does not shrink with the members";
  sampler.commit(second, Flags{false, true, true});
  EXPECT_EQ(sampler.state(), (SamplerState{.cursor = 14, .returned = {{2, 4}, {8, 9}}}));
}

TEST(Commit, OfNobodyChangesNothing) {
  Sampler sampler = sampler_of({.samples = 20, .global_batch = 8, .epochs = 2});
  sampler.commit(sampler.draw(4), Flags{true, false, true, true});
  const SamplerState before = sampler.state();
  for (const int members : {1, 3, 9}) {
    sampler.commit(sampler.draw(members), Flags(static_cast<size_t>(members), false));
    EXPECT_EQ(sampler.state(), before);
  }
}

TEST(Commit, MovesTheCursorBackOverWhatTheLastMembersReturn) {
  Sampler sampler = sampler_of({.samples = 100, .global_batch = 9});
  sampler.commit(sampler.draw(3), Flags{true, false, false});
  EXPECT_EQ(sampler.state(), (SamplerState{.cursor = 3, .returned = {}}));
}

TEST(Commit, MergesNeighbours) {
  Sampler sampler = sampler_of({.samples = 100, .global_batch = 10});
  sampler.commit(sampler.draw(5), Flags{true, false, false, true, true});
  EXPECT_EQ(sampler.state().returned, (Ranges{{2, 6}}));
}

TEST(Commit, EndsAnEpochOnlyWhenNothingIsReturned) {
  Sampler sampler = sampler_of({.samples = 8, .global_batch = 8, .epochs = 2});
  sampler.commit(sampler.draw(4), Flags{false, true, true, true});
  EXPECT_EQ(sampler.state(), (SamplerState{.cursor = 8, .returned = {{0, 2}}}));
  const Draw rest = sampler.draw(4);
  EXPECT_EQ(rest, (Draw{.epoch = 0, .members = {{{0, 1}}, {{1, 2}}, {}, {}}}));
  sampler.commit(rest, Flags{true, false, true, true});
  EXPECT_EQ(sampler.draw(1), (Draw{.epoch = 0, .members = {{{1, 2}}}}));
  commit_all(sampler, sampler.draw(1));
  EXPECT_EQ(sampler.state(), (SamplerState{.epoch = 1}));
}

TEST(CommitDeathTest, NothingIsConsumedTwice) {
  Sampler sampler = sampler_of({.samples = 10, .global_batch = 4});
  const Draw draw = sampler.draw(2);
  EXPECT_DEATH(sampler.commit(draw, Flags{true}), "one flag for each member");
  commit_all(sampler, draw);
  EXPECT_DEATH(commit_all(sampler, draw), "consumed twice");
  EXPECT_DEATH(commit_all(sampler, {.epoch = 0, .members = {{{3, 5}}}}), "consumed twice");
  EXPECT_DEATH(commit_all(sampler, {.epoch = 0, .members = {{{5, 7}}, {{6, 8}}}}),
               "consumed twice");
  EXPECT_DEATH(commit_all(sampler, {.epoch = 0, .members = {{{8, 11}}}}), "none of the epoch");
  EXPECT_DEATH(commit_all(sampler, {.epoch = 1, .members = {{{4, 6}}}}), "its own epoch");
}

TEST(Redraw, SplitsTheLostOverThoseWhoAreAble) {
  Sampler sampler = sampler_of({.samples = 100, .global_batch = 16});
  const Draw draw = sampler.draw(4);
  const Flags contributed{true, false, true, false};
  const Draw extra = redraw_lost(draw, contributed, contributed);
  EXPECT_EQ(extra, (Draw{.epoch = 0, .members = {{{4, 8}}, {}, {{12, 16}}, {}}}));
  EXPECT_EQ(contributed_samples(draw, contributed) + contributed_samples(extra, contributed), 16u);
  sampler.commit(draw, contributed);
  sampler.commit(extra, contributed);
  EXPECT_EQ(sampler.state(), (SamplerState{.cursor = 16, .returned = {}}));
}

TEST(Redraw, AsksNothingOfTheDead) {
  const Draw draw = sampler_of({.samples = 100, .global_batch = 10}).draw(5);
  // The first had handed in its gradients; neighbours that are lost are one range.
  const Draw extra = redraw_lost(draw, Flags{true, false, false, true, true},
                                 Flags{false, false, false, true, true});
  EXPECT_EQ(extra.members, (Parts{{}, {}, {}, {{2, 4}}, {{4, 6}}}));
  const Draw whole = redraw_lost(draw, Flags{true, false, false, true, true},
                                 Flags{false, false, false, true, false});
  EXPECT_EQ(whole.members[3], (Ranges{{2, 6}}));
}

TEST(Redraw, OfNothingOrForNobodyIsEmpty) {
  const Draw draw = sampler_of({.samples = 100, .global_batch = 10}).draw(3);
  EXPECT_TRUE(redraw_lost(draw, Flags(3), Flags(3)).empty());
  EXPECT_TRUE(redraw_lost(draw, Flags(3, false), Flags(3, false)).empty());
  EXPECT_EQ(redraw_lost(draw, Flags(3, false), Flags(3)), draw);
}

// ---- Indices -----------------------------------------------------------------------------------

TEST(Indices, FollowTheOrderOfTheEpoch) {
  const SamplerOptions options{.samples = 50, .global_batch = 10, .seed = 9, .epochs = 0};
  const Sampler sampler = sampler_of(options, {.epoch = 3, .cursor = 20, .returned = {{4, 6}}});
  const Draw draw = sampler.draw(2);
  const Permutation order(50, 9, 3);
  EXPECT_EQ(sampler.indices(draw, 0), (std::vector<uint64_t>{order.at(4), order.at(5), order.at(20),
                                                             order.at(21), order.at(22)}));
  EXPECT_EQ(sampler.indices(draw, 1),
            (std::vector<uint64_t>{order.at(23), order.at(24), order.at(25), order.at(26),
                                   order.at(27)}));
}

TEST(Indices, OfADrawOutliveItsEpoch) {
  Sampler sampler = sampler_of({.samples = 50, .global_batch = 50, .epochs = 0});
  const Draw draw = sampler.draw(2);
  const auto before = sampler.indices(draw, 1);
  commit_all(sampler, draw);
  ASSERT_EQ(sampler.state().epoch, 1u);
  EXPECT_EQ(sampler.indices(draw, 1), before);
  EXPECT_NE(sampler.indices(sampler.draw(2), 1), before) << "each epoch has its own order";
}

TEST(Indices, WithoutShufflingAreThePositions) {
  const Sampler sampler = sampler_of({.samples = 50, .global_batch = 4, .shuffle = false});
  EXPECT_EQ(sampler.indices(sampler.draw(2), 1), (std::vector<uint64_t>{2, 3}));
}

// ---- Whole histories ---------------------------------------------------------------------------

// Gives the next of a row of choices: a number below `bound`.
using Choose = std::function<uint64_t(uint64_t bound)>;

// Trains to the end while members come, go and die as chosen, and judges from outside: which sample
// was computed by a member whose contribution counted, in which epoch.
class History {
 public:
  History(const SamplerOptions& options, Choose choose)
      : options_(options), choose_(std::move(choose)), sampler_(sampler_of(options)) {}

  // Returns what went wrong, or nothing.
  std::string run() {
    while (!sampler_.done() && fault_.empty()) step();
    if (!fault_.empty()) return fault_;
    for (uint64_t epoch = 0; epoch < options_.epochs; ++epoch)
      if (seen_[epoch].size() != options_.samples)
        return "epoch " + std::to_string(epoch) + " has " + std::to_string(seen_[epoch].size());
    return seen_.size() == options_.epochs ? "" : "a sample of another epoch";
  }
  const std::map<uint64_t, std::set<uint64_t>>& seen() const { return seen_; }
  const Sampler& sampler() const { return sampler_; }

 private:
  void step() {
    const auto members = 1 + choose_(12);
    const Draw draw = sampler_.draw(static_cast<int>(members));
    const uint64_t left = options_.samples - sampler_.state().consumed_in_epoch();
    if (draw.samples() != std::min(options_.global_batch, left)) fault_ = "a draw of another size";
    const Flags contributed = losses(members);
    count(draw, contributed);
    sampler_.commit(draw, contributed);
    if (choose_(3) == 0) redraw(draw, contributed);
    if (choose_(4) == 0) renew();
  }

  // Half of the steps lose somebody.
  Flags losses(uint64_t members) {
    Flags contributed(members);
    if (choose_(2) == 1)
      for (size_t member = 0; member < members; ++member) contributed[member] = choose_(3) != 0;
    return contributed;
  }

  // The constant global batch: who is able computes what was lost, and may be lost meanwhile.
  void redraw(const Draw& draw, const Flags& contributed) {
    const Flags able = losses(contributed.size());
    const Draw extra = redraw_lost(draw, contributed, able);
    if (extra.empty()) return;
    const Flags again = losses(contributed.size());
    count(extra, again);
    sampler_.commit(extra, again);
  }

  void count(const Draw& draw, const Flags& contributed) {
    for (size_t member = 0; member < contributed.size(); ++member) {
      if (!contributed[member]) continue;
      for (const uint64_t number : sampler_.indices(draw, member))
        if (number >= options_.samples || !seen_[draw.epoch].insert(number).second)
          fault_ = "sample " + std::to_string(number) + " is consumed twice or is none";
    }
  }

  // A newcomer goes on from the committed state.
  void renew() {
    const auto state = decode_sampler_state(encode(sampler_.state()));
    if (!state.ok() || *state != sampler_.state())
      fault_ = "the state came back changed";
    else
      sampler_ = sampler_of(options_, *state);
  }

  const SamplerOptions options_;
  const Choose choose_;
  Sampler sampler_;
  std::map<uint64_t, std::set<uint64_t>> seen_;  // samples by epoch
  std::string fault_;
};

TEST(History, HasEverySampleOfEveryEpochInOneContribution) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 prng(seed);
    const SamplerOptions options{.samples = 1 + prng() % (seed % 10 == 0 ? 3000 : 200),
                                 .global_batch = 1 + prng() % 70,
                                 .seed = seed,
                                 .epochs = 1 + prng() % 3,
                                 .shuffle = prng() % 8 != 0};
    History history(options, [&](uint64_t bound) { return prng() % bound; });
    ASSERT_EQ(history.run(), "") << "seed " << seed;
  }
}

TEST(History, IsTheSameForEveryMember) {
  const SamplerOptions options{.samples = 1000, .global_batch = 64, .seed = 5, .epochs = 2};
  std::mt19937_64 prng(3);
  Sampler one = sampler_of(options);
  Sampler other = sampler_of(options);
  while (!one.done()) {
    const auto members = static_cast<int>(1 + prng() % 9);
    const Draw draw = one.draw(members);
    ASSERT_EQ(draw, other.draw(members));
    Flags contributed(draw.members.size());
    for (size_t i = 0; i < contributed.size(); ++i) contributed[i] = prng() % 4 != 0;
    ASSERT_EQ(one.indices(draw, 0), other.indices(draw, 0));
    one.commit(draw, contributed);
    other.commit(draw, contributed);
    ASSERT_EQ(one.state(), other.state());
  }
}

TEST(History, OfADatasetTakesTheSameStepsForAnyNumberOfMembers) {
  for (const int members : {1, 2, 7, 64}) {
    Sampler sampler = sampler_of({.samples = 1003, .global_batch = 50, .epochs = 3});
    int steps = 0;
    for (; !sampler.done(); ++steps) commit_all(sampler, sampler.draw(members));
    EXPECT_EQ(steps, 3 * 21) << members;
  }
}

#ifdef PLIANT_RAPIDCHECK
TEST(History, HoldsForWhateverIsChosen) {
  const bool holds = rc::check("every sample is in one contribution", [] {
    const SamplerOptions options{.samples = *rc::gen::inRange<uint64_t>(1, 300),
                                 .global_batch = *rc::gen::inRange<uint64_t>(1, 80),
                                 .seed = *rc::gen::arbitrary<uint64_t>(),
                                 .epochs = *rc::gen::inRange<uint64_t>(1, 4)};
    const auto choices = *rc::gen::arbitrary<std::vector<uint32_t>>();
    size_t next = 0;
    // When the choices are used up, everybody stays and contributes.
    History history(options, [&](uint64_t bound) {
      return next < choices.size() ? choices[next++] % bound : bound - 1 - (bound == 2 ? 1 : 0);
    });
    RC_ASSERT(history.run() == std::string());
  });
  EXPECT_TRUE(holds);
}
#endif

// ---- State and options -------------------------------------------------------------------------

TEST(State, ComesBackAsItWas) {
  for (const SamplerState& state :
       {SamplerState{}, SamplerState{.epoch = 7, .cursor = 1000, .returned = {}},
        SamplerState{.epoch = 1, .cursor = 50, .returned = {{0, 1}, {2, 9}, {48, 49}}}}) {
    const auto decoded = decode_sampler_state(encode(state));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, state);
  }
}

TEST(State, EveryTruncationAndWhateverFollowsIsRefused) {
  auto bytes = encode({.epoch = 1, .cursor = 50, .returned = {{0, 1}, {2, 9}}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(decode_sampler_state(cut).ok()) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_sampler_state(bytes).ok());
}

TEST(State, ThatCannotBeIsRefused) {
  const auto refused = [](const SamplerState& state) {
    const auto decoded = decode_sampler_state(encode(state));
    return !decoded.ok() && decoded.code() == Code::kInvalid;
  };
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{3, 3}}})) << "an empty range";
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{4, 3}}})) << "a range that ends first";
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{5, 6}, {1, 2}}})) << "descending";
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{1, 4}, {3, 6}}})) << "overlapping";
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{1, 3}, {3, 6}}})) << "touching";
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{7, 9}}})) << "touching the cursor";
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{7, 10}}})) << "beyond the cursor";
  EXPECT_TRUE(refused({.cursor = 9, .returned = {{1, UINT64_MAX}}}));
  EXPECT_TRUE(refused({.cursor = Permutation::kSizeMax + 1}));
  EXPECT_TRUE(refused({.epoch = UINT64_MAX}));
  auto endless = encode(SamplerState{});
  std::memset(endless.data() + endless.size() - 8, 0xff, 8);
  EXPECT_FALSE(decode_sampler_state(endless).ok()) << "more ranges than there are bytes";
  auto newer = encode(SamplerState{});
  newer[0] = std::byte{2};
  EXPECT_FALSE(decode_sampler_state(newer).ok()) << "another encoding";
}

TEST(Options, ThatCannotBeAreRefused) {
  const auto refused = [](const SamplerOptions& options, const SamplerState& state) {
    const auto made = Sampler::make(options, state);
    return !made.ok() && made.code() == Code::kInvalid;
  };
  const SamplerOptions right{.samples = 10, .global_batch = 4};
  EXPECT_FALSE(refused(right, {}));
  EXPECT_TRUE(refused({.samples = 0, .global_batch = 4}, {}));
  EXPECT_TRUE(refused({.samples = Permutation::kSizeMax + 1, .global_batch = 4}, {}));
  EXPECT_TRUE(refused({.samples = 10, .global_batch = 0}, {}));
  EXPECT_TRUE(refused({.samples = 10, .global_batch = 4, .epochs = UINT64_MAX}, {}));
  EXPECT_FALSE(refused(right, {.cursor = 9}));
  EXPECT_FALSE(refused(right, {.cursor = 10, .returned = {{3, 4}}}));
  EXPECT_TRUE(refused(right, {.cursor = 10})) << "consumed, so the next epoch's";
  EXPECT_TRUE(refused(right, {.cursor = 11})) << "of a larger dataset";
  EXPECT_TRUE(refused(right, {.cursor = 5, .returned = {{3, 5}}}));
  EXPECT_TRUE(refused(right, {.epoch = UINT64_MAX}));
}

TEST(Options, MayChangeBetweenSteps) {
  Sampler sampler = sampler_of({.samples = 10, .global_batch = 4});
  commit_all(sampler, sampler.draw(2));
  Sampler larger = sampler_of({.samples = 10, .global_batch = 8, .epochs = 2}, sampler.state());
  EXPECT_EQ(larger.draw(1).members, (Parts{{{4, 10}}}));
  EXPECT_TRUE(sampler_of({.samples = 10, .global_batch = 8}, {.epoch = 3}).done());
}

}  // namespace
}  // namespace pliant
