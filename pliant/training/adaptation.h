// An Adaptation runs the policies of a job (policy/policy.h) on the signals that a Monitor gathers,
// and carries out what they decide, alike on all members and at the boundaries of steps. Owned by
// whoever trains; called by the thread that does.
//
//   while (Step step = session.begin_step()) {
//     monitor->begin(step);
//     if (Status begun = adaptation->begin(step); !begun) return begun;
//     ... compute, hand in, commit, apply ...
//     monitor->committed(step);
//     if (Status adapted = adaptation->committed(); !adapted) return adapted;
//     if (adaptation->stopped()) break;
//   }
//   adaptation->finish();
//
// Members need no message to decide alike, since their signals have the same bits and newcomers get
// what the policies remember. What becomes of a decision:
//   - members: the first member of the view proposes the size, clipped to the job's limits, and
//     whoever is first after it does again, until the job has that size;
//   - global_batch: the sampler's, from the next step on;
//   - topology, measure_links: at the begin of the next step that all members begin together. Both
//     need everybody; a loss in between ends nothing, the next step tries again;
//   - synchronisation, learning_rate_factor: for the caller, who knows the optimizer;
//   - stop: for the caller, who leaves the loop.
// When two policies want different things at once, the first in the list has its way. Each decision
// is said once, by the first member, in a line with its reason.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/policy/policy.h"
#include "pliant/runtime/session.h"
#include "pliant/training/monitor.h"

namespace pliant {

struct AdaptationOptions {
  std::function<void(std::string_view line)> say = {};  // default: a line on standard error
};

class Adaptation final {
 public:
  using Policies = std::vector<std::unique_ptr<Policy>>;

  // Before the first step of the session; the same policies on all members. One a session, which it
  // borrows, and the monitor too.
  static Result<std::unique_ptr<Adaptation>> make(Session& session, Monitor& monitor,
                                                  Policies policies,
                                                  AdaptationOptions options = {});
  Adaptation(const Adaptation&) = delete;
  Adaptation& operator=(const Adaptation&) = delete;

  // After Monitor::begin(), before anything else of the step. Runs before_train, before_epoch and
  // before_step, and what needs all members. An error ends the training.
  Status begin(Step& step);
  // After Monitor::committed(). Runs after_step and after_epoch.
  Status committed();
  // The training is complete: runs after_train, and after a stop waits until all have come here.
  void finish();

  bool stopped() const { return now_.stopped; }
  // Of the rate that the job began with.
  double learning_rate_factor() const { return now_.learning_rate_factor; }
  // The last that a policy decided; needed only where no sampler deals out the samples.
  std::optional<uint64_t> global_batch() const;
  // A switch that the caller is to make before the next step, once; the same on all members.
  std::optional<Synchronisation> take_synchronisation();

  uint64_t decisions() const { return now_.decisions; }  // carried out in the life of the job
  // What the last measurement of links took; 0: this member made none.
  double measure_seconds() const { return measure_seconds_; }

 private:
  using Hook = Decision (Policy::*)(const Signals&);
  // Equal on all members between two steps; newcomers are given it.
  struct Now {
    bool train_began = false;
    uint64_t epochs_begun = 0;
    int wanted_members = 0;  // 0: as many as there are
    std::string wanted_topology = {};
    uint64_t wanted_measurements = 0;
    uint64_t wanted_batch = 0;   // not yet in force
    uint64_t decided_batch = 0;  // 0: no policy has decided one
    double learning_rate_factor = 1;
    std::optional<Synchronisation> synchronisation = {};
    bool stopped = false;
    uint64_t decisions = 0;
  };
  // Who has decided what since begin() or committed() was called.
  struct Decided {
    std::string_view members, global_batch, learning_rate_factor, synchronisation, topology;
  };

  Adaptation(Session& session, Monitor& monitor, Policies policies, AdaptationOptions options);
  std::vector<std::byte> pack() const;
  Status adopt(Bytes bytes);

  void consult(Hook hook);
  void take(std::string_view policy, const Decision& decision);
  // Each gives what changes, for people; empty if nothing does.
  std::string take_members(std::string_view policy, int members);
  std::string take_batch(uint64_t samples);
  std::string take_topology(std::string_view policy, const std::string& topology);
  std::string take_synchronisation(Synchronisation synchronisation);
  // True if no other policy has decided this since.
  bool first(std::string_view policy, std::string_view& owner, const char* what);

  Status carry_out(Step& step);
  Status finish_collective(const Status& status, const char* what);
  void propose();
  Status set_batch();
  void say(const std::string& line) const;
  void say_once(const std::string& line);

  Session& session_;
  Monitor& monitor_;
  const Policies policies_;
  const AdaptationOptions options_;
  Now now_;
  Decided decided_;
  int proposed_ = 0;  // by this member
  uint64_t proposed_at_ = 0;
  double measure_seconds_ = 0;
  std::string last_complaint_;
};

}  // namespace pliant
