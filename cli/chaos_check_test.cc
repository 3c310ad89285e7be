#include "cli/chaos_check.h"

#include <gtest/gtest.h>

#include <vector>

#include "pliant/base/checksum.h"

namespace pliant::cli {
namespace {

constexpr uint64_t kSamples = 1'000;

// A worker that commits steps of one sample each.
class Worker {
 public:
  void commit(uint32_t epoch, uint64_t sample) {
    apply_step(state_, mix_sample(sample));
    ChaosRecord record;
    record.step = ++step_;
    record.epoch = epoch;
    record.contributors = 1;
    record.samples = 1;
    record.sample_sum = mix_sample(sample);
    record.state = checksum64(std::as_bytes(std::span(state_)));
    records.push_back(record);
  }

  std::vector<ChaosRecord> records;

 private:
  std::vector<uint64_t> state_ = std::vector<uint64_t>(kStateElements, 1);
  uint64_t step_ = 0;
};

ChaosVerdict judge(const Worker& one, const Worker& other) {
  return judge_chaos({{1, one.records}, {2, other.records}}, {.samples = kSamples});
}

TEST(ChaosCheckTest, AgreementIsNoDivergence) {
  Worker worker;
  for (uint64_t sample = 0; sample < 5; ++sample) worker.commit(1, sample);
  const ChaosVerdict verdict = judge(worker, worker);
  EXPECT_TRUE(verdict.divergences.empty());
  EXPECT_EQ(verdict.steps, 5U);
  EXPECT_EQ(verdict.commits, 10U);
}

TEST(ChaosCheckTest, ADifferentStepInOneViewIsADivergence) {
  Worker one;
  Worker other;
  one.commit(1, 1);
  other.commit(1, 2);
  EXPECT_FALSE(judge(one, other).divergences.empty());
  EXPECT_FALSE(judge(other, one).divergences.empty());
}

// All who committed a step died before anybody of the next view heard of it.
TEST(ChaosCheckTest, AStepMayBeLostWithAllWhoCommittedIt) {
  Worker dead;
  Worker survivor;
  for (Worker* worker : {&dead, &survivor}) worker->commit(1, 1);
  dead.commit(1, 2);
  survivor.commit(2, 3);
  survivor.commit(2, 4);
  for (const ChaosVerdict& verdict : {judge(dead, survivor), judge(survivor, dead)}) {
    EXPECT_TRUE(verdict.divergences.empty()) << verdict.divergences[0];
    EXPECT_EQ(verdict.lost_commits, 1U);
    EXPECT_EQ(verdict.steps, 3U);
  }
}

TEST(ChaosCheckTest, WhoGoesOnFromALostCommitDiverges) {
  Worker one;
  Worker other;
  one.commit(1, 1);
  one.commit(2, 3);
  other.commit(2, 2);
  other.commit(2, 3);
  EXPECT_FALSE(judge(one, other).divergences.empty());
  EXPECT_FALSE(judge(other, one).divergences.empty());
}

TEST(ChaosCheckTest, AMissingStepIsADivergence) {
  Worker worker;
  for (uint64_t sample = 0; sample < 3; ++sample) worker.commit(1, sample);
  worker.records.erase(worker.records.begin() + 1);
  EXPECT_FALSE(judge_chaos({{1, worker.records}}, {.samples = kSamples}).divergences.empty());
}

TEST(ChaosCheckTest, ASampleThatCountsTwiceIsADivergence) {
  Worker worker;
  for (uint64_t sample = 0; sample < kSamples; ++sample) worker.commit(1, sample == 1 ? 0 : sample);
  EXPECT_FALSE(judge_chaos({{1, worker.records}}, {.samples = kSamples}).divergences.empty());
}

}  // namespace
}  // namespace pliant::cli
