#include "pliant/training/adaptation.h"

#include <gtest/gtest.h>

#include <map>

namespace pliant {
namespace {

// Decides by a table: after which step, what.
class Scripted final : public Policy {
 public:
  Scripted(std::string name, std::map<uint64_t, Decision> decisions,
           std::vector<std::string>* hooks = nullptr)
      : name_(std::move(name)), decisions_(std::move(decisions)), hooks_(hooks) {}

  std::string_view name() const override { return name_; }
  Decision before_train(const Signals& now) override { return note("before_train", now); }
  Decision before_epoch(const Signals& now) override { return note("before_epoch", now); }
  Decision before_step(const Signals& now) override { return note("before_step", now); }
  Decision after_epoch(const Signals& now) override { return note("after_epoch", now); }
  Decision after_train(const Signals& now) override { return note("after_train", now); }
  Decision after_step(const Signals& now) override {
    note("after_step", now);
    const auto at = decisions_.find(now.step);
    return at == decisions_.end() ? Decision{} : at->second;
  }

 private:
  Decision note(const char* hook, const Signals& now) {
    if (hooks_) hooks_->push_back(std::string(hook) + " " + std::to_string(now.step));
    return {};
  }

  std::string name_;
  std::map<uint64_t, Decision> decisions_;
  std::vector<std::string>* hooks_;
};

// A training loop of one member with these policies; what was said and seen.
struct Loop {
  std::unique_ptr<Session> session;
  std::unique_ptr<Monitor> monitor;
  std::unique_ptr<Adaptation> adaptation;
  std::vector<std::string> said;
  std::vector<uint64_t> batches;

  explicit Loop(Adaptation::Policies policies, std::optional<SamplerOptions> sampler = {}) {
    auto opened = Session::open(SessionOptions{});
    EXPECT_TRUE(opened.ok());
    session = std::move(*opened);
    if (sampler) {
      EXPECT_TRUE(session->use_sampler(*sampler).ok());
    }
    auto made = Monitor::make(*session);
    EXPECT_TRUE(made.ok());
    monitor = std::move(*made);
    auto adapts =
        Adaptation::make(*session, *monitor, std::move(policies),
                         {.say = [this](std::string_view line) { said.emplace_back(line); }});
    EXPECT_TRUE(adapts.ok());
    adaptation = std::move(*adapts);
  }

  void run(uint64_t steps) {
    for (uint64_t i = 0; i < steps && !adaptation->stopped(); ++i) {
      Step step = session->begin_step();
      if (!step) break;
      monitor->begin(step);
      ASSERT_TRUE(adaptation->begin(step).ok());
      batches.push_back(step.samples().size());
      ASSERT_TRUE(monitor->hand_in(step).ok());
      ASSERT_TRUE(step.commit().ok());
      monitor->committed(step);
      ASSERT_TRUE(adaptation->committed().ok());
    }
    adaptation->finish();
  }
};

Adaptation::Policies policies(std::unique_ptr<Policy> one, std::unique_ptr<Policy> other = {}) {
  Adaptation::Policies all;
  all.push_back(std::move(one));
  if (other) all.push_back(std::move(other));
  return all;
}

TEST(Adaptation, CallsTheHooksInTheirOrder) {
  std::vector<std::string> hooks;
  const std::map<uint64_t, Decision> nothing;
  Loop loop(policies(std::make_unique<Scripted>("watch", nothing, &hooks)),
            SamplerOptions{.samples = 4, .global_batch = 2, .epochs = 2});
  loop.run(10);
  const std::vector<std::string> wanted = {
      "before_train 0", "before_epoch 0", "before_step 0",  "after_step 1",  "before_step 1",
      "after_step 2",   "after_epoch 2",  "before_epoch 2", "before_step 2", "after_step 3",
      "before_step 3",  "after_step 4",   "after_epoch 4",  "after_train 4"};
  EXPECT_EQ(hooks, wanted);
  EXPECT_TRUE(loop.said.empty());
}

TEST(Adaptation, CarriesDecisionsOutAndSaysEachOnce) {
  const Decision batch{.global_batch = 4, .reason = "it is noisy"};
  std::map<uint64_t, Decision> script = {{1, batch}, {2, batch}};
  script[3] = {.learning_rate_factor = 0.5, .reason = "it is late"};
  script[4] = {.synchronisation = Synchronisation::kModelAveraging, .reason = "it is large"};
  script[5] = {.topology = "ring", .measure_links = true, .reason = "it is slow"};
  script[7] = {.stop = true, .reason = "it is good"};
  Loop loop(policies(std::make_unique<Scripted>("script", script)),
            SamplerOptions{.samples = 100, .global_batch = 2, .epochs = 0});
  loop.run(20);
  EXPECT_EQ(loop.batches, (std::vector<uint64_t>{2, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(loop.adaptation->global_batch(), 4u);
  EXPECT_EQ(loop.adaptation->learning_rate_factor(), 0.5);
  EXPECT_EQ(loop.adaptation->take_synchronisation(), Synchronisation::kModelAveraging);
  EXPECT_EQ(loop.adaptation->take_synchronisation(), std::nullopt);
  EXPECT_EQ(loop.session->strategy(), "ring");
  EXPECT_EQ(loop.session->links_measured(), 1u);
  EXPECT_EQ(loop.adaptation->decisions(), 5u);
  const std::vector<std::string> wanted = {
      "after step 1: policy script: global batch 2 -> 4: it is noisy",
      "after step 3: policy script: learning rate x 0.5: it is late",
      "after step 4: policy script: synchronisation synchronous -> model_averaging: it is large",
      "after step 5: policy script: topology auto -> ring, measures the links: it is slow",
      "after step 7: policy script: stop: it is good"};
  EXPECT_EQ(loop.said, wanted);
}

TEST(Adaptation, TheFirstOfTwoPoliciesHasItsWay) {
  const std::map<uint64_t, Decision> ring = {{1, {.topology = "ring", .reason = "why not"}}};
  const std::map<uint64_t, Decision> star = {{1, {.topology = "star", .reason = "why so"}}};
  Loop loop(
      policies(std::make_unique<Scripted>("one", ring), std::make_unique<Scripted>("other", star)));
  loop.run(3);
  EXPECT_EQ(loop.session->strategy(), "ring");
  ASSERT_EQ(loop.said.size(), 2u);
  EXPECT_EQ(loop.said[1],
            "policies one and other both decide the topology: the first in the list has its way");
}

TEST(Adaptation, SaysWhatItCannotDo) {
  std::map<uint64_t, Decision> script;
  script[1] = script[2] = {.members = 4, .reason = "more"};
  script[3] = {.topology = "moebius", .reason = "twisted"};
  script[4] = {.topology = "tree:0,0,0", .reason = "of three, and there is one"};
  Loop loop(policies(std::make_unique<Scripted>("script", script)));
  loop.run(8);
  EXPECT_EQ(loop.session->strategy(), "auto");
  ASSERT_EQ(loop.said.size(), 4u);
  EXPECT_NE(loop.said[0].find("policy script wants 4 members, but the job is not elastic"),
            std::string::npos);
  EXPECT_NE(loop.said[1].find("moebius"), std::string::npos);
  EXPECT_NE(loop.said[2].find("topology auto -> tree:0,0,0"), std::string::npos);
  EXPECT_NE(loop.said[3].find("the topology is not switched"), std::string::npos);
}

}  // namespace
}  // namespace pliant
