#include "train/training_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "train/training_error.h"

namespace pliant::train {

namespace {

double milliseconds(Duration duration) { return 1e3 * seconds(duration); }

int64_t unix_milliseconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

}  // namespace

TrainingLog::TrainingLog(TrainingLogOptions options) : options_(std::move(options)), last_(now()) {
  if (options_.file.empty()) return;
  file_ = ::open(options_.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0)
    throw TrainingError("the log '" + options_.file +
                        "' cannot be written: " + std::strerror(errno));
}

TrainingLog::~TrainingLog() {
  if (file_ >= 0) ::close(file_);
}

void TrainingLog::committed(ElasticTrainer& trainer) {
  const Instant time = now();
  const uint64_t units = trainer.signals().batch * options_.units_per_sample;
  const double rate = static_cast<double>(units) / seconds(time - last_);
  last_ = time;
  nlohmann::ordered_json line = {{"step", trainer.step()},
                                 {"loss", trainer.loss()},
                                 {"members", trainer.members()},
                                 {"rank", trainer.session().rank()},
                                 {"samples", trainer.signals().batch},
                                 {options_.unit + "_per_s", rate},
                                 {"time_ms", unix_milliseconds()}};
  if (trainer.signals().noise) line["noise_scale"] = trainer.signals().noise->scale;
  const bool changed = trainer.members_changed() && !first_;
  if (changed || (first_ && trainer.step() > 1)) {
    const StepTimes& change = trainer.change();
    line["change"] = {{"joined", first_},
                      {"agree_ms", milliseconds(change.agree)},
                      {"redo_ms", milliseconds(change.redo)},
                      {"transfer_ms", milliseconds(change.transfer)},
                      {"transfer_bytes", change.transfer_bytes}};
  }
  const std::string text = line.dump() + "\n";
  const bool writes = trainer.session().rank() == 0;
  if (writes || line.contains("change")) {
    write(std::exchange(unwritten_, {}) + text);
  } else {
    unwritten_ = text;
  }
  if (writes) report(trainer, rate);
  first_ = false;
}

void TrainingLog::write(const std::string& line) {
  // One call: lines of several members do not mix.
  if (file_ >= 0 && ::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    throw TrainingError("the log '" + options_.file +
                        "' cannot be written: " + std::strerror(errno));
}

void TrainingLog::report(ElasticTrainer& trainer, double units_per_second) const {
  if (options_.report_every == 0) return;
  if (trainer.step() % options_.report_every != 0 && !trainer.members_changed()) return;
  std::printf("step %6llu  loss %.4f  %d member%s  %.0f %s/s\n",
              static_cast<unsigned long long>(trainer.step()), trainer.loss(), trainer.members(),
              trainer.members() == 1 ? "" : "s", units_per_second, options_.unit.c_str());
  std::fflush(stdout);
}

}  // namespace pliant::train
