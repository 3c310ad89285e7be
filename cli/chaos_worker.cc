#include "cli/chaos_worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/chaos_check.h"
#include "cli/chaos_record.h"
#include "pliant/base/bytes.h"
#include "pliant/base/checksum.h"
#include "pliant/base/time.h"
#include "pliant/runtime/session.h"
#include "pliant/training/step_loader.h"

namespace pliant::cli {
namespace {

struct ChaosWorkerOptions {
  std::string records;  // a folder; empty: none are written
  std::string gradient = "64K";
  std::string state = "64K";  // replicated besides the small state that is trained
  std::string state_name = "ballast";
  std::string state_type = "u8";
  std::string private_bytes = "0";
  uint64_t samples = kChaosSamples;
  uint64_t batch = 64;
  uint64_t epochs = 0;
  uint64_t steps = 0;     // the last one; 0: until the samples end or it is stopped
  double compute_ms = 0;  // of each step, before the gradients are handed in
  int operations = 1;
  double seconds = 0;      // of a timed loop that prints its rate; 0: train
  bool steps_off = false;  // the same loop by all_reduce_shared, without steps
  bool constant_batch = false;
  size_t read_ahead = 0;  // batches; 0: samples are not read at all
};

// Elements at the front of the gradient that change from step to step; the rest stays as it was
// written once, so that a large gradient costs no more to compute than a small one.
constexpr size_t kLive = 512;

// What a sample adds to the sum of its step.
class ChaosSamples final : public Dataset {
 public:
  explicit ChaosSamples(uint64_t samples) : samples_(samples) {}
  uint64_t size() const override { return samples_; }
  size_t sample_bytes() const override { return sizeof(uint64_t); }
  Status read(const Sample& sample, std::span<std::byte> to) const override {
    const uint64_t value = mix_sample(sample.index);
    std::memcpy(to.data(), &value, sizeof value);
    return {};
  }

 private:
  const uint64_t samples_;
};

class ChaosWorker final {
 public:
  ChaosWorker(const ChaosWorkerOptions& options, Session& session)
      : options_(options), session_(session) {}
  ~ChaosWorker() {
    if (file_ >= 0) close(file_);
  }
  ChaosWorker(const ChaosWorker&) = delete;
  ChaosWorker& operator=(const ChaosWorker&) = delete;

  Status prepare();
  Status train();
  // How fast bare steps are, or the same operations without them.
  Status measure();

 private:
  Status add_samples(const Step& step);
  Status compute(const Step& step);
  Status check(const Step& step, uint64_t sample_sum);
  void record(const Step& step, uint64_t sample_sum, int64_t begun_ns, int64_t committed_ns);
  std::span<uint64_t> part(int operation) const {
    const size_t each = gradient_.size() / static_cast<size_t>(options_.operations);
    return gradient_.subspan(each * static_cast<size_t>(operation), each);
  }

  const ChaosWorkerOptions options_;
  Session& session_;
  std::span<uint64_t> gradient_;
  std::span<std::byte> ballast_;  // of the state
  std::vector<std::byte> private_;
  std::vector<uint64_t> state_ = std::vector<uint64_t>(kStateElements, 1);
  uint64_t sum_ = 0;  // over the samples of the open step
  const ChaosSamples dataset_{options_.samples};
  std::optional<StepLoader> loader_;
  int file_ = -1;
};

Status ChaosWorker::prepare() {
  const auto gradient = parse_bytes(options_.gradient);
  const auto state = parse_bytes(options_.state);
  const auto private_bytes = parse_bytes(options_.private_bytes);
  if (!gradient) return gradient.error();
  if (!state) return state.error();
  if (!private_bytes) return private_bytes.error();
  auto memory = session_.allocate_array<uint64_t>(std::max<size_t>(*gradient / 8, 8));
  if (!memory) return memory.error();
  gradient_ = *memory;
  for (int operation = 0; operation < options_.operations; ++operation) {
    const auto mine = part(operation);
    for (size_t j = 0; j < mine.size(); ++j) mine[j] = gradient_factor(j);
  }
  auto ballast = session_.allocate(std::max<size_t>(*state, 64));
  if (!ballast) return ballast.error();
  ballast_ = *ballast;
  if (session_.rank() == 0) std::memset(ballast_.data(), 0x5a, ballast_.size());
  private_.assign(*private_bytes, std::byte{7});
  PLIANT_TRY(
      session_.register_state("trained", std::as_writable_bytes(std::span(state_)), DType::kU64));
  const auto state_type = parse_dtype(options_.state_type);
  if (!state_type) return state_type.error();
  PLIANT_TRY(session_.register_state(options_.state_name, ballast_, *state_type));
  // The measurement is of bare steps; the sampler is the trainer's.
  if (options_.seconds > 0) return {};
  PLIANT_TRY(session_.use_sampler({.samples = options_.samples,
                                   .global_batch = options_.batch,
                                   .seed = 7,
                                   .epochs = options_.epochs,
                                   .shuffle = true,
                                   .constant_batch = options_.constant_batch}));
  if (options_.read_ahead > 0)
    loader_.emplace(session_, dataset_,
                    PrefetchOptions{.batches = options_.read_ahead, .threads = 1, .seed = 7});
  if (options_.records.empty()) return {};
  const std::string path = fmt::format("{}/{}", options_.records, getpid());
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  return file_ < 0 ? Status(system_error("cannot write " + path)) : Status();
}

Status ChaosWorker::add_samples(const Step& step) {
  if (!loader_) {
    for (const uint64_t sample : step.samples()) sum_ += mix_sample(sample);
    return {};
  }
  const auto batch = loader_->load(step);
  if (!batch) return batch.error();
  for (size_t i = 0; i < (*batch)->size(); ++i) {
    uint64_t value = 0;
    std::memcpy(&value, (*batch)->sample(i).data(), sizeof value);
    sum_ += value;
  }
  return {};
}

Status ChaosWorker::compute(const Step& step) {
  if (!step.more()) sum_ = 0;
  PLIANT_TRY(add_samples(step));
  for (int operation = 0; operation < options_.operations; ++operation) {
    const auto mine = part(operation);
    for (size_t j = 0; j < std::min(kLive, mine.size()); ++j) mine[j] = sum_ * gradient_factor(j);
  }
  if (options_.compute_ms > 0)
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options_.compute_ms));
  return {};
}

Status ChaosWorker::check(const Step& step, uint64_t sample_sum) {
  // The last step of an epoch has what is left.
  const uint64_t samples = step.contributed_samples();
  if (options_.constant_batch && samples != options_.batch &&
      samples != options_.samples % options_.batch)
    return invalid(fmt::format("step {} has {} samples and should have {}", step.number(), samples,
                               options_.batch));
  for (int operation = 0; operation < options_.operations; ++operation) {
    const auto result = step.result_of<uint64_t>(fmt::format("gradient{}", operation));
    if (!result) return result.error();
    const auto members = static_cast<uint64_t>(step.contributors());
    for (size_t j = 0; j < result->size(); j = j < kLive ? j + 1 : j + 4099) {
      const uint64_t expected = gradient_factor(j) * (j < kLive ? sample_sum : members);
      if ((*result)[j] != expected)
        return invalid(fmt::format("step {}: element {} of gradient{} is {} and should be {}",
                                   step.number(), j, operation, (*result)[j], expected));
    }
  }
  for (size_t i = 0; i < ballast_.size(); i += 4093)
    if (ballast_[i] != std::byte{0x5a})
      return invalid(fmt::format("step {}: byte {} of the state is wrong", step.number(), i));
  return {};
}

void ChaosWorker::record(const Step& step, uint64_t sample_sum, int64_t begun_ns,
                         int64_t committed_ns) {
  if (file_ < 0) return;
  const StepTimes& times = session_.last_change();
  const ChaosRecord made{.step = step.number(),
                         .epoch = number(session_.view().epoch),
                         .contributors = static_cast<uint32_t>(step.contributors()),
                         .samples = step.contributed_samples(),
                         .sample_sum = sample_sum,
                         .state = checksum64(std::as_bytes(std::span(state_))),
                         .committed_ns = committed_ns,
                         .agree_ns = times.agree.count(),
                         .redo_ns = times.redo.count(),
                         .transfer_ns = times.transfer.count(),
                         .begun_ns = static_cast<uint64_t>(begun_ns)};
  [[maybe_unused]] const ssize_t written = write(file_, &made, sizeof made);
}

Status ChaosWorker::train() {
  std::vector<std::string> names;
  for (int i = 0; i < options_.operations; ++i) names.push_back(fmt::format("gradient{}", i));
  int64_t begun_ns = nanoseconds();
  while (Step step = session_.begin_step()) {
    Status committed;
    do {
      PLIANT_TRY(compute(step));
      for (int i = 0; i < options_.operations; ++i)
        PLIANT_TRY(step.all_reduce(names[static_cast<size_t>(i)], part(i).data(), part(i).size(),
                                   DType::kU64, Op::kSum));
      committed = step.commit();
    } while (committed.ok() && step.more());
    const int64_t committed_ns = nanoseconds();
    if (!committed && committed.code() == Code::kCancelled) break;
    if (!committed) return committed.error();
    uint64_t sample_sum = 0;
    for (const uint64_t sample : step.committed_samples()) sample_sum += mix_sample(sample);
    PLIANT_TRY(check(step, sample_sum));
    apply_step(state_, sample_sum);
    record(step, sample_sum, begun_ns, committed_ns);
    begun_ns = nanoseconds();
    if (options_.steps != 0 && step.number() >= options_.steps) break;
  }
  return session_.status();
}

Status ChaosWorker::measure() {
  constexpr int kBatches = 8;
  const auto one = [&]() -> Status {
    if (options_.steps_off) {
      auto result = session_.all_reduce_shared("gradient", gradient_.data(), gradient_.size(),
                                               DType::kU64, Op::kSum);
      return result ? Status() : Status(result.error());
    }
    Step step = session_.begin_step();
    if (!step) return session_.status();
    PLIANT_TRY(
        step.all_reduce("gradient", gradient_.data(), gradient_.size(), DType::kU64, Op::kSum));
    return step.commit();
  };
  int64_t began = nanoseconds();
  constexpr int kWarmUp = 20;
  for (int i = 0; i < kWarmUp; ++i) PLIANT_TRY(one());
  double per_call = static_cast<double>(nanoseconds() - began) / 1e9 / kWarmUp;
  // Everybody makes the same number of calls.
  PLIANT_TRY(session_.broadcast("calls", &per_call, 1, DType::kF64, 0));
  const auto calls = std::max<int64_t>(
      3, static_cast<int64_t>(options_.seconds / kBatches / std::max(per_call, 1e-7)));
  for (int batch = 0; batch < kBatches; ++batch) {
    began = nanoseconds();
    for (int64_t i = 0; i < calls; ++i) PLIANT_TRY(one());
    if (session_.rank() == 0)
      fmt::print("{:.3f}\n",
                 static_cast<double>(nanoseconds() - began) / 1e3 / static_cast<double>(calls));
  }
  return {};
}

int run_chaos_worker(const ChaosWorkerOptions& options) {
  const auto fail = [](const Error& error) {
    fmt::print(stderr, "chaos-worker: {}\n", to_string(error));
    return 1;
  };
  auto session = Session::open();
  if (!session) return fail(session.error());
  ChaosWorker worker(options, **session);
  if (const Status prepared = worker.prepare(); !prepared) return fail(prepared.error());
  const Status trained = options.seconds > 0 ? worker.measure() : worker.train();
  if (!trained) return fail(trained.error());
  return 0;
}

int run_chaos_check(const std::string& folder, uint64_t samples) {
  const auto workers = read_chaos_records(folder);
  if (!workers) {
    fmt::print(stderr, "chaos-check: {}\n", to_string(workers.error()));
    return 2;
  }
  const ChaosVerdict verdict = judge_chaos(*workers, {.samples = samples});
  fmt::print("{} workers, {} steps, {} commits, {} epochs complete\n", workers->size(),
             verdict.steps, verdict.commits, verdict.epochs_complete);
  for (const std::string& sentence : verdict.divergences) fmt::print("{}\n", sentence);
  return verdict.divergences.empty() ? 0 : 1;
}

}  // namespace

void add_chaos_worker(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ChaosWorkerOptions>();
  CLI::App* command = app.add_subcommand("chaos-worker", "A worker of pliant chaos")->group("");
  command->add_option("--records", options->records);
  command->add_option("--gradient", options->gradient);
  command->add_option("--state", options->state);
  command->add_option("--state-name", options->state_name);
  command->add_option("--state-type", options->state_type);
  command->add_option("--private", options->private_bytes);
  command->add_option("--samples", options->samples);
  command->add_option("--batch", options->batch);
  command->add_option("--epochs", options->epochs);
  command->add_option("--steps", options->steps);
  command->add_option("--compute-ms", options->compute_ms);
  command->add_option("--operations", options->operations)->check(CLI::Range(1, 16));
  command->add_option("--seconds", options->seconds);
  command->add_flag("--steps-off", options->steps_off);
  command->add_flag("--constant-batch", options->constant_batch);
  command->add_option("--read-ahead", options->read_ahead);
  auto folder = std::make_shared<std::string>();
  auto samples = std::make_shared<uint64_t>(kChaosSamples);
  CLI::App* check = app.add_subcommand("chaos-check", "Judges what they wrote")->group("");
  check->add_option("folder", *folder)->required();
  check->add_option("--samples", *samples);
  check->callback([=, &exit_code] { exit_code = run_chaos_check(*folder, *samples); });
  command->callback([options, &exit_code] { exit_code = run_chaos_worker(*options); });
}

}  // namespace pliant::cli
