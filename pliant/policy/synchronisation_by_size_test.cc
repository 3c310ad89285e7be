#include "pliant/policy/synchronisation_by_size.h"

#include <gtest/gtest.h>

#include "pliant/policy/test_signals.h"

namespace pliant {
namespace {

// A job that does what the policy says, at once.
class Job {
 public:
  explicit Job(SynchronisationBySizeOptions options) : policy(options) {}

  void start(int members) { apply(policy.before_train(signals(members, 0))); }
  void step(int members, double wait_share = 0) {
    apply(policy.after_step(signals(members, wait_share)));
  }
  void steps(int count, int members, double wait_share = 0) {
    for (int i = 0; i < count; ++i) step(members, wait_share);
  }
  Signals signals(int members, double wait_share) {
    Signals signals = step_signals(now++, members, wait_share);
    signals.synchronisation = synchronisation;
    return signals;
  }
  void apply(const Decision& decision) {
    if (!decision.synchronisation) return;
    synchronisation = *decision.synchronisation;
    reason = decision.reason;
    ++changes;
  }

  SynchronisationBySize policy;
  Synchronisation synchronisation = Synchronisation::kSynchronous;
  std::string reason;
  int changes = 0;
  uint64_t now = 0;
};

constexpr auto kSynchronous = Synchronisation::kSynchronous;
constexpr auto kModels = Synchronisation::kModelAveraging;
constexpr auto kPairs = Synchronisation::kPairAveraging;

TEST(SynchronisationBySize, FollowsTheSizeLikeSpotnik) {
  Job job({});
  job.start(1);
  EXPECT_EQ(job.changes, 0);
  job.step(2);
  EXPECT_EQ(job.synchronisation, kSynchronous);
  job.step(3);
  EXPECT_EQ(job.synchronisation, kModels);
  EXPECT_EQ(job.reason, "model_averaging for 3 members");
  job.step(9);
  EXPECT_EQ(job.synchronisation, kPairs);
  job.step(1);
  EXPECT_EQ(job.synchronisation, kSynchronous);
  EXPECT_EQ(job.changes, 3);
}

TEST(SynchronisationBySize, StartsAsTheSizeAsks) {
  Job job({});
  job.start(16);
  EXPECT_EQ(job.synchronisation, kPairs);
}

TEST(SynchronisationBySize, OneMemberThatComesAndGoesSwitchesOnce) {
  Job job({});
  job.start(8);
  for (int i = 0; i < 20; ++i) {
    job.step(9);
    job.step(8);
  }
  EXPECT_EQ(job.synchronisation, kPairs);
  EXPECT_EQ(job.changes, 2);  // models at the start, pairs with the ninth
  job.step(7);
  EXPECT_EQ(job.synchronisation, kModels);
}

TEST(SynchronisationBySize, CongestionLoosensAndTheEndOfItTightens) {
  Job job({.congestion = 0.4, .window = 10});
  job.start(2);
  job.steps(10, 2, 0.3);
  EXPECT_EQ(job.synchronisation, kSynchronous);
  job.steps(10, 2, 0.6);
  EXPECT_EQ(job.synchronisation, kModels);
  EXPECT_EQ(job.reason,
            "model_averaging for 2 members: 60 % of the last 10 steps was waiting, more than 40 %");
  job.steps(39, 2, 0.1);
  EXPECT_EQ(job.synchronisation, kModels);
  job.step(2, 0.1);
  EXPECT_EQ(job.synchronisation, kSynchronous) << "four windows later it tries again";
  job.steps(200, 2, 0.1);
  EXPECT_EQ(job.synchronisation, kSynchronous);
}

TEST(SynchronisationBySize, TriesLaterAfterEachTrialThatFailed) {
  Job job({.congestion = 0.4, .window = 10});
  job.start(2);
  // The synchronous way is congested all the time, the looser one never.
  for (int i = 0; i < 2000; ++i) job.step(2, job.synchronisation == kSynchronous ? 0.8 : 0.1);
  EXPECT_EQ(job.synchronisation, kModels);
  EXPECT_LE(job.changes, 14);  // after 4, 8, 16, 32, 64, 64 windows
  EXPECT_GE(job.changes, 8);
}

TEST(SynchronisationBySize, NothingIsLooserThanPairs) {
  Job job({.congestion = 0.4, .window = 10});
  job.start(16);
  job.steps(500, 16, 0.9);
  EXPECT_EQ(job.synchronisation, kPairs);
  EXPECT_EQ(job.changes, 1);
}

TEST(SynchronisationBySize, ByStepWhateverTheSizeIs) {
  Job job({.change_step = 10});
  job.start(16);
  EXPECT_EQ(job.synchronisation, kModels);
  EXPECT_EQ(job.reason, "model_averaging until step 10");
  while (job.now < 10) job.step(16);
  EXPECT_EQ(job.synchronisation, kModels);
  job.step(16);
  EXPECT_EQ(job.synchronisation, kSynchronous);
  EXPECT_EQ(job.reason, "synchronous from step 10");
  job.steps(10, 1);
  EXPECT_EQ(job.changes, 2);
}

TEST(SynchronisationBySize, ANewcomerDecidesLikeTheOthers) {
  const SynchronisationBySizeOptions options{.congestion = 0.4, .window = 10};
  Job job(options);
  job.start(2);
  job.steps(9, 2, 0.7);
  SynchronisationBySize newcomer(options);
  hand_over(job.policy, newcomer);
  const Signals signals = job.signals(2, 0.7);
  const Decision decision = newcomer.after_step(signals);
  EXPECT_EQ(decision.synchronisation, kModels);
  EXPECT_EQ(decision, job.policy.after_step(signals));
}

}  // namespace
}  // namespace pliant
