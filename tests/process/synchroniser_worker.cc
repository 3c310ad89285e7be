// A worker for the tests of the synchroniser: learns a vector by momentum descent and writes down,
// step by step, all that the rules of synchronisation speak of, so that the test can replay them.
//
//   synchroniser_worker --records FOLDER [--steps N] [--way NAME] [--alpha A] [--seed S]
//     [--switch STEP:NAME,...] [--compression NAME] [--samples N --batch N [--constant yes]]
//     [--parameters N [--varied yes] [--loud yes]] [--type f64|f32] [--compute-ms N] [--share yes]
//
// Each sample has a target, and its gradient at v is v - target. The file FOLDER/PEER has a JSON
// line for each begin, hand-in and commit, written before the worker goes on. Models of more than
// 64 parameters are written down as their first element, and whether all elements are equal, which
// they are if they always belonged together: targets are then the same for all elements.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "pliant/base/checksum.h"
#include "pliant/training/synchroniser.h"

namespace {

using pliant::Compression;
using pliant::DType;
using pliant::Session;
using pliant::Status;
using pliant::Step;
using pliant::Synchronisation;
using pliant::Synchroniser;

constexpr size_t kWrittenMax = 64;
constexpr size_t kErrorMax = 200;  // elements whose error is computed
constexpr double kRate = 0.05;
constexpr double kMomentum = 0.5;

class Arguments final {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
  }
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    const auto at = values_.find(name);
    return at == values_.end() ? otherwise : at->second;
  }
  uint64_t number(const std::string& name, uint64_t otherwise = 0) const {
    const auto at = values_.find(name);
    return at == values_.end() ? otherwise : std::stoull(at->second);
  }

 private:
  std::map<std::string, std::string> values_;
};

Synchronisation way_of(const std::string& name) {
  for (const auto way : {Synchronisation::kModelAveraging, Synchronisation::kPairAveraging})
    if (name == to_string(way)) return way;
  return Synchronisation::kSynchronous;
}

Compression compression_of(const std::string& name) {
  for (const auto compression : {Compression::kBf16, Compression::kInt8})
    if (name == to_string(compression)) return compression;
  return Compression::kNone;
}

// "20:pair_averaging,40:synchronous": the ways from these steps on.
std::map<uint64_t, Synchronisation> switches_of(std::string text) {
  std::map<uint64_t, Synchronisation> switches;
  while (!text.empty()) {
    const std::string one = text.substr(0, text.find(','));
    text.erase(0, std::min(text.size(), one.size() + 1));
    switches[std::stoull(one)] = way_of(one.substr(one.find(':') + 1));
  }
  return switches;
}

template <typename T>
class Training final {
 public:
  Training(Session& session, const Arguments& arguments)
      : session_(session),
        arguments_(arguments),
        count_(arguments.number("--parameters", 8)),
        switches_(switches_of(arguments.text("--switch"))),
        is_varied_(count_ <= kWrittenMax || !arguments.text("--varied").empty()),
        has_loud_(!arguments.text("--loud").empty()),
        model_(count_),
        gradients_(count_),
        momentum_(count_) {
    self_ = session.world().peer(session.rank());
    const std::string path = arguments.text("--records") + "/" + to_string(self_);
    file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    // A job begins with the model of rank 0.
    for (size_t i = 0; i < count_; ++i)
      model_[i] = static_cast<T>(is_small() ? 1.0 + 0.25 * static_cast<double>(i) : 1.0) +
                  static_cast<T>(session.rank());
  }
  ~Training() { close(file_); }

  Status run() {
    PLIANT_TRY(prepare());
    const uint64_t steps = arguments_.number("--steps", UINT64_MAX);
    uint64_t done = 0;
    while (done < steps) {
      if (const auto at = switches_.find(done + 1); at != switches_.end() && done > 0)
        PLIANT_TRY(together_->switch_to(at->second));
      Step step = session_.begin_step();
      if (!step) return session_.status();
      auto applied = train(step);
      if (!applied) return applied.error();
      if (!*applied) return {};
      done = step.number();
    }
    return {};
  }

 private:
  bool is_small() const { return count_ <= kWrittenMax; }

  Status prepare() {
    if (const uint64_t samples = arguments_.number("--samples"); samples > 0)
      PLIANT_TRY(session_.use_sampler({.samples = samples,
                                       .global_batch = arguments_.number("--batch", 8),
                                       .seed = 3,
                                       .epochs = 0,
                                       .constant_batch = !arguments_.text("--constant").empty()}));
    const DType dtype = sizeof(T) == 8 ? DType::kF64 : DType::kF32;
    // Two parts of odd sizes, and the optimizer's state.
    const size_t first = count_ / 3 + 1;
    std::vector<pliant::Bucket> buckets = {
        {"first", model_.data(), gradients_.data(), first, dtype},
        {"second", model_.data() + first, gradients_.data() + first, count_ - first, dtype},
        {"momentum", momentum_.data(), nullptr, count_, dtype}};
    Synchroniser::Options options;
    options.synchronisation = way_of(arguments_.text("--way"));
    options.alpha = std::stod(arguments_.text("--alpha", "0.1"));
    options.compression = compression_of(arguments_.text("--compression"));
    options.seed = arguments_.number("--seed");
    options.may_switch = !switches_.empty();
    options.share_results = !arguments_.text("--share").empty();
    auto made = Synchroniser::make(session_, std::move(buckets), options);
    if (!made) return made.error();
    together_ = std::move(*made);
    return {};
  }

  // Of a sample; the same for all elements of a large model, unless they are to be varied.
  double target(uint64_t sample, size_t i) const {
    const double quiet = static_cast<double>((sample * 31 + (is_varied_ ? i * 17 : 0)) % 97) / 97.0;
    return is_loud(i) ? 2000 * quiet : quiet;
  }

  // A few elements whose gradients hide all others.
  bool is_loud(size_t i) const { return has_loud_ && i % 500 == 7; }

  // How far the model is from the mean of all targets, at most, loud ones aside.
  double error() const {
    const uint64_t samples = arguments_.number("--samples");
    double most = 0;
    for (size_t i = 0; i < count_ && samples > 0 && i < kErrorMax; ++i) {
      if (is_loud(i)) continue;
      double mean = 0;
      for (uint64_t sample = 0; sample < samples; ++sample) mean += target(sample, i);
      most = std::max(
          most, std::fabs(static_cast<double>(model_[i]) - mean / static_cast<double>(samples)));
    }
    return most;
  }

  void add_gradients(const Step& step) {
    std::vector<uint64_t> samples(step.samples().begin(), step.samples().end());
    if (!session_.has_sampler()) samples = {step.number() * 100 + self_.slot};
    for (const uint64_t sample : samples)
      for (size_t i = 0; i < count_; ++i)
        gradients_[i] += model_[i] - static_cast<T>(target(sample, i));
    own_samples_ += samples.size();
  }

  // False: this member is out of the job.
  pliant::Result<bool> train(Step& step) {
    std::fill(gradients_.begin(), gradients_.end(), T(0));
    own_samples_ = 0;
    std::vector<std::string> members;
    for (const pliant::PeerId peer : session_.world().members)
      members.push_back("\"" + to_string(peer) + "\"");
    write_line(
        fmt::format("\"event\": \"begin\", \"step\": {}, \"way\": \"{}\", \"view\": [{}], "
                    "\"v\": {}, \"m\": {}",
                    step.number(), to_string(together_->synchronisation()),
                    fmt::join(members, ", "), written(model_), written(momentum_)));
    PLIANT_TRY(together_->begin(step));  // its model may count from here on, whatever becomes of it
    bool apply = false;
    do {
      pause();
      add_gradients(step);
      write_line(
          fmt::format("\"event\": \"handed_in\", \"step\": {}, \"samples\": {}, "
                      "\"gradients\": {}",
                      step.number(), own_samples_, written(gradients_)));
      PLIANT_TRY(together_->ready(1));
      auto committed = together_->commit();
      if (!committed) return committed.error();
      apply = *committed;
    } while (!apply && step.more());
    if (!apply) return false;
    write_commit(step);
    optimize();
    return true;
  }

  void pause() const {
    const auto milliseconds = static_cast<long>(arguments_.number("--compute-ms"));
    if (milliseconds == 0) return;
    const timespec time{0, milliseconds * 1'000'000};
    nanosleep(&time, nullptr);
  }

  std::vector<T> to_apply() const {
    std::vector<T> all;
    for (size_t bucket = 0; bucket < 2; ++bucket) {
      const auto part = together_->gradients(bucket);
      const auto* begin = reinterpret_cast<const T*>(part.data());
      all.insert(all.end(), begin, begin + part.size() / sizeof(T));
    }
    return all;
  }

  void write_commit(const Step& step) {
    std::string pull = "null";
    if (const auto& last = together_->last_pull())
      pull = fmt::format("[\"{}\", {}]", to_string(last->peer), last->version);
    write_line(
        fmt::format("\"event\": \"commit\", \"step\": {}, \"members\": {}, \"contributors\": {}, "
                    "\"contributed\": {}, \"all_samples\": [{}], \"pull\": {}, \"missed\": {}, "
                    "\"sum\": {}, \"v\": {}, \"m\": {}, \"gradients\": {}, \"sent\": {}, "
                    "\"error\": {:.17g}",
                    step.number(), session_.size(), step.contributors(), step.contributed_samples(),
                    fmt::join(step.committed_samples(), ", "), pull, together_->pulls_missed(),
                    pliant::checksum64(std::as_bytes(std::span(model_))), written(model_),
                    written(momentum_), written(to_apply()), together_->reduced_bytes(), error()));
  }

  void optimize() {
    const std::vector<T> gradients = to_apply();
    for (size_t i = 0; i < count_; ++i) {
      momentum_[i] = static_cast<T>(kMomentum) * momentum_[i] + gradients[i];
      model_[i] -= static_cast<T>(kRate) * momentum_[i];
    }
    const Status published = together_->applied();
    PLIANT_CHECK(published.ok(), "the model is published");
  }

  std::string written(const std::vector<T>& values) const {
    if (!is_small()) {
      const bool equal = std::all_of(values.begin(), values.end(),
                                     [&](T value) { return value == values.front(); });
      return fmt::format("[{:.17g}, {}]", values.front(), equal ? 1 : 0);
    }
    std::string text;
    for (const T value : values) text += fmt::format("{}{:.17g}", text.empty() ? "" : ", ", value);
    return "[" + text + "]";
  }

  void write_line(const std::string& line) {
    const std::string whole = "{" + line + "}\n";
    const ssize_t written = write(file_, whole.data(), whole.size());
    PLIANT_CHECK(written == static_cast<ssize_t>(whole.size()), "the record is written");
  }

  Session& session_;
  const Arguments& arguments_;
  const size_t count_;
  const std::map<uint64_t, Synchronisation> switches_;
  const bool is_varied_;  // targets differ between elements
  const bool has_loud_;
  std::vector<T> model_;
  std::vector<T> gradients_;
  std::vector<T> momentum_;
  uint64_t own_samples_ = 0;
  pliant::PeerId self_;
  int file_ = -1;
  std::unique_ptr<Synchroniser> together_;
};

template <typename T>
Status train(Session& session, const Arguments& arguments) {
  Training<T> training(session, arguments);
  return training.run();
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  auto session = Session::open();
  if (!session) {
    std::fprintf(stderr, "%s\n", session.error().message.c_str());
    return 1;
  }
  const Status done = arguments.text("--type", "f64") == "f64" ? train<double>(**session, arguments)
                                                               : train<float>(**session, arguments);
  if (done.ok()) return 0;
  std::fprintf(stderr, "synchroniser_worker: %s\n", done.error().message.c_str());
  return 1;
}
