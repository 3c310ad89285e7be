#include "cli/bench_worker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench_data.h"
#include "cli/bench_plan.h"
#include "cli/bench_report.h"
#include "pliant/base/bytes.h"
#include "pliant/base/time.h"
#include "pliant/runtime/session.h"

namespace pliant::cli {
namespace {

constexpr int kWarmUpCalls = 3;
constexpr double kCallsMin = 5;  // timed calls, however long they take
constexpr double kCallsMax = 1e6;

void write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads any more
    done += static_cast<size_t>(written);
  }
}

// A buffer of either kind of memory, written once so that its pages are there.
class Memory final {
 public:
  static Result<std::unique_ptr<Memory>> make(Session& session, BenchBuffer kind, size_t bytes) {
    constexpr size_t kPage = 4096;
    std::unique_ptr<Memory> memory(new Memory(session));
    if (kind != BenchBuffer::kPlain) {
      auto registered = session.allocate(std::max<size_t>(bytes, 1));
      if (!registered) return registered.error();
      memory->registered_ = *registered;
      memory->data_ = registered->data();
    } else {
      const size_t rounded = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
      memory->plain_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)));
      if (!memory->plain_) return invalid(fmt::format("no memory for {}", human_bytes(bytes)));
      memory->data_ = memory->plain_.get();
    }
    std::memset(memory->data_, 0, bytes);
    return memory;
  }
  ~Memory() {
    if (!registered_.empty()) session_.release(registered_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  explicit Memory(Session& session) : session_(session) {}

  Session& session_;
  std::span<std::byte> registered_;
  std::unique_ptr<std::byte, Free> plain_;
  std::byte* data_ = nullptr;
};

// One size of the plan: its buffers, its call and its check. Lives for the cell.
class Subject final {
 public:
  Subject(Session& session, const BenchPlan& plan, uint64_t bytes)
      : session_(session),
        plan_(plan),
        bytes_(bytes),
        data_{.dtype = plan.dtype, .op = plan.op, .size = session.size()} {}

  Status prepare();
  Status call();
  // With new data; an error tells what came out wrong.
  Status verify();

 private:
  bool at_root() const { return operation_.root == session_.rank(); }
  int input_blocks() const;
  int output_blocks() const;
  bool in_place() const;
  Status send_and_receive();
  void fill();
  std::optional<std::string> check() const;
  std::optional<std::string> check_gathered() const;

  Session& session_;
  const BenchPlan& plan_;
  const uint64_t bytes_;
  const BenchData data_;
  std::unique_ptr<Memory> input_;
  std::unique_ptr<Memory> output_;
  Operation operation_;
  const std::byte* result_ = nullptr;
};

// Sizes of the buffers in tensors or blocks of `bytes_`.
int Subject::input_blocks() const {
  switch (plan_.collective) {
    case Collective::kBarrier: return 0;
    case Collective::kScatter: return at_root() ? session_.size() : 0;
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return session_.size();
    default: return 1;
  }
}

int Subject::output_blocks() const {
  switch (plan_.collective) {
    case Collective::kBarrier: return 0;
    case Collective::kReduce: return at_root() ? 1 : 0;
    case Collective::kGather: return at_root() ? session_.size() : 0;
    case Collective::kAllGather:
    case Collective::kAllToAll: return session_.size();
    default: return 1;
  }
}

// As training does it: gradients are reduced where they are, parameters sent where they are.
bool Subject::in_place() const {
  return plan_.collective == Collective::kAllReduce || plan_.collective == Collective::kBroadcast;
}

Status Subject::prepare() {
  operation_.collective = plan_.collective;
  operation_.name = "bench";
  operation_.count = bytes_ / size_of(plan_.dtype);
  operation_.dtype = plan_.dtype;
  operation_.op = plan_.op;
  operation_.root = bench_root(plan_.collective, session_.size());
  const size_t input = bytes_ * static_cast<size_t>(input_blocks());
  const size_t output = bytes_ * static_cast<size_t>(output_blocks());
  auto first = Memory::make(session_, plan_.buffer, input);
  if (!first) return first.error();
  input_ = std::move(*first);
  operation_.input = input_->data();
  if (in_place()) {
    operation_.output = input_->data();
  } else {
    auto second = Memory::make(session_, plan_.buffer, output);
    if (!second) return second.error();
    output_ = std::move(*second);
    operation_.output = output_->data();
  }
  result_ = static_cast<const std::byte*>(operation_.output);
  return {};
}

Status Subject::call() {
  if (plan_.collective == Collective::kSend) return send_and_receive();
  if (plan_.buffer != BenchBuffer::kShared) return session_.run(operation_);
  const auto shared = session_.all_reduce_shared(operation_.name, operation_.input,
                                                 operation_.count, plan_.dtype, plan_.op);
  if (!shared) return shared.error();
  result_ = shared->data();
  return {};
}

// To the next rank and from the one before, at the same time.
Status Subject::send_and_receive() {
  const Rank size = session_.size();
  Operation send = operation_;
  send.root = (session_.rank() + 1) % size;
  send.output = nullptr;
  Operation receive = operation_;
  receive.collective = Collective::kReceive;
  receive.root = (session_.rank() + size - 1) % size;
  receive.input = nullptr;
  Work sending = session_.start(send);
  const Status received = session_.run(receive);
  const Status sent = sending.wait();
  if (!received.ok()) return received.error();
  if (!sent.ok()) return sent.error();
  return {};
}

void Subject::fill() {
  const Rank self = session_.rank();
  const int blocks = input_blocks();
  if (plan_.collective == Collective::kBroadcast && !at_root()) {
    // What was received before must not pass for what comes now.
    std::memset(input_->data(), 0, bytes_);
    return;
  }
  for (int block = 0; block < blocks; ++block)
    data_.fill(input_->data() + bytes_ * static_cast<size_t>(block), operation_.count, self, block);
}

std::optional<std::string> Subject::check() const {
  const size_t count = operation_.count;
  const Rank self = session_.rank();
  const Rank size = session_.size();
  switch (plan_.collective) {
    case Collective::kBarrier: return std::nullopt;
    case Collective::kAllReduce: return data_.check_reduced(result_, count, 0);
    case Collective::kReduce:
      return at_root() ? data_.check_reduced(result_, count, 0) : std::nullopt;
    case Collective::kReduceScatter: return data_.check_reduced(result_, count, self);
    case Collective::kBroadcast: return data_.check_moved(result_, count, operation_.root, 0);
    case Collective::kScatter: return data_.check_moved(result_, count, operation_.root, self);
    case Collective::kSend:
    case Collective::kReceive:
      return data_.check_moved(result_, count, (self + size - 1) % size, 0);
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kAllToAll: return check_gathered();
  }
  return std::nullopt;
}

// One block of every rank, in order.
std::optional<std::string> Subject::check_gathered() const {
  const int to = plan_.collective == Collective::kAllToAll ? session_.rank() : 0;
  for (int from = 0; from < output_blocks(); ++from) {
    auto wrong =
        data_.check_moved(result_ + bytes_ * static_cast<size_t>(from), operation_.count, from, to);
    if (wrong) return fmt::format("in the block of rank {}: {}", from, *wrong);
  }
  return std::nullopt;
}

Status Subject::verify() {
  fill();
  PLIANT_TRY(call());
  if (const auto wrong = check())
    return invalid(fmt::format("WRONG RESULT of {} over {} ranks, {} of {}: {}", plan_.arguments.op,
                               session_.size(), human_bytes(bytes_), to_string(plan_.dtype),
                               *wrong));
  return {};
}

// The protocol of a measurement, the same on every rank; rank 0 holds the watch.
class Measurement final {
 public:
  Measurement(Session& session, const BenchPlan& plan) : session_(session), plan_(plan) {}

  // Measures one size and, on rank 0, prints it.
  Status run(uint64_t bytes);

 private:
  bool is_first() const { return session_.rank() == 0; }
  // A rank that only sends, or only receives, would run ahead of the others.
  bool waits_before_each_call() const {
    return plan_.collective == Collective::kReduce || plan_.collective == Collective::kBroadcast ||
           plan_.collective == Collective::kGather || plan_.collective == Collective::kScatter;
  }
  Result<uint64_t> calibrate(Subject& subject);
  Result<std::vector<double>> time_calls(Subject& subject, uint64_t calls);
  void print(uint64_t bytes, std::vector<double> seconds);
  void show_progress(const std::string& text) const;

  Session& session_;
  const BenchPlan& plan_;
};

Result<std::vector<double>> Measurement::time_calls(Subject& subject, uint64_t calls) {
  std::vector<double> samples;
  if (is_first()) samples.reserve(calls);
  PLIANT_TRY(session_.barrier());
  for (uint64_t i = 0; i < calls; ++i) {
    if (waits_before_each_call() && i > 0) PLIANT_TRY(session_.barrier());
    const Instant start = now();
    PLIANT_TRY(subject.call());
    if (is_first()) samples.push_back(seconds(now() - start));
  }
  return samples;
}

// How many calls fill the given time. Rank 0 decides from its own clock and tells: first the number
// of calls of the next trial, and zero when it knows enough; then the answer.
Result<uint64_t> Measurement::calibrate(Subject& subject) {
  const auto wanted = static_cast<uint64_t>(plan_.arguments.repetitions);
  for (int i = 0; i < kWarmUpCalls; ++i) PLIANT_TRY(subject.call());
  if (wanted > 0) return wanted;
  for (uint64_t calls = 1;;) {
    const Instant start = now();
    const auto trial = time_calls(subject, calls);
    if (!trial) return trial.error();
    const double spent = std::max(1e-9, seconds(now() - start));
    const double fitting = plan_.arguments.seconds / spent * static_cast<double>(calls);
    const bool enough = spent * 8 >= plan_.arguments.seconds || fitting <= kCallsMin ||
                        static_cast<double>(calls) >= kCallsMax / 8;
    uint64_t told[2] = {enough ? 0 : 2 * calls,
                        static_cast<uint64_t>(std::clamp(fitting, kCallsMin, kCallsMax))};
    PLIANT_TRY(session_.broadcast("bench/calls", told, 2, DType::kU64, 0));
    if (told[0] == 0) return told[1];
    calls = told[0];
  }
}

void Measurement::show_progress(const std::string& text) const {
  constexpr const char* kClearLine = "\x1b[K\r";
  if (is_first() && plan_.arguments.progress) write_all(STDERR_FILENO, text + kClearLine);
}

void Measurement::print(uint64_t bytes, std::vector<double> seconds) {
  const BenchCell cell{
      .np = session_.size(), .bytes = bytes, .summary = summarize(std::move(seconds))};
  const bool json = plan_.arguments.json;
  write_all(STDOUT_FILENO, json ? json_line(plan_, cell) : table_row(plan_, cell));
  if (!plan_.arguments.explain) return;
  // What is not JSON would not be understood where JSON is read.
  write_all(json ? STDERR_FILENO : STDOUT_FILENO,
            fmt::format("    {}\n", session_.explain(plan_.collective, bytes)));
}

Status Measurement::run(uint64_t bytes) {
  Subject subject(session_, plan_, bytes);
  show_progress(fmt::format("{} with {} workers: {} ...", plan_.arguments.op, session_.size(),
                            human_bytes(bytes)));
  PLIANT_TRY(subject.prepare());
  const auto calls = calibrate(subject);
  if (!calls) return calls.error();
  auto samples = time_calls(subject, *calls);
  if (!samples) return samples.error();
  // No rank may write its next input while another still reads the last.
  PLIANT_TRY(session_.barrier());
  const Status verified = subject.verify();
  // All stop together, so that only those with a wrong result complain.
  uint8_t good = verified.ok() ? 1 : 0;
  PLIANT_TRY(session_.all_reduce("bench/good", &good, &good, 1, DType::kU8, Op::kMin));
  if (!verified.ok()) return verified.error();
  if (good == 0) return Error{Code::kCancelled, "another rank got a wrong result", {}, {}};
  show_progress("");
  if (is_first()) print(bytes, std::move(*samples));
  return {};
}

int work(const BenchArguments& arguments) {
  const auto fail = [](const std::string& message) {
    write_all(STDERR_FILENO, "pliant bench: " + message + "\n");
    return 1;
  };
  const auto plan = make_bench_plan(arguments);
  if (!plan) return fail(plan.error().message);
  auto session = Session::open();
  if (!session) return fail(to_string(session.error()));
  Measurement measurement(**session, *plan);
  for (const uint64_t bytes : plan->sizes) {
    const Status measured = measurement.run(bytes);
    if (measured.ok()) continue;
    if (measured.code() == Code::kCancelled) return 1;
    return fail(fmt::format("rank {}: {}", (*session)->rank(), measured.error().message));
  }
  return 0;
}

}  // namespace

void add_bench_worker(CLI::App& app, int& exit_code) {
  CLI::App* const worker = app.add_subcommand("bench-worker", "A worker of `pliant bench`");
  worker->group("");  // hidden
  const auto arguments = std::make_shared<BenchArguments>();
  add_bench_options(*worker, *arguments);
  worker->add_flag("--progress", arguments->progress, "Tell standard error what is measured now");
  worker->callback([arguments, &exit_code] { exit_code = work(*arguments); });
}

}  // namespace pliant::cli
