// Steps: the training loop's side of elastic membership. A step ends committed by every member of
// the next view or by none; members that commit it hold the same bits.
//
// No message is spent on this while nothing happens: a member commits when its own operations have
// completed, and keeps their results until the next step's first operation has completed, which
// proves that everybody has them. When the view changes, the members of the new one exchange
// reports (membership/fate.h) and either hand the results on or run the step again from the inputs,
// which stay untouched until the commit. New members get the registered state between two steps.
// A step that is to keep its global batch comes back to its caller with the samples of lost members
// before it is run again (data/redeal.h).
//
// Owned by a Session; called by one thread, the one that trains.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/data/redeal.h"
#include "pliant/data/sampler.h"
#include "pliant/membership/fate.h"
#include "pliant/runtime/session.h"
#include "pliant/runtime/step_ground.h"

namespace pliant {

class Steps final {
 public:
  struct Options {
    bool elastic = false;                // false: the view never changes
    std::vector<uint64_t> report_steps;  // steps whose commit is told at once
    // What all members must know alike besides the state: packed by one, adopted by newcomers.
    std::function<std::vector<std::byte>()> settings;
    std::function<Status(Bytes)> adopt_settings;
    // How often they were changed: members that differ by a change agree on it at the next view.
    std::function<uint64_t()> settings_version;
    // What belongs to the state but has no fixed size: the same for newcomers alone.
    std::function<std::vector<std::byte>()> notes;
    std::function<Status(Bytes)> adopt_notes;
  };

  Steps(StepGround& ground, PeerId self, Options options);

  // Memory that is equal on all members after each commit, once the caller has applied the step, or
  // each member's own.
  // Before the first begin(); the same names, sizes and types on all members.
  Status register_state(std::string_view name, std::span<std::byte> memory, DType dtype,
                        StateKind kind = StateKind::kEqual);
  struct Registered {
    std::string_view name;
    std::span<std::byte> memory;
    DType dtype = DType::kU8;
    StateKind kind = StateKind::kEqual;
  };
  std::vector<Registered> registered() const;
  // Deals out samples to the members; its position is part of the state.
  Status use_sampler(const SamplerOptions& options);
  // Between two steps, the same on all members: from the next step on.
  Status set_global_batch(uint64_t samples);
  // Zeroes without a sampler.
  DataPosition data_position() const;
  // Of the k-th step after the open one, or after the last one if none is open, if nothing changes
  // until then: no view, no batch, and nobody is lost. Nothing for k = 0.
  UpcomingSamples upcoming_samples(size_t steps_ahead) const;
  bool has_sampler() const { return sampler_.has_value(); }

  // Opens the next step. False: this member is not part of the job any more, or all samples of all
  // epochs are consumed; an error ends the training.
  Result<bool> begin();
  // Returns when every member of the view has committed the last step of this one and makes the
  // same call, or is gone. Between steps. Until then this member can hand the results on to those
  // that a loss has interrupted; they would have to make the step again without it.
  void finish();
  uint64_t step_number() const { return open_ ? open_->number : committed_; }
  // True if the open step was begun by all members of the view, in this view.
  bool begun_by_all() const;
  // The members of the view in which the open step, or the last one, was first begun: every member
  // of the step knows the same, whatever has become of the view since.
  const std::vector<PeerId>& begun_by() const;
  uint32_t begun_in() const { return newest_.assigned_epoch; }
  // Of all that was handed in by this member in the open or the last step.
  uint64_t handed_in_bytes() const;
  // Members that this one saw go without having been asked to, since it began.
  const std::vector<PeerId>& losses() const { return losses_; }
  // The numbers of this member's samples in the open step; if there are more(), of those alone.
  const std::vector<uint64_t>& samples() const { return samples_; }

  // The batch that the open step, or the last one, was dealt out by; the same on all members, also
  // where they know different views. 0 without a sampler.
  uint64_t step_batch() const { return newest_.batch; }

  // Hands an input in. It must not change before commit() has returned. If `output` is not null,
  // commit() copies the result there.
  Status all_reduce(std::string_view name, const void* input, void* output, size_t count,
                    DType dtype, Op op);
  // Begins with the last of them too, instead of leaving it to commit().
  void start();
  // Completes the step, unless there are more() samples then. An error other than kCancelled (this
  // member is out) ends the training.
  Status commit();
  // True after a commit() that did not end the step: it has dealt samples of lost members to this
  // one. It adds them to what it has computed, hands all inputs in again, and commits again.
  bool more() const { return more_; }

  // Of the last committed step: valid until its name is handed in again.
  Result<std::span<const std::byte>> result(std::string_view name) const;
  // Its members, the dead ones whose inputs counted included, and what they contributed.
  int contributors() const { return contributor_count_; }
  uint64_t contributed_samples() const { return contributed_samples_; }
  // The numbers of all samples in the last committed step, member by member.
  std::vector<uint64_t> committed_samples() const;
  const StepTimes& last_change() const { return times_; }
  uint64_t committed() const { return committed_; }

 private:
  struct Pending {
    std::atomic<bool> done = false;
    Status status;
    const std::byte* result = nullptr;
  };
  struct Call {
    std::string name;
    Operation operation;  // its name points here
    void* copy_to = nullptr;
    const std::byte* result = nullptr;
    // Where a result goes that is not shared on the host; never touched otherwise.
    std::unique_ptr<std::byte[]> own_result;
    size_t own_bytes = 0;
    std::shared_ptr<Pending> pending;  // started and not waited for
    bool started = false;              // in the installed view
  };
  // The calls of a step. Its slots are used again by the step after the next: steps repeat
  // themselves, and the results of the last one must stay.
  struct Calls {
    std::vector<std::unique_ptr<Call>> slots;
    size_t count = 0;

    Call& at(size_t index) { return *slots[index]; }
    const Call& at(size_t index) const { return *slots[index]; }
  };
  struct Open {
    uint64_t number = 0;
    uint32_t assigned_epoch = 0;
    Draw draw;
    std::vector<PeerId> dealt_to;  // the members of the draw
    uint64_t batch = 0;            // that they were asked for; an epoch may have had less left
    size_t redeals = 0;            // that the draw has seen
    bool rolled_forward = false;
  };
  struct State {
    std::string name;
    std::span<std::byte> memory;
    DType dtype = DType::kU8;
    StateKind kind = StateKind::kEqual;
  };

  // Follows the views until one is installed and agreed on. The first time there is one already.
  Status change_view();
  void find_left_behind(const std::vector<Departure>& gone);
  Result<Fate> exchange_reports();
  Status settle(const Fate& fate);
  Status follow(const Fate& fate);
  // Some members of the installed view.
  Group group_of(const std::vector<Rank>& ranks) const;
  Status roll_forward(const Fate& fate);
  Status pass_on(const std::vector<Call*>& calls, const Group& group, bool behind);
  // The redeals that others have made of the step that is open, and the next one.
  Result<std::vector<Redeal>> learn_redeals(const Fate& fate);
  void redeal(const Fate& fate, std::vector<Redeal> redeals);
  std::vector<PeerId> counting_dead(const Fate& fate, const std::vector<Redeal>& redeals) const;
  const std::vector<PeerId>& dealt_to(const Fate& fate) const;
  bool keeps_batch() const { return sampler_ && sampler_->options().constant_batch; }
  void touch_state();
  Status give_state();
  Status exchange_manifest(bool has_state, Rank root);
  Status move_state(bool has_state, const std::vector<Rank>& sources);
  std::vector<std::byte> manifest() const;
  Status take_manifest(Bytes bytes);

  void deal_samples();
  Status run_calls();
  void start_call(Call& call);
  Status wait_for_calls();
  void prepare_call(Call& call);
  void finish_step();
  void skip_samples_of_open_step();
  void tell_progress();
  void tell_recovered();
  void note_contributors();
  Calls& open_calls() { return calls_[open_->number % 2]; }
  const Calls& kept_calls() const { return calls_[committed_ % 2]; }

  StepGround& ground_;
  const PeerId self_;
  const Options options_;
  std::vector<State> states_;
  std::optional<Sampler> sampler_;

  bool agreed_ = false;  // on the installed view
  bool repair_ = false;  // the installed view cannot work any more
  bool has_state_ = false;
  bool spoiled_ = false;  // the state was being received, and is neither the old nor the new
  uint64_t committed_ = 0;
  // The commit that ends the use of what departed members have left behind; 0: there is none.
  uint64_t forget_at_ = 0;
  Open newest_;           // kept from step to step for its memory
  Open* open_ = nullptr;  // the same, while it is neither committed nor given up
  Calls calls_[2];  // by the parity of the step: the open one's, and those of the one before it
  std::vector<uint64_t> samples_;

  Group active_;                    // the members with state
  std::vector<Rank> active_ranks_;  // the same, in the view
  bool newcomers_ = false;          // members without state are waiting for it
  uint64_t sync_before_ = 0;        // they get it before this step
  uint32_t inherited_epoch_ = 0;    // the samples of inherited_step_ were dealt out by this view
  uint64_t inherited_step_ = 0;     // that others have begun already
  std::map<uint32_t, std::vector<PeerId>> members_of_;  // of the last views
  // The redeals of a step, which this member may be about to begin.
  struct Redealt {
    uint64_t step = 0;
    uint32_t epoch = 0;  // the view by whose reports the last one was made
    std::vector<Redeal> all;
  } redealt_;
  bool more_ = false;
  // Dead members that had handed everything in: their inputs, by name.
  using Inputs = std::map<std::string, const std::byte*, std::less<>>;
  std::map<PeerId, Inputs> candidates_;
  std::vector<PeerId> left_behind_;  // those whose inputs count
  std::map<std::string, std::vector<const std::byte*>, std::less<>> left_inputs_;

  bool contributors_known_ = false;
  std::vector<char> contributed_;  // by the newest step's draw
  Draw last_draw_;
  int contributor_count_ = 0;
  uint64_t contributed_samples_ = 0;
  uint64_t samples_total_ = 0;
  std::vector<PeerId> losses_;
  StepTimes times_;
  std::optional<Instant> change_began_;
  std::optional<Instant> redo_began_;
  Instant last_progress_{};
  Instant last_look_{};  // at the clock
  uint64_t next_look_ = 0;
  uint64_t looks_apart_ = 1;
};

}  // namespace pliant
