#include "pliant/policy/topology_by_interference.h"

#include <gtest/gtest.h>

#include <map>

#include "pliant/policy/test_signals.h"

namespace pliant {
namespace {

// A job on a network on which interference slows some topologies down, and which does what the
// policy says at once. "auto" is whatever is best by the last measured links.
class Job {
 public:
  explicit Job(TopologyByInterferenceOptions options = {}) : policy(options) {}

  double seconds_of(const std::string& name) const {
    const std::string real = name == "auto" ? automatic : name;
    if (!is_disturbed) return real == "ring" ? 0.10 : 0.12;
    return severity * (real == "ring" ? 0.40 : real == "star" ? 0.20 : 0.3);
  }
  Signals signals() {
    Signals signals = step_signals(++now, members, seconds_of(topology));
    signals.topology = topology;
    signals.step_seconds = 0.5 + seconds_of(topology);
    signals.compute_seconds = 0.5;
    for (MemberSignals& member : signals.by_rank) member.compute_seconds = 0.5;
    if (bandwidth_known)
      signals.links = {{.from_host = 0, .to_host = 1, .bytes_per_second = measured}};
    return signals;
  }
  Decision step() { return apply(policy.after_step(signals())); }
  Decision apply(const Decision& decision) {
    if (decision.empty()) return decision;
    EXPECT_FALSE(decision.reason.empty());
    reason = decision.reason;
    ++decisions;
    if (decision.topology) topology = *decision.topology;
    if (decision.measure_links) {
      ++measurements;
      measured = is_disturbed ? 1e7 : 1e8;
      automatic = is_disturbed ? "star" : "ring";
    }
    return decision;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) (void)step();
  }
  int steps_until(bool disturbed_choice) {
    for (int i = 0; i < 2000; ++i) {
      const std::string real = topology == "auto" ? automatic : topology;
      if ((real == "star") == disturbed_choice) return i;
      (void)step();
    }
    return 2000;
  }

  TopologyByInterference policy;
  std::string topology = "auto";
  std::string automatic = "ring";
  std::string reason;
  bool is_disturbed = false;
  bool bandwidth_known = false;
  double severity = 1;
  double measured = 1e8;
  int members = 4;
  int decisions = 0;
  int measurements = 0;
  uint64_t now = 0;
};

TEST(TopologyByInterference, SwitchesWithinTenStepsAndBackWhenLifted) {
  for (const bool bandwidth_known : {false, true}) {
    Job job;
    job.bandwidth_known = bandwidth_known;
    job.steps(50);
    EXPECT_EQ(job.decisions, 0);
    job.is_disturbed = true;
    EXPECT_LE(job.steps_until(true), 10);
    EXPECT_NE(job.reason.find("4 of 4 members saw collectives take 400 ms against 100 ms"),
              std::string::npos)
        << job.reason;
    job.steps(60);
    EXPECT_EQ(job.automatic, "star") << job.reason;
    job.is_disturbed = false;
    EXPECT_LE(job.steps_until(false), 10) << "the network got faster: it looks at once";
    const int decisions = job.decisions;
    job.steps(300);
    EXPECT_EQ(job.decisions, decisions) << job.reason;
    job.is_disturbed = true;
    EXPECT_LE(job.steps_until(true), 10) << "and it still watches";
  }
}

TEST(TopologyByInterference, TakesAGivenFallbackAndComesHome) {
  Job job({.fallbacks = {"star"}});
  job.topology = "ring";
  job.steps(20);
  job.is_disturbed = true;
  EXPECT_LE(job.steps_until(true), 10);
  EXPECT_EQ(job.topology, "star");
  job.is_disturbed = false;
  job.steps(40);
  EXPECT_EQ(job.topology, "ring");
}

TEST(TopologyByInterference, LooksLaterAfterEachLookThatFailed) {
  Job job({.fallbacks = {"star"}});
  job.topology = "ring";
  job.steps(20);
  job.is_disturbed = true;
  job.steps(1300);
  EXPECT_LE(job.decisions, 13);  // looks after 20, 40, 80, 160, 320, 640 steps, two decisions each
  EXPECT_GE(job.decisions, 9);
  EXPECT_EQ(job.topology, "star");
}

TEST(TopologyByInterference, InterferenceThatGrowsIsMeasuredAgain) {
  Job job({.back_off = 500});
  job.steps(20);
  job.is_disturbed = true;
  EXPECT_LE(job.steps_until(true), 10);
  job.steps(20);
  const int measurements = job.measurements;
  job.steps(20);
  EXPECT_EQ(job.measurements, measurements);
  job.severity = 2;
  job.steps(10);
  EXPECT_EQ(job.measurements, measurements + 1);
  EXPECT_EQ(job.reason,
            "collectives take 400 ms with auto too, against 200 ms; links are measured, then auto");
}

TEST(TopologyByInterference, KnownLinksSpareTheTripHome) {
  Job job({.fallbacks = {"star"}});
  job.bandwidth_known = true;
  job.topology = "ring";
  job.steps(20);
  job.is_disturbed = true;
  EXPECT_LE(job.steps_until(true), 10);
  for (int i = 0; i < 500; ++i) {
    (void)job.step();
    EXPECT_EQ(job.topology, "star");
  }
  EXPECT_GE(job.measurements, 4);
}

TEST(TopologyByInterference, AStragglerIsNoInterference) {
  Job job;
  job.steps(20);
  for (int i = 0; i < 100; ++i) {
    Signals signals = job.signals();
    signals.by_rank[2].compute_seconds += 1.0;
    for (size_t rank : {0u, 1u, 3u}) signals.by_rank[rank].wait_seconds += 1.0;
    signals.step_seconds += 1.0;
    EXPECT_TRUE(job.policy.after_step(signals).empty());
  }
}

TEST(TopologyByInterference, OneMemberOrOneStepIsNoMajority) {
  Job job;
  job.steps(20);
  for (int i = 0; i < 100; ++i) {
    Signals signals = job.signals();
    signals.by_rank[0].wait_seconds += 1.0;  // two of four are not more than half
    signals.by_rank[1].wait_seconds += 1.0;
    EXPECT_TRUE(job.policy.after_step(signals).empty());
    Signals hiccup = job.signals();
    if (i % 3 == 0)
      for (MemberSignals& member : hiccup.by_rank) member.wait_seconds += 1.0;
    EXPECT_TRUE(job.policy.after_step(hiccup).empty());
  }
}

TEST(TopologyByInterference, WaitingThatDoesNotMatterIsLeftAlone) {
  Job job({.share_min = 0.9});
  job.steps(20);
  job.is_disturbed = true;
  job.steps(100);
  EXPECT_EQ(job.decisions, 0);
}

TEST(TopologyByInterference, ANewViewIsLearnedAnewAtHome) {
  Job job({.fallbacks = {"star"}});
  job.topology = "ring";
  job.steps(20);
  job.is_disturbed = true;
  EXPECT_LE(job.steps_until(true), 10);
  job.is_disturbed = false;
  job.members = 5;
  (void)job.step();
  EXPECT_EQ(job.topology, "ring");
  job.steps(100);
  EXPECT_EQ(job.topology, "ring");
}

TEST(TopologyByInterference, ANewcomerDecidesLikeTheOthers) {
  Job job;
  job.steps(20);
  job.is_disturbed = true;
  job.steps(2);
  TopologyByInterference newcomer({});
  hand_over(job.policy, newcomer);
  const Signals signals = job.signals();
  const Decision decision = newcomer.after_step(signals);
  EXPECT_FALSE(decision.empty());
  EXPECT_EQ(decision, job.policy.after_step(signals));
}

TEST(TopologyByInterference, OneMemberHasNoNetwork) {
  TopologyByInterference policy({});
  for (uint64_t step = 1; step < 50; ++step)
    EXPECT_TRUE(policy.after_step(step_signals(step, 1, step > 20 ? 0.9 : 0.0)).empty());
}

}  // namespace
}  // namespace pliant
