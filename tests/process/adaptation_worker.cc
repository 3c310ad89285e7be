// A worker for tests and measurements of monitors and policies: trains on a quadratic whose
// gradient noise is known, or just moves bytes and burns time, and writes a line for each commit.
//   adaptation_worker --folder F [--policy TEXT]... [--steps N] [--batch N] [--parameters N]
//     [--noise-every N] [--noise-decay X] [--sigma X] [--sample-seconds X] [--bytes N]
//     [--slow-slot N --slow-seconds X] [--switch-every N]
// The line has "name=value" fields, signals=HASH (of all bits of the signals) among them.
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/time.h"
#include "pliant/policy/make_policy.h"
#include "pliant/training/adaptation.h"
#include "pliant/training/monitor_note.h"

namespace {

using pliant::Decision;
using pliant::Policy;
using pliant::Signals;

std::vector<std::string> options(int argc, char** argv, const std::string& name) {
  std::vector<std::string> found;
  for (int i = 1; i + 1 < argc; ++i)
    if (name == argv[i]) found.emplace_back(argv[i + 1]);
  return found;
}

double number(int argc, char** argv, const std::string& name, double otherwise) {
  const auto found = options(argc, argv, name);
  return found.empty() ? otherwise : std::stod(found.back());
}

[[noreturn]] void fail(const pliant::Error& error) {
  std::fprintf(stderr, "adaptation_worker: %s\n", pliant::to_string(error).c_str());
  std::exit(1);
}

void check(const pliant::Status& status) {
  if (!status) fail(status.error());
}

// A user's own policy.
class StopAt final : public Policy {
 public:
  explicit StopAt(uint64_t step) : step_(step) {}
  std::string_view name() const override { return "stop_at"; }
  Decision after_step(const Signals& now) override {
    if (now.step < step_) return {};
    return {.stop = true, .reason = "that is enough"};
  }

 private:
  uint64_t step_;
};

// One that remembers: how often it was asked, which newcomers must know too to go on alike.
class CountsSteps final : public Policy {
 public:
  std::string_view name() const override { return "counts_steps"; }
  std::span<std::byte> state() override { return std::as_writable_bytes(std::span(&state_, 1)); }
  Decision before_train(const Signals&) override {
    ++state_.trainings;
    return {};
  }
  Decision after_step(const Signals&) override {
    ++state_.steps;
    if (state_.steps % 50 != 0) return {};
    return {.learning_rate_factor = 1.0 / static_cast<double>(1 + state_.steps / 50),
            .reason = fmt::format("{} steps were made", state_.steps)};
  }

  struct State {
    uint64_t steps = 0;
    uint64_t trainings = 0;
  } state_;
};

// Switches the topology again and again, and has the links measured.
class SwitchesOften final : public Policy {
 public:
  explicit SwitchesOften(uint64_t every) : every_(every) {}
  std::string_view name() const override { return "switches_often"; }
  Decision after_step(const Signals& now) override {
    if (every_ == 0 || now.step % every_ != 0) return {};
    static constexpr const char* kTopologies[] = {"ring", "star", "auto", "binary_tree"};
    return {.topology = kTopologies[now.step / every_ % 4],
            .measure_links = true,
            .reason = "it is time"};
  }

 private:
  uint64_t every_;
};

// f_s(w) = sum over j of h_j (w_j - x_sj)^2 / 2 at w = 1, with x_sj = sigma or -sigma: the gradient
// of a sample has the mean h_j and the variance (h_j sigma)^2, so the noise scale is sigma^2.
void add_gradient(uint64_t sample, float sigma, std::vector<float>& sum) {
  uint64_t bits = 0;
  for (size_t j = 0; j < sum.size(); ++j) {
    if (j % 64 == 0) {
      const uint64_t key[2] = {sample, j};
      bits = pliant::hash64(std::as_bytes(std::span(key)));
    }
    const float h = static_cast<float>(1 + j % 3);
    sum[j] += h * (1 - ((bits >> j % 64 & 1) != 0 ? sigma : -sigma));
  }
}

// Computes for so long: time of a processor, which workers may have to share.
void burn(double seconds) {
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double end = used() + seconds;
  // The clock is a system call: it is asked every few microseconds.
  volatile uint64_t work = 0;
  while (used() < end)
    for (int i = 0; i < 20'000; ++i) work = work + 1;
}

void write_line(std::FILE* out, const Signals& now, const pliant::Adaptation& adaptation,
                const CountsSteps::State& counted) {
  const auto bytes = pliant::encode(now);
  const std::string line = fmt::format(
      "step={} signals={:016x} view={} members={} lost={} noise={} variance={} straggler={} "
      "rate={} "
      "counted={} trainings={} decisions={} topology={} throughput={:.3f} wait={:.6f} links={} "
      "measured={:.6f} change={:.6f}\n",
      now.step, pliant::hash64(bytes), now.view, now.members, now.members_lost,
      now.noise ? now.noise->scale : -1, now.noise ? now.noise->variance : -1,
      now.straggler ? now.straggler->peer.slot : -1, adaptation.learning_rate_factor(),
      counted.steps, counted.trainings, adaptation.decisions(), now.topology,
      now.samples_per_second, now.wait_seconds, now.links.size(), adaptation.measure_seconds(),
      now.change_seconds);
  std::fputs(line.c_str(), out);
  std::fflush(out);
}

// What the command line asks for.
struct Asked {
  std::string folder;
  std::vector<std::string> policies;
  uint64_t steps, batch, noise_every, switch_every;
  size_t parameters, bytes;
  double noise_decay, sample_seconds, slow_seconds;
  float sigma;
  int slow_slot;
};

Asked read_options(int argc, char** argv) {
  const auto option = [&](const char* name, double otherwise) {
    return number(argc, argv, name, otherwise);
  };
  const auto count = [&](const char* name, double otherwise) {
    return static_cast<uint64_t>(option(name, otherwise));
  };
  const auto folder = options(argc, argv, "--folder");
  return {.folder = folder.empty() ? "." : folder.back(),
          .policies = options(argc, argv, "--policy"),
          .steps = count("--steps", 100),
          .batch = count("--batch", 64),
          .noise_every = count("--noise-every", 1),
          .switch_every = count("--switch-every", 0),
          .parameters = count("--parameters", 2000),
          .bytes = count("--bytes", 0),
          .noise_decay = option("--noise-decay", 0.99),
          .sample_seconds = option("--sample-seconds", 0),
          .slow_seconds = option("--slow-seconds", 0.05),
          .sigma = static_cast<float>(option("--sigma", 2)),
          .slow_slot = static_cast<int>(option("--slow-slot", -1))};
}

class Worker final {
 public:
  Worker(pliant::Session& session, Asked asked)
      : session_(session),
        asked_(std::move(asked)),
        gradients_(asked_.parameters),
        load_(asked_.bytes / sizeof(float)) {
    check(session.use_sampler({.samples = 1'000'000, .global_batch = asked_.batch, .epochs = 0}));
    auto monitor = pliant::Monitor::make(
        session, {.noise_every = asked_.noise_every, .noise_decay = asked_.noise_decay});
    if (!monitor) fail(monitor.error());
    monitor_ = std::move(*monitor);
    pliant::Adaptation::Policies policies;
    for (const std::string& text : asked_.policies) {
      auto policy = pliant::make_policy(text);
      if (!policy) fail(policy.error());
      policies.push_back(std::move(*policy));
    }
    auto counts = std::make_unique<CountsSteps>();
    counted_ = &counts->state_;
    policies.push_back(std::move(counts));
    policies.push_back(std::make_unique<StopAt>(asked_.steps));
    policies.push_back(std::make_unique<SwitchesOften>(asked_.switch_every));
    auto adaptation = pliant::Adaptation::make(session, *monitor_, std::move(policies));
    if (!adaptation) fail(adaptation.error());
    adaptation_ = std::move(*adaptation);
    out_ = std::fopen(fmt::format("{}/{}", asked_.folder, getpid()).c_str(), "w");
    if (out_ == nullptr) fail({pliant::Code::kInvalid, "cannot write into the folder", {}, {}});
  }

  void train() {
    while (pliant::Step step = session_.begin_step()) {
      monitor_->begin(step);
      check(adaptation_->begin(step));
      compute(step);
      hand_in(step);
      const pliant::Status committed = step.commit();
      if (!committed && committed.code() == pliant::Code::kCancelled) break;
      check(committed);
      const Signals& signals = monitor_->committed(step);
      check(adaptation_->committed());
      write_line(out_, signals, *adaptation_, *counted_);
      if (adaptation_->stopped()) break;
    }
    check(session_.status());
    adaptation_->finish();
  }

 private:
  void compute(const pliant::Step& step) {
    std::fill(gradients_.begin(), gradients_.end(), 0.0f);
    for (const uint64_t sample : step.samples()) add_gradient(sample, asked_.sigma, gradients_);
    if (asked_.sample_seconds > 0)
      burn(asked_.sample_seconds * static_cast<double>(step.samples().size()));
    if (session_.world().peer(session_.rank()).slot == asked_.slow_slot)
      std::this_thread::sleep_for(pliant::from_seconds(asked_.slow_seconds));
  }

  void hand_in(pliant::Step& step) {
    const size_t count = gradients_.size();
    const pliant::GradientSpan part{"gradients", gradients_.data(), count, pliant::DType::kF32};
    const uint64_t samples = step.samples().size();
    monitor_->gradients({&part, 1}, samples, pliant::GradientForm::kSum);
    monitor_->loss(static_cast<double>(step.number()), samples);
    check(step.all_reduce("gradients", gradients_.data(), count, pliant::DType::kF32,
                          pliant::Op::kMean));
    if (!load_.empty())
      check(step.all_reduce("load", load_.data(), load_.size(), pliant::DType::kF32,
                            pliant::Op::kSum));
    check(monitor_->hand_in(step));
  }

  pliant::Session& session_;
  const Asked asked_;
  std::unique_ptr<pliant::Monitor> monitor_;
  std::unique_ptr<pliant::Adaptation> adaptation_;
  const CountsSteps::State* counted_ = nullptr;
  std::FILE* out_ = nullptr;
  std::vector<float> gradients_;
  std::vector<float> load_;
};

}  // namespace

int main(int argc, char** argv) {
  auto session = pliant::Session::open();
  if (!session) fail(session.error());
  Worker(**session, read_options(argc, argv)).train();
  return 0;
}
