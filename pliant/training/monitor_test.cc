#include "pliant/training/monitor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "pliant/training/monitor_note.h"

namespace pliant {
namespace {

std::unique_ptr<Session> alone() {
  auto session = Session::open(SessionOptions{});
  EXPECT_TRUE(session.ok());
  return std::move(*session);
}

TEST(Monitor, TellsWhatAMemberAloneHasMeasured) {
  const auto session = alone();
  auto monitor = Monitor::make(*session, {.noise_every = 1});
  ASSERT_TRUE(monitor.ok());
  const std::vector<float> gradients(100, 2.0f);
  for (uint64_t number = 1; number <= 3; ++number) {
    Step step = session->begin_step();
    ASSERT_TRUE(step);
    (*monitor)->begin(step);
    const GradientSpan part{"gradients", gradients.data(), gradients.size(), DType::kF32};
    (*monitor)->gradients({&part, 1}, 8, GradientForm::kSum);
    (*monitor)->loss(1.0, 2);
    (*monitor)->loss(2.0, 6);
    ASSERT_TRUE(step.all_reduce("gradients", gradients.data(), 100, DType::kF32, Op::kMean).ok());
    ASSERT_TRUE((*monitor)->hand_in(step).ok());
    ASSERT_TRUE(step.commit().ok());
    const Signals& signals = (*monitor)->committed(step);
    EXPECT_EQ(signals.step, number);
    EXPECT_EQ(signals.members, 1);
    EXPECT_EQ(signals.hosts, 1);
    EXPECT_EQ(signals.batch, 8u);
    EXPECT_EQ(signals.samples_committed, 8 * number);
    EXPECT_EQ(signals.loss, 1.75);
    EXPECT_EQ(signals.reduced_bytes, 400u);
    EXPECT_EQ(signals.topology, "auto");
    ASSERT_EQ(signals.by_rank.size(), 1u);
    // What a step took is known by the next one, and from commit to commit by the third.
    EXPECT_EQ(signals.by_rank[0].compute_seconds > 0, number > 1);
    EXPECT_EQ(signals.wait_seconds > 0, number > 1);
    EXPECT_EQ(signals.step_seconds > 0, number > 2);
    EXPECT_EQ(signals.samples_per_second > 0, number > 2);
    // One member cannot tell noise from gradient.
    EXPECT_FALSE(signals.noise);
    EXPECT_FALSE(signals.nonfinite);
  }
  EXPECT_EQ((*monitor)->costs().steps, 3u);
  EXPECT_GT((*monitor)->costs().norms_seconds, 0);
  EXPECT_GT((*monitor)->costs().signals_seconds, 0);
}

TEST(Monitor, NamesTheTensorThatIsNotFinite) {
  const auto session = alone();
  auto monitor = Monitor::make(*session, {.noise_every = 2});
  ASSERT_TRUE(monitor.ok());
  const std::vector<float> fine(10, 1.0f), broken(10, std::numeric_limits<float>::infinity());
  const GradientSpan parts[] = {{"a", fine.data(), 10, DType::kF32},
                                {"b", broken.data(), 10, DType::kF32}};
  for (uint64_t number = 1; number <= 3; ++number) {
    Step step = session->begin_step();
    (*monitor)->begin(step);
    EXPECT_EQ((*monitor)->takes_norms(), number == 2);
    (*monitor)->gradients(parts, 1, GradientForm::kMean);
    if (number == 3) (*monitor)->loss(std::nan(""), 1);
    ASSERT_TRUE((*monitor)->hand_in(step).ok());
    ASSERT_TRUE(step.commit().ok());
    const Signals& signals = (*monitor)->committed(step);
    ASSERT_EQ(signals.nonfinite.has_value(), number > 1);
    if (number > 1) {
      EXPECT_EQ(signals.nonfinite->tensor, number == 2 ? 1 : Nonfinite::kLoss);
    }
    EXPECT_TRUE(std::isnan(signals.loss));
  }
}

TEST(Monitor, RefusesADecayThatIsNone) {
  const auto session = alone();
  EXPECT_FALSE(Monitor::make(*session, {.noise_decay = 1}).ok());
}

Signals full_signals() {
  Signals signals;
  signals.step = 7;
  signals.members = 2;
  signals.loss = std::nan("");
  signals.topology = "ring";
  signals.noise = {3, 2, 1};
  signals.straggler = {1, {1, 2, 3}, 2.5};
  signals.nonfinite = {1, {1, 2, 3}, 4};
  signals.by_rank = {{{0, 0, 1}, 1, 2}, {{1, 2, 3}, 3, 4}};
  signals.links = {{0, 1, 1e-3, 1e9}};
  return signals;
}

TEST(MonitorNote, ComesBackBitByBit) {
  const std::vector<std::byte> bytes = encode(full_signals());
  const auto read = decode_signals(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(encode(*read), bytes);
  EXPECT_EQ(read->straggler, full_signals().straggler);
  EXPECT_EQ(read->links, full_signals().links);
}

TEST(MonitorNote, RefusesWhatIsCutShort) {
  const std::vector<std::byte> bytes = encode(full_signals());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_signals(std::span(bytes).first(size)).ok()) << size;
}

}  // namespace
}  // namespace pliant
