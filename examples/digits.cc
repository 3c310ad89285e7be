// Trains a small network to read digits, on as many workers as there are:
//
//   pliant run -n 4 -- digits        four workers, each with a quarter of every batch
//   digits                           alone: the same program, the same result
//
// What is Pliant's is in main() and Trainer::step(): open a session, agree on the start, sum the
// gradients. The network is a plain multi-layer perceptron written out by hand.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "examples/digits_data.h"
#include "pliant/runtime/session.h"

namespace {

using digits::kClasses;
using digits::kPixels;
using digits::Sample;
using pliant::DType;
using pliant::Op;
using pliant::Session;

constexpr size_t kHidden = 96;
constexpr size_t kTrainingSamples = 6000;
constexpr size_t kTestSamples = 2000;
constexpr float kLearningRate = 0.05F;
constexpr float kMomentum = 0.9F;

struct Options {
  int epochs = 12;
  int batch = 64;  // over all workers
  uint64_t seed = 1;
};

constexpr const char* kHelp =
    R"(Trains a small network to read digits, on as many workers as there are.

  digits [--epochs N] [--batch N] [--seed N]
  pliant run -n 4 -- digits [...]

  --epochs N   passes over the training pictures (default 12)
  --batch N    pictures in a batch, over all workers (default 64)
  --seed N     another seed draws other pictures and starts elsewhere (default 1)
  --help       this text
)";

[[noreturn]] void fail(const std::string& message, int exit_code = 1) {
  std::fprintf(stderr, "digits: %s\n", message.c_str());
  std::exit(exit_code);
}

void check(const pliant::Status& status) {
  if (!status.ok()) fail(pliant::to_string(status.error()));
}

template <typename T>
T take(pliant::Result<T> result) {
  if (!result.ok()) fail(pliant::to_string(result.error()));
  return std::move(*result);
}

uint64_t parse_number(const char* option, const char* text, uint64_t least) {
  char* end = nullptr;
  const uint64_t value = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  if (text == nullptr || *text == '-' || end == text || *end != '\0' || value < least ||
      value > 1'000'000)
    fail(std::string(option) + " needs a number from " + std::to_string(least) + " to 1000000", 2);
  return value;
}

Options parse_options(char** arguments) {
  Options options;
  for (char** at = arguments + 1; *at != nullptr; ++at) {
    const std::string option = *at;
    if (option == "--help" || option == "-h") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    } else if (option == "--epochs") {
      options.epochs = static_cast<int>(parse_number("--epochs", *++at, 1));
    } else if (option == "--batch") {
      options.batch = static_cast<int>(parse_number("--batch", *++at, 1));
    } else if (option == "--seed") {
      options.seed = parse_number("--seed", *++at, 0);
    } else {
      fail("unknown option '" + option + "'; --help lists them", 2);
    }
  }
  return options;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- The network ---------------------------------------------------------------------------

// All parameters in one array, so that one all-reduce carries all gradients.
constexpr size_t kWeights1 = 0;                            // [pixel][hidden]
constexpr size_t kBias1 = kWeights1 + kPixels * kHidden;   // [hidden]
constexpr size_t kWeights2 = kBias1 + kHidden;             // [hidden][class]
constexpr size_t kBias2 = kWeights2 + kHidden * kClasses;  // [class]
constexpr size_t kParameters = kBias2 + kClasses;

void initialize(std::span<float> parameters, uint64_t seed) {
  digits::Random random(seed);
  std::fill(parameters.begin(), parameters.end(), 0.0F);
  const float scale1 = std::sqrt(2.0F / kPixels);
  const float scale2 = std::sqrt(2.0F / kHidden);
  for (size_t i = 0; i < kPixels * kHidden; ++i) parameters[kWeights1 + i] = scale1 * random.bell();
  for (size_t i = 0; i < kHidden * kClasses; ++i)
    parameters[kWeights2 + i] = scale2 * random.bell();
}

struct Activations {
  float hidden[kHidden];
  float probability[kClasses];
};

Activations forward(const float* parameters, const digits::Picture& picture) {
  Activations result;
  std::copy_n(parameters + kBias1, kHidden, result.hidden);
  for (size_t i = 0; i < kPixels; ++i) {
    const float* const weights = parameters + kWeights1 + i * kHidden;
    for (size_t j = 0; j < kHidden; ++j) result.hidden[j] += picture[i] * weights[j];
  }
  for (float& value : result.hidden) value = std::max(value, 0.0F);
  float* const scores = result.probability;
  std::copy_n(parameters + kBias2, kClasses, scores);
  for (size_t j = 0; j < kHidden; ++j) {
    const float* const weights = parameters + kWeights2 + j * kClasses;
    for (size_t k = 0; k < kClasses; ++k) scores[k] += result.hidden[j] * weights[k];
  }
  const float highest = *std::max_element(scores, scores + kClasses);
  for (size_t k = 0; k < kClasses; ++k) scores[k] = std::exp(scores[k] - highest);
  const float sum = std::accumulate(scores, scores + kClasses, 0.0F);
  for (size_t k = 0; k < kClasses; ++k) scores[k] /= sum;
  return result;
}

// Adds `weight` times the gradient of one sample's loss, and returns the loss.
float add_gradient(const float* parameters, const Sample& sample, float weight, float* gradient) {
  const Activations activations = forward(parameters, sample.picture);
  float score[kClasses];  // gradients of the scores, then of the hidden layer
  for (size_t k = 0; k < kClasses; ++k) score[k] = weight * activations.probability[k];
  const auto label = static_cast<size_t>(sample.label);
  score[label] -= weight;
  float hidden[kHidden];
  for (size_t j = 0; j < kHidden; ++j) {
    const float* const weights = parameters + kWeights2 + j * kClasses;
    float* const to = gradient + kWeights2 + j * kClasses;
    float sum = 0;
    for (size_t k = 0; k < kClasses; ++k) {
      sum += score[k] * weights[k];
      to[k] += score[k] * activations.hidden[j];
    }
    hidden[j] = activations.hidden[j] > 0 ? sum : 0;
  }
  for (size_t k = 0; k < kClasses; ++k) gradient[kBias2 + k] += score[k];
  for (size_t i = 0; i < kPixels; ++i) {
    float* const to = gradient + kWeights1 + i * kHidden;
    for (size_t j = 0; j < kHidden; ++j) to[j] += sample.picture[i] * hidden[j];
  }
  for (size_t j = 0; j < kHidden; ++j) gradient[kBias1 + j] += hidden[j];
  return -std::log(std::max(activations.probability[label], 1e-12F));
}

int predict(std::span<const float> parameters, const digits::Picture& picture) {
  const Activations activations = forward(parameters.data(), picture);
  const float* const begin = activations.probability;
  return static_cast<int>(std::max_element(begin, begin + kClasses) - begin);
}

// ---- The training loop
// ----------------------------------------------------------------------------

// This worker's part of `count` things: consecutive, and as even as can be.
std::pair<size_t, size_t> shard(const Session& session, size_t count) {
  const auto rank = static_cast<size_t>(session.rank());
  const auto size = static_cast<size_t>(session.size());
  return {count * rank / size, count * (rank + 1) / size};
}

class Trainer {
 public:
  Trainer(Session& session, uint64_t seed)
      : session_(session),
        parameters_(take(session.allocate_array<float>(kParameters))),
        gradient_(take(session.allocate_array<float>(kParameters + 1))),
        velocity_(kParameters) {
    if (session.rank() == 0) initialize(parameters_, seed);
    check(session.broadcast("parameters", parameters_.data(), kParameters, DType::kF32, 0));
  }

  std::span<const float> parameters() const { return parameters_; }
  double seconds_in_all_reduce() const { return seconds_in_all_reduce_; }

  // One step over a batch that all workers know; each computes its part. Returns the batch's loss.
  float step(std::span<const Sample* const> batch, float learning_rate) {
    std::fill(gradient_.begin(), gradient_.end(), 0.0F);
    // Dividing by the whole batch and summing gives each sample the same weight, even if the batch
    // does not divide evenly.
    const float weight = 1.0F / static_cast<float>(batch.size());
    const auto [begin, end] = shard(session_, batch.size());
    for (size_t i = begin; i < end; ++i)
      gradient_[kParameters] +=
          weight * add_gradient(parameters_.data(), *batch[i], weight, gradient_.data());

    const double start = seconds_now();
    check(session_.all_reduce("gradient", gradient_.data(), gradient_.data(), gradient_.size(),
                              DType::kF32, Op::kSum));
    seconds_in_all_reduce_ += seconds_now() - start;

    for (size_t i = 0; i < kParameters; ++i) {
      velocity_[i] = kMomentum * velocity_[i] + gradient_[i];
      parameters_[i] -= learning_rate * velocity_[i];
    }
    return gradient_[kParameters];
  }

  // The share of samples that are read right; each worker reads its part.
  double accuracy(const std::vector<Sample>& samples) {
    const auto [begin, end] = shard(session_, samples.size());
    int64_t right = 0;
    for (size_t i = begin; i < end; ++i)
      right += predict(parameters_, samples[i].picture) == samples[i].label ? 1 : 0;
    check(session_.all_reduce("right", &right, &right, 1, DType::kI64, Op::kSum));
    return static_cast<double>(right) / static_cast<double>(samples.size());
  }

 private:
  Session& session_;
  std::span<float> parameters_;
  std::span<float> gradient_;  // and the loss behind it
  std::vector<float> velocity_;
  double seconds_in_all_reduce_ = 0;
};

struct Outcome {
  double accuracy = 0;
  double seconds = 0;
  double samples_a_second = 0;
};

Outcome train(Session& session, Trainer& trainer, const Options& options,
              const std::vector<Sample>& training, const std::vector<Sample>& test) {
  Outcome outcome;
  digits::Random random(options.seed + 1);  // the same order on every worker
  std::vector<const Sample*> order;
  for (const Sample& sample : training) order.push_back(&sample);
  const auto batch_size = std::min(static_cast<size_t>(options.batch), order.size());
  const size_t steps = order.size() / batch_size;
  if (session.rank() == 0) std::puts("epoch    loss  test accuracy  samples/s  in all-reduce");
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
    const double done = static_cast<double>(epoch) / options.epochs;
    const float learning_rate = kLearningRate * static_cast<float>(1 - 0.9 * done);
    const double start = seconds_now();
    const double exchanged_before = trainer.seconds_in_all_reduce();
    double loss = 0;
    for (size_t step = 0; step < steps; ++step)
      loss += trainer.step(std::span(order).subspan(step * batch_size, batch_size), learning_rate);
    const double spent = seconds_now() - start;
    const double exchanged = trainer.seconds_in_all_reduce() - exchanged_before;
    outcome.accuracy = trainer.accuracy(test);
    outcome.seconds += spent;
    if (session.rank() == 0) {
      std::printf("%5d  %6.3f  %11.1f %%  %9.0f  %6.3f s (%2.0f %%)\n", epoch + 1,
                  loss / static_cast<double>(steps), outcome.accuracy * 100,
                  static_cast<double>(steps * batch_size) / spent, exchanged,
                  100 * exchanged / spent);
      std::fflush(stdout);
    }
  }
  outcome.samples_a_second = static_cast<double>(options.epochs) *
                             static_cast<double>(steps * batch_size) / outcome.seconds;
  return outcome;
}

void introduce(const Session& session) {
  if (session.size() == 1) {
    std::puts("One worker will now train a network to read digits, alone.");
  } else {
    const std::string hosts =
        session.host_count() == 1 ? "this host" : std::to_string(session.host_count()) + " hosts";
    std::printf(
        "%d workers on %s will now train one network to read digits: each takes its share\n"
        "of every batch, all sum their gradients, and at the end all hold the same network.\n",
        session.size(), hosts.c_str());
  }
  std::puts("");
  std::fflush(stdout);
}

void show_readings(const Trainer& trainer, const std::vector<Sample>& test, uint64_t seed) {
  digits::Random random(seed + 2);
  std::vector<Sample> shown;
  for (int i = 0; i < 4; ++i) shown.push_back(test[random.next() % test.size()]);
  std::printf("\nFour pictures that it had not seen:\n%s", digits::to_text(shown).c_str());
  for (const Sample& sample : shown) {
    const int read = predict(trainer.parameters(), sample.picture);
    std::printf("it is %d, read %d%s", sample.label, read, read == sample.label ? "   " : " X ");
  }
  std::printf("\n");
}

}  // namespace

int main(int, char** arguments) {
  const Options options = parse_options(arguments);
  const std::unique_ptr<Session> session = take(Session::open());
  const bool speaks = session->rank() == 0;
  if (speaks) introduce(*session);
  const auto training = digits::draw_samples(kTrainingSamples, options.seed * 2 + 1000);
  const auto test = digits::draw_samples(kTestSamples, options.seed * 2 + 1001);
  Trainer trainer(*session, options.seed);
  const Outcome outcome = train(*session, trainer, options, training, test);
  const bool identical =
      take(session->consensus("parameters", std::as_bytes(trainer.parameters())));
  if (speaks) {
    show_readings(trainer, test, options.seed);
    std::printf("\n");
    std::printf("workers              %d\n", session->size());
    std::printf("training             %d epochs of %zu pictures, batches of %d\n", options.epochs,
                kTrainingSamples, options.batch);
    std::printf("time                 %.2f s, %.0f pictures a second\n", outcome.seconds,
                outcome.samples_a_second);
    std::printf("in all-reduce        %.2f s, %.0f %% of it, waiting for others included\n",
                trainer.seconds_in_all_reduce(),
                100 * trainer.seconds_in_all_reduce() / outcome.seconds);
    std::printf("read right           %.1f %% of %zu new pictures\n", outcome.accuracy * 100,
                kTestSamples);
    std::printf("replicas identical   %s\n",
                identical ? "yes, bit for bit on every worker" : "NO: the workers have diverged");
  }
  return identical ? 0 : 1;
}
