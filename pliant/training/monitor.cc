#include "pliant/training/monitor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>

#include "pliant/base/contains.h"
#include "pliant/collective/squared_norm.h"
#include "pliant/training/monitor_note.h"

namespace pliant {
namespace {

constexpr std::string_view kName = "pliant/signals";

// The row of a member. A row of zeros: it had no part in the step.
enum Column : size_t {
  kPresent,
  kSamples,
  kLossSum,
  kLossSamples,
  kNormKnown,
  kSquaredNorm,
  kComputeSeconds,
  kWaitSeconds,
  kStepSeconds,
  kChangeSeconds,
  kLosses,
  kRefuses,
  kNonfinite,  // 0: all is finite; 1: the loss is not; 2 + t: tensor t is not
  kColumns,
};

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), began_(now()) {}
  ~Stopwatch() { seconds_ += pliant::seconds(now() - began_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  Instant began_;
};

double seconds_of(const StepTimes& times) {
  return seconds(times.agree + times.redo + times.transfer);
}

}  // namespace

Monitor::Monitor(Session& session, const MonitorOptions& options)
    : session_(session),
      options_(options),
      state_{NoiseScale(options.noise_decay), StragglerDetector(options.straggler)} {
  static_assert(std::is_trivially_copyable_v<State>, "newcomers get it byte by byte");
}

Result<std::unique_ptr<Monitor>> Monitor::make(Session& session, const MonitorOptions& options) {
  if (!(options.noise_decay >= 0 && options.noise_decay < 1))
    return invalid("the decay of the noise scale is from 0 to below 1");
  std::unique_ptr<Monitor> monitor(new Monitor(session, options));
  PLIANT_TRY(session.register_value("pliant/monitor", monitor->state_));
  PLIANT_TRY(session.register_note(
      "pliant/signals", [raw = monitor.get()] { return encode(raw->signals_); },
      [raw = monitor.get()](Bytes bytes) -> Status {
        auto signals = decode_signals(bytes);
        if (!signals) return signals.error();
        raw->signals_ = std::move(*signals);
        return {};
      }));
  return monitor;
}

// ---- Before the commit ------------------------------------------------------------------------

void Monitor::begin(const Step& step) {
  begun_ = now();
  data_epoch_ = session_.data_epoch();
  takes_norms_ = options_.noise_every != 0 && step.number() % options_.noise_every == 0;
  dealt_samples_ = step.samples().size();
  gradient_samples_.reset();
  norm_known_ = false;
  squared_norm_ = 0;
  names_.clear();
  loss_sum_ = 0;
  loss_samples_ = 0;
  nonfinite_ = kAllFinite;
  refuses_ = false;
}

// Those that were dealt later come on top, until they are handed in.
uint64_t Monitor::samples(const Step& step) const {
  return dealt_samples_ + (step.more() ? step.samples().size() : 0);
}

void Monitor::gradients(std::span<const GradientSpan> gradients, uint64_t samples,
                        GradientForm form) {
  gradient_samples_ = samples;
  if (!takes_norms_) return;
  const Stopwatch watch(costs_.norms_seconds);
  form_ = form;
  names_.clear();
  double sum = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const GradientSpan& part = gradients[i];
    names_.push_back({std::string(part.name), part.dtype});
    const double square = squared_norm(part.data, part.count, part.dtype);
    if (!std::isfinite(square)) nonfinite(static_cast<int>(i));
    sum += square;
  }
  norm_known_ = samples > 0 && std::isfinite(sum);
  const auto count = static_cast<double>(samples);
  squared_norm_ = !norm_known_ ? 0 : form == GradientForm::kSum ? sum / (count * count) : sum;
}

void Monitor::loss(double mean, uint64_t samples) {
  if (!std::isfinite(mean)) return nonfinite(Nonfinite::kLoss);
  loss_sum_ += mean * static_cast<double>(samples);
  loss_samples_ += samples;
}

void Monitor::nonfinite(int tensor) {
  if (nonfinite_ == kAllFinite) nonfinite_ = std::max(tensor, Nonfinite::kLoss);
}

// By the views in which the two steps were begun, not by when this member heard of a loss: some
// hear of it inside the step that others have not begun yet.
int Monitor::losses_before(const Step& step) const {
  int losses = 0;
  for (const MemberSignals& member : signals_.by_rank)
    if (!contains(step.begun_by(), member.peer) && contains(session_.losses(), member.peer))
      ++losses;
  return losses;
}

Status Monitor::hand_in(Step& step) {
  fill_rows(step);
  // Not counted as a cost of the monitor: it also starts what was handed in before.
  return step.all_reduce(kName, rows_.data(), rows_.size(), DType::kF64, Op::kSum);
}

void Monitor::fill_rows(const Step& step) {
  const Stopwatch watch(costs_.signals_seconds);
  dealt_samples_ = samples(step);
  reduced_bytes_ = step.handed_in_bytes();
  handed_in_ = now();
  const std::vector<PeerId>& members = step.begun_by();
  const PeerId self = session_.world().peer(session_.rank());
  rows_.assign(members.size() * kColumns, 0.0);
  const auto at = std::find(members.begin(), members.end(), self);
  if (at != members.end()) {
    double* const row = &rows_[static_cast<size_t>(at - members.begin()) * kColumns];
    uint64_t samples = dealt_samples_ != 0 ? dealt_samples_ : loss_samples_;
    if (gradient_samples_) samples = *gradient_samples_;
    row[kPresent] = 1;
    row[kSamples] = static_cast<double>(samples);
    row[kLossSum] = loss_sum_;
    row[kLossSamples] = static_cast<double>(loss_samples_);
    row[kNormKnown] = norm_known_ ? 1 : 0;
    row[kSquaredNorm] = squared_norm_;
    // The same steps are known to everybody: those whose step before was begun in the same view.
    if (last_step_ + 1 == step.number() && last_view_ == step.begun_in()) {
      row[kComputeSeconds] = last_compute_seconds_;
      row[kWaitSeconds] = last_wait_seconds_;
      row[kStepSeconds] = last_step_seconds_;
    }
    row[kChangeSeconds] = change_seconds_;
    row[kLosses] = losses_before(step);
    row[kRefuses] = refuses_ ? 1 : 0;
    row[kNonfinite] = nonfinite_ == kAllFinite ? 0 : nonfinite_ + 2;
  }
  costs_.signal_bytes = rows_.size() * sizeof(double);
}

// ---- After the commit -------------------------------------------------------------------------

const Signals& Monitor::committed(const Step& step) {
  double square = std::numeric_limits<double>::quiet_NaN();
  if (takes_norms_ && !names_.empty() && step.begun_by().size() > 1) {
    const Stopwatch watch(costs_.norms_seconds);
    square = mean_squared_norm(step);
  }
  return complete(step, square);
}

const Signals& Monitor::committed(const Step& step, std::span<const GradientSpan> mean_gradient) {
  double square = std::numeric_limits<double>::quiet_NaN();
  if (takes_norms_ && step.begun_by().size() > 1) {
    const Stopwatch watch(costs_.norms_seconds);
    square = 0;
    for (const GradientSpan& part : mean_gradient)
      square += squared_norm(part.data, part.count, part.dtype);
  }
  return complete(step, square);
}

double Monitor::mean_squared_norm(const Step& step) const {
  double sum = 0;
  for (const Named& part : names_) {
    const auto bytes = step.result(part.name);
    if (!bytes) return std::numeric_limits<double>::quiet_NaN();
    sum += squared_norm(bytes->data(), bytes->size() / size_of(part.dtype), part.dtype);
  }
  return sum;
}

const Signals& Monitor::complete(const Step& step, double mean_squared_norm) {
  const Stopwatch watch(costs_.signals_seconds);
  ++costs_.steps;
  const auto rows = step.result_of<double>(kName);
  // The step is committed with what hand_in() gave: whoever forgot that has a bug.
  PLIANT_CHECK(rows.ok(), "Monitor::committed() without hand_in() in this step");
  read_rows(step, *rows);
  read_times(*rows);
  read_noise(step, *rows, mean_squared_norm);
  note_times(step);
  return signals_;
}

void Monitor::read_rows(const Step& step, std::span<const double> rows) {
  const std::vector<PeerId>& members = step.begun_by();
  Signals next;
  double samples = 0, loss_sum = 0, loss_samples = 0, losses = 0;
  std::set<uint32_t> hosts;
  refused_ = false;
  for (size_t i = 0; i < members.size(); ++i) {
    const double* const row = &rows[i * kColumns];
    hosts.insert(members[i].host);
    next.by_rank.push_back({members[i], row[kComputeSeconds], row[kWaitSeconds]});
    samples += row[kSamples];
    loss_sum += row[kLossSum];
    loss_samples += row[kLossSamples];
    losses = std::max(losses, row[kLosses]);
    refused_ = refused_ || row[kRefuses] > 0;
    if (row[kNonfinite] > 0 && !next.nonfinite)
      next.nonfinite = {static_cast<Rank>(i), members[i], static_cast<int>(row[kNonfinite]) - 2};
  }
  next.step = step.number();
  next.view = step.begun_in();
  next.data_epoch = data_epoch_;
  next.members = static_cast<int>(members.size());
  next.hosts = static_cast<int>(hosts.size());
  next.members_lost = static_cast<int>(losses);
  next.batch = static_cast<uint64_t>(samples);
  next.loss = loss_samples > 0 ? loss_sum / loss_samples : std::numeric_limits<double>::quiet_NaN();
  next.reduced_bytes = reduced_bytes_;
  next.synchronisation = synchronisation_;
  next.topology = session_.strategy();
  next.links = session_.links();
  state_.samples_committed += next.batch;
  next.samples_committed = state_.samples_committed;
  signals_ = std::move(next);
}

void Monitor::read_times(std::span<const double> rows) {
  double change = 0;
  signals_.wait_seconds = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < signals_.by_rank.size(); ++i) {
    const double* const row = &rows[i * kColumns];
    if (row[kPresent] == 0) continue;
    signals_.step_seconds = std::max(signals_.step_seconds, row[kStepSeconds]);
    signals_.compute_seconds = std::max(signals_.compute_seconds, row[kComputeSeconds]);
    signals_.wait_seconds = std::min(signals_.wait_seconds, row[kWaitSeconds]);
    change = std::max(change, row[kChangeSeconds]);
  }
  if (!std::isfinite(signals_.wait_seconds)) signals_.wait_seconds = 0;
  // Newcomers have seen no change themselves: if all others leave, what was agreed on stays.
  if (change > 0) state_.change_seconds = change;
  signals_.change_seconds = state_.change_seconds;
  if (signals_.step_seconds > 0)
    signals_.samples_per_second = static_cast<double>(state_.batch) / signals_.step_seconds;
  state_.batch = signals_.batch;
  if (signals_.compute_seconds > 0) signals_.straggler = state_.straggler.add(signals_.by_rank);
}

void Monitor::read_noise(const Step& step, std::span<const double> rows, double mean_squared_norm) {
  std::vector<GradientNorm> norms;
  bool comparable = takes_norms_;
  for (size_t i = 0; i < signals_.by_rank.size(); ++i) {
    const double* const row = &rows[i * kColumns];
    if (row[kPresent] == 0) continue;
    // Who counts in the mean, but has no norm to tell, spoils the comparison.
    if (row[kNormKnown] == 0 && row[kSamples] > 0) comparable = false;
    norms.push_back({row[kSamples], row[kSquaredNorm]});
  }
  // Sums over samples that were averaged over members, for want of a sampler.
  if (form_ == GradientForm::kSum && step.contributed_samples() == 0 && signals_.batch > 0) {
    const double share = static_cast<double>(norms.size()) / static_cast<double>(signals_.batch);
    mean_squared_norm *= share * share;
  }
  if (comparable) state_.noise.add(noise_sample(norms, mean_squared_norm));
  signals_.noise = state_.noise.noise();
}

void Monitor::note_times(const Step& step) {
  const Instant at = now();
  // In the first step of a view there was a change before it, unless the job began with it.
  if (last_step_ != 0 && last_view_ != step.begun_in())
    change_seconds_ = seconds_of(session_.last_change());
  last_step_seconds_ = last_step_ == 0 ? 0 : seconds(at - last_commit_);
  last_compute_seconds_ = seconds(handed_in_ - begun_);
  last_wait_seconds_ = seconds(at - handed_in_);
  last_commit_ = at;
  last_step_ = step.number();
  last_view_ = step.begun_in();
}

}  // namespace pliant
