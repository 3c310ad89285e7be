// What a member alone can show of the synchroniser; capi/ and tests/process have the rules with
// several members.
#include "pliant/training/synchroniser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace pliant {
namespace {

constexpr PeerId peer(int slot) { return {0, static_cast<uint16_t>(slot), 1}; }

TEST(ChoosePartner, NeverOneselfAndEverybodyAlike) {
  const std::vector<PeerId> members = {peer(0), peer(1), peer(2), peer(3), peer(4)};
  for (int self = 0; self < 5; ++self) {
    std::map<Rank, int> chosen;
    for (uint64_t step = 1; step <= 4000; ++step) {
      const auto partner = choose_partner(1, step, peer(self), members);
      ASSERT_TRUE(partner);
      ++chosen[*partner];
    }
    EXPECT_FALSE(chosen.contains(self));
    EXPECT_EQ(chosen.size(), 4u);
    for (const auto& [rank, times] : chosen) EXPECT_NEAR(times, 1000, 150) << rank;
  }
}

TEST(ChoosePartner, IsAFunctionOfSeedStepAndSelf) {
  const std::vector<PeerId> members = {peer(0), peer(1), peer(2), peer(3)};
  int differs[3] = {};
  for (uint64_t step = 1; step <= 100; ++step) {
    const auto partner = choose_partner(1, step, peer(0), members);
    EXPECT_EQ(partner, choose_partner(1, step, peer(0), members));
    differs[0] += partner != choose_partner(2, step, peer(0), members);
    differs[1] += partner != choose_partner(1, step + 1, peer(0), members);
    differs[2] += partner != choose_partner(1, step, peer(1), members);
  }
  for (const int times : differs) EXPECT_GT(times, 30);
}

TEST(ChoosePartner, AloneThereIsNone) {
  EXPECT_FALSE(choose_partner(1, 1, peer(0), std::vector<PeerId>{peer(0)}));
  EXPECT_FALSE(choose_partner(1, 1, peer(0), std::vector<PeerId>{}));
}

class Alone : public testing::Test {
 protected:
  Result<std::unique_ptr<Synchroniser>> make(const Synchroniser::Options& options) {
    return Synchroniser::make(
        *session_, {{"model", model_.data(), gradients_.data(), model_.size(), DType::kF32}},
        options);
  }
  std::string refusal(const Synchroniser::Options& options) {
    const auto made = make(options);
    return made ? "" : made.error().message;
  }
  std::string refusal(std::vector<Bucket> buckets) {
    const auto made = Synchroniser::make(*session_, std::move(buckets), {});
    return made ? "" : made.error().message;
  }
  // One step with gradients of 1, 2 and 3, which are sums over the samples.
  void run_step(Synchroniser& together) {
    Step step = session_->begin_step();
    ASSERT_TRUE(step);
    ASSERT_TRUE(together.begin(step).ok());
    gradients_ = {1, 2, 3};
    const auto committed = together.commit();
    ASSERT_TRUE(committed.ok()) << committed.error().message;
    EXPECT_TRUE(*committed);
    ASSERT_TRUE(together.applied().ok());
  }

  std::unique_ptr<Session> session_ = std::move(*Session::open(SessionOptions{}));
  std::vector<float> model_ = {10, 20, 30};
  std::vector<float> gradients_ = {0, 0, 0};
};

TEST_F(Alone, GradientsAreTheMeanOverTheSamplesInEveryWay) {
  ASSERT_TRUE(session_->use_sampler({.samples = 100, .global_batch = 4, .epochs = 0}).ok());
  auto together = make({.may_switch = true});
  ASSERT_TRUE(together.ok());
  for (const auto way : {Synchronisation::kSynchronous, Synchronisation::kModelAveraging,
                         Synchronisation::kPairAveraging, Synchronisation::kSynchronous}) {
    ASSERT_TRUE((*together)->switch_to(way).ok());
    EXPECT_EQ((*together)->synchronisation(), way);
    run_step(**together);
    EXPECT_EQ(gradients_, (std::vector<float>{0.25, 0.5, 0.75})) << to_string(way);
    EXPECT_EQ(model_, (std::vector<float>{10, 20, 30})) << to_string(way);
    EXPECT_EQ((*together)->pulls_missed(), 0u);
  }
}

TEST_F(Alone, CompressionChangesNothing) {
  ASSERT_TRUE(session_->use_sampler({.samples = 100, .global_batch = 4, .epochs = 0}).ok());
  auto together = make({.compression = Compression::kInt8});
  ASSERT_TRUE(together.ok());
  for (int step = 0; step < 3; ++step) {
    run_step(**together);
    EXPECT_EQ(gradients_, (std::vector<float>{0.25, 0.5, 0.75}));
  }
}

TEST_F(Alone, SharedResultsLeaveTheGradientsAsTheyWere) {
  ASSERT_TRUE(session_->use_sampler({.samples = 100, .global_batch = 4, .epochs = 0}).ok());
  auto together = make({.share_results = true});
  ASSERT_TRUE(together.ok());
  run_step(**together);
  EXPECT_EQ(gradients_, (std::vector<float>{1, 2, 3}));
  const auto bytes = (*together)->gradients(0);
  ASSERT_EQ(bytes.size(), 3 * sizeof(float));
  EXPECT_EQ(reinterpret_cast<const float*>(bytes.data())[2], 0.75F);
}

TEST_F(Alone, WrongOptionsAreNamed) {
  EXPECT_EQ(refusal(Synchroniser::Options{.alpha = 0}),
            "alpha is 0: it must be above 0 and at most 1");
  EXPECT_NE(refusal(Synchroniser::Options{.alpha = std::nan("")}), "");
  EXPECT_NE(refusal(Synchroniser::Options{.compression = static_cast<Compression>(9)}), "");
  EXPECT_NE(refusal(Synchroniser::Options{.synchronisation = static_cast<Synchronisation>(9)}), "");
}

TEST_F(Alone, WrongBucketsAreNamed) {
  float* const model = model_.data();
  float* const gradients = gradients_.data();
  EXPECT_EQ(refusal({{"a", model, gradients, 1}, {"a", model + 1, gradients + 1, 1}}),
            "there are two buckets 'a'");
  EXPECT_EQ(refusal({{"a", nullptr, gradients, 1}}), "bucket 'a' has no memory for its parameters");
  EXPECT_EQ(refusal({{"a", model, gradients, 1, DType::kI32}}),
            "bucket 'a' is i32: parameters are f16, bf16, f32 or f64");
  EXPECT_EQ(refusal({{"a", model, nullptr, 1, DType::kBool}}),
            "bucket 'a' is bool, which cannot be averaged");
  EXPECT_NE(refusal({{"", model, gradients, 1}}), "");
  EXPECT_NE(refusal({{"a", model, nullptr, 1}}), "");
  EXPECT_NE(refusal(std::vector<Bucket>{}), "");
}

TEST_F(Alone, TheSynchronousWayIsLeftOnlyIfThatWasSaid) {
  auto together = make({});
  ASSERT_TRUE(together.ok());
  EXPECT_TRUE((*together)->switch_to(Synchronisation::kSynchronous).ok());
  const Status refused = (*together)->switch_to(Synchronisation::kPairAveraging);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("set may_switch"), std::string::npos);
  EXPECT_EQ((*together)->synchronisation(), Synchronisation::kSynchronous);
}

TEST_F(Alone, CallsOutOfOrderAreRefused) {
  auto made = make({.may_switch = true});
  ASSERT_TRUE(made.ok());
  Synchroniser& together = **made;
  EXPECT_FALSE(together.begin(Step()).ok());
  EXPECT_FALSE(together.ready(0).ok());
  EXPECT_FALSE(together.commit().ok());
  Step step = session_->begin_step();
  ASSERT_TRUE(together.begin(step).ok());
  EXPECT_FALSE(together.begin(step).ok());
  EXPECT_FALSE(together.applied().ok());
  EXPECT_FALSE(together.switch_to(Synchronisation::kPairAveraging).ok());
  EXPECT_FALSE(together.ready(1).ok());
  EXPECT_TRUE(together.ready(0).ok());
  EXPECT_FALSE(together.ready(0).ok());
  EXPECT_TRUE(together.commit().ok());
}

}  // namespace
}  // namespace pliant
