#include "pliant/runtime/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "pliant/base/contains.h"
#include "pliant/base/defect.h"
#include "pliant/base/log.h"

namespace pliant {
namespace {

constexpr size_t kViewsKept = 16;
constexpr uint64_t kSettingsBytesMax = uint64_t{64} << 20;
constexpr uint64_t kForgetAgainAfter = 8;
constexpr uint64_t kLooksApart = 1024;  // steps, at most
constexpr Duration kProgressEvery = std::chrono::milliseconds(100);

// A job of fixed size will not have another view.
bool repairable(const Error& error, bool elastic) { return elastic && next_view_heals(error); }

}  // namespace

bool next_view_heals(const Error& error) {
  // After a timeout: whoever did not do its part was reported, and the next view is without it.
  return error.code == Code::kPeerLost || error.code == Code::kStaleEpoch ||
         error.code == Code::kTimeout;
}

Steps::Steps(StepGround& ground, PeerId self, Options options)
    : ground_(ground), self_(self), options_(std::move(options)) {}

Status Steps::register_state(std::string_view name, std::span<std::byte> memory, DType dtype,
                             StateKind kind) {
  if (agreed_)
    return invalid(fmt::format("state '{}' is registered too late: before the first step", name));
  if (name.empty() || name.size() > 200)
    return invalid("the name of a state has 1 to 200 characters");
  for (const State& state : states_)
    if (state.name == name) return invalid(fmt::format("state '{}' is registered twice", name));
  states_.push_back({std::string(name), memory, dtype, kind});
  return {};
}

std::vector<Steps::Registered> Steps::registered() const {
  std::vector<Registered> all;
  for (const State& state : states_)
    all.push_back({state.name, state.memory, state.dtype, state.kind});
  return all;
}

// ---- A step -----------------------------------------------------------------------------------

Result<bool> Steps::begin() {
  if (open_) return invalid(fmt::format("step {} was begun and not committed", open_->number));
  if (ground_.candidate()) touch_state();
  while (true) {
    if (!agreed_ || repair_ || ground_.newer_view()) {
      const Status changed = change_view();
      if (!changed && changed.code() == Code::kCancelled) return false;
      if (!changed) return changed.error();
    }
    if (!newcomers_ || (has_state_ && committed_ + 1 < sync_before_)) break;
    const Status given = give_state();
    if (given) break;
    if (!repairable(given.error(), options_.elastic)) return given.error();
    repair_ = true;
  }
  if (sampler_ && sampler_->done()) {
    finish();
    return false;
  }
  open_ = &newest_;
  open_->number = committed_ + 1;
  open_->redeals = 0;
  open_->rolled_forward = false;
  const bool inherited = inherited_step_ == open_->number && inherited_epoch_ != 0;
  open_->assigned_epoch = inherited ? inherited_epoch_ : number(ground_.view().epoch);
  open_calls().count = 0;
  if (sampler_) deal_samples();
  return true;
}

// Whatever fails in here does not make the last step less committed.
void Steps::finish() {
  if (open_ || !agreed_) return;
  while (true) {
    if ((repair_ || ground_.newer_view()) && !change_view()) return;
    Operation meeting;
    meeting.collective = Collective::kBarrier;
    meeting.name = "pliant/end";
    const Status met = ground_.run(meeting, active_, nullptr);
    if (met.ok() || !repairable(met.error(), options_.elastic)) return;
    repair_ = true;
  }
}

// One that others began in an older view is inherited; newcomers are let in after it.
bool Steps::begun_by_all() const {
  return open_ && !newcomers_ && open_->assigned_epoch == number(ground_.view().epoch);
}

const std::vector<PeerId>& Steps::begun_by() const {
  static const std::vector<PeerId> nobody;
  const auto at = members_of_.find(newest_.assigned_epoch);
  return at == members_of_.end() ? nobody : at->second;
}

uint64_t Steps::handed_in_bytes() const {
  const Calls& calls = calls_[step_number() % 2];
  uint64_t bytes = 0;
  for (size_t i = 0; i < calls.count; ++i)
    bytes += calls.at(i).operation.count * size_of(calls.at(i).operation.dtype);
  return bytes;
}

Status Steps::all_reduce(std::string_view name, const void* input, void* output, size_t count,
                         DType dtype, Op op) {
  if (!open_) return invalid(fmt::format("all_reduce '{}' outside a step: begin one first", name));
  Calls& calls = open_calls();
  for (size_t i = 0; i < calls.count; ++i)
    if (calls.at(i).name == name)
      return invalid(fmt::format("'{}' was handed in twice in a step", name));
  // What dead members left behind is of the same names.
  if (!left_inputs_.empty() && !left_inputs_.contains(name))
    return invalid(fmt::format(
        "'{}' was not handed in before: a step with more samples has the same names", name));
  // Whoever hands in the next input has time for the one before; the last is run by commit().
  start();
  if (calls.count == calls.slots.size()) calls.slots.push_back(std::make_unique<Call>());
  Call& call = calls.at(calls.count++);
  if (call.name != name) call.name = name;
  call.copy_to = output;
  call.started = false;
  Operation& operation = call.operation;
  operation.collective = Collective::kAllReduce;
  operation.name = call.name;
  operation.input = input;
  operation.count = count;
  operation.dtype = dtype;
  operation.op = op;
  operation.shared_result = true;
  operation.mark = open_->number;
  return {};
}

void Steps::start() {
  if (!open_ || open_calls().count == 0 || ground_.newer_view()) return;
  Call& last = open_calls().at(open_calls().count - 1);
  note_contributors();
  if (!last.started) start_call(last);
}

void Steps::prepare_call(Call& call) {
  const size_t bytes = call.operation.count * size_of(call.operation.dtype);
  if (call.own_bytes < bytes) {
    call.own_result = std::make_unique_for_overwrite<std::byte[]>(bytes);
    call.own_bytes = bytes;
  }
  call.started = true;
  call.operation.output = call.own_result.get();
  call.operation.left_behind = {};
  if (!left_inputs_.empty()) call.operation.left_behind = left_inputs_.at(call.name);
  call.operation.mean_over =
      sampler_ ? static_cast<int>(std::max<uint64_t>(1, contributed_samples_)) : contributor_count_;
}

void Steps::start_call(Call& call) {
  prepare_call(call);
  call.pending = std::make_shared<Pending>();
  ground_.start(call.operation, active_,
                [pending = call.pending](const Status& status, const std::byte* result) {
                  if (!status.ok()) pending->status = status.error();
                  pending->result = result;
                  pending->done.store(true, std::memory_order_release);
                  pending->done.notify_all();
                });
}

// Also of calls that an older view has interrupted: their memory is ours again only then.
Status Steps::wait_for_calls() {
  Status first;
  Calls& calls = open_calls();
  for (size_t i = 0; i < calls.count; ++i) {
    Call& call = calls.at(i);
    if (!call.pending) continue;
    ground_.wait(call.pending->done);
    call.result = call.pending->result;
    if (first.ok() && !call.pending->status.ok()) first = call.pending->status.error();
    call.pending.reset();
  }
  return first;
}

void Steps::note_contributors() {
  if (contributors_known_) return;
  contributors_known_ = true;
  contributor_count_ = active_.size() + static_cast<int>(left_behind_.size());
  if (!sampler_) return;
  contributed_.assign(open_->dealt_to.size(), 0);
  contributed_samples_ = 0;
  for (size_t i = 0; i < open_->dealt_to.size(); ++i) {
    const PeerId peer = open_->dealt_to[i];
    const bool counts = contains(active_.members, peer) || contains(left_behind_, peer);
    if (!counts && test_defect() != Defect::kDeadSamplesKept) continue;
    contributed_[i] = 1;
    contributed_samples_ += size_of(open_->draw.members[i]);
  }
}

Status Steps::run_calls() {
  note_contributors();
  Calls& calls = open_calls();
  // A step without an exchange would let members run apart.
  if (calls.count == 0) {
    Operation meeting;
    meeting.collective = Collective::kBarrier;
    meeting.name = "pliant/step";
    return ground_.run(meeting, active_, nullptr);
  }
  for (size_t i = 0; i + 1 < calls.count; ++i)
    if (!calls.at(i).started) start_call(calls.at(i));
  Call& last = calls.at(calls.count - 1);
  if (last.started) return wait_for_calls();
  prepare_call(last);
  Status status = ground_.run(last.operation, active_, &last.result);
  if (calls.count == 1) return status;
  Status others = wait_for_calls();
  return status.ok() ? std::move(others) : std::move(status);
}

Status Steps::commit() {
  if (!open_) return invalid("commit outside a step: begin one first");
  more_ = false;
  while (true) {
    if (!ground_.newer_view()) {
      const Status run = run_calls();
      // Who was stopped may find its operation complete when the others have gone on without it.
      const bool left_behind = run.ok() && ground_.left_behind();
      if ((run.ok() && !left_behind) || test_defect() == Defect::kLocalCommit) break;
      if (!run.ok() && !repairable(run.error(), options_.elastic)) {
        open_ = nullptr;
        return run.error();
      }
    }
    if (Status changed = change_view(); !changed) {
      open_ = nullptr;
      return changed;
    }
    if (open_->rolled_forward) break;
    // Nothing of the old view refers to the inputs any more: the caller may change them.
    if (more_) {
      open_calls().count = 0;
      return {};
    }
    if (test_defect() == Defect::kCursorOnAbort) skip_samples_of_open_step();
  }
  finish_step();
  return {};
}

void Steps::finish_step() {
  const Calls& calls = open_calls();
  for (size_t i = 0; i < calls.count; ++i) {
    const Call& call = calls.at(i);
    if (call.copy_to != nullptr)
      std::memcpy(call.copy_to, call.result, call.operation.count * size_of(call.operation.dtype));
  }
  if (sampler_) {
    std::unique_ptr<bool[]> contributed = std::make_unique<bool[]>(contributed_.size());
    for (size_t i = 0; i < contributed_.size(); ++i) contributed[i] = contributed_[i] != 0;
    sampler_->commit(open_->draw, {contributed.get(), contributed_.size()});
    samples_total_ += contributed_samples_;
    last_draw_ = std::move(open_->draw);
  }
  committed_ = open_->number;
  if (forget_at_ != 0 && committed_ >= forget_at_) {
    forget_at_ = ground_.forget_departed(active_) ? 0 : committed_ + kForgetAgainAfter;
  }
  // They are those of the next step too, unless this one was special.
  contributors_known_ =
      contributors_known_ && !sampler_ && left_behind_.empty() && !open_->rolled_forward;
  open_ = nullptr;
  left_behind_.clear();
  left_inputs_.clear();
  candidates_.clear();
  tell_progress();
}

void Steps::tell_progress() {
  if (redo_began_) tell_recovered();
  const bool asked =
      std::binary_search(options_.report_steps.begin(), options_.report_steps.end(), committed_);
  if (!asked && committed_ < next_look_) return;
  if (!options_.elastic || ground_.world().self != 0) return;
  const Instant now = ground_.time();
  // Steps of microseconds do not pay for the clock each time; of those that take long, each is
  // told.
  const bool often = now - std::exchange(last_look_, now) < kProgressEvery / 4;
  looks_apart_ = std::clamp<uint64_t>(often ? looks_apart_ * 2 : looks_apart_ / 2, 1, kLooksApart);
  next_look_ = committed_ + looks_apart_;
  if (!asked && now - last_progress_ < kProgressEvery) return;
  last_progress_ = now;
  ground_.tell(Progress{committed_, samples_total_});
}

void Steps::tell_recovered() {
  times_.redo = ground_.time() - *redo_began_;
  redo_began_.reset();
  if (!options_.elastic || ground_.world().self != 0) return;
  ground_.tell(Recovered{.epoch = number(ground_.view().epoch),
                         .step = committed_,
                         .agree_ns = times_.agree.count(),
                         .redo_ns = times_.redo.count(),
                         .transfer_ns = times_.transfer.count(),
                         .transfer_bytes = times_.transfer_bytes,
                         .incomplete = newcomers_});
}

Result<std::span<const std::byte>> Steps::result(std::string_view name) const {
  const Calls& calls = kept_calls();
  for (size_t i = 0; i < calls.count && !open_; ++i)
    if (calls.at(i).name == name)
      return std::span(calls.at(i).result,
                       calls.at(i).operation.count * size_of(calls.at(i).operation.dtype));
  return invalid(fmt::format("step {} has no result '{}'", committed_, name));
}

// ---- A change of the view ---------------------------------------------------------------------

Status Steps::change_view() {
  change_began_ = ground_.time();
  times_ = {};
  while (true) {
    if (agreed_ || ground_.newer_view() || repair_ || ground_.candidate()) {
      auto change = ground_.await_view();
      if (!change) return change.error();
      if (open_) (void)wait_for_calls();
      if (change->view.rank_of(self_) < 0)
        return Error{
            Code::kCancelled,
            fmt::format("this member is not part of epoch {} any more", number(change->view.epoch)),
            {},
            change->view.epoch};
      find_left_behind(change->gone);
      for (const Departure& departure : change->gone)
        if (!departure.planned) losses_.push_back(departure.peer);
      ground_.install(*change);
    }
    agreed_ = false;
    repair_ = true;  // whatever fails from here on needs another view
    auto& members = members_of_[number(ground_.view().epoch)];
    members = ground_.world().members;
    if (members_of_.size() > kViewsKept) members_of_.erase(members_of_.begin());
    auto fate = exchange_reports();
    Status followed = fate ? settle(*fate) : Status(fate.error());
    if (followed.ok()) followed = follow(*fate);
    if (followed.ok()) break;
    if (!repairable(followed.error(), options_.elastic)) return followed;
  }
  agreed_ = true;
  repair_ = false;
  redo_began_ = ground_.time();
  times_.agree = *redo_began_ - *change_began_;
  return {};
}

// Before the view is installed: it is the last moment at which the calls of the old one are known.
void Steps::find_left_behind(const std::vector<Departure>& gone) {
  if (!open_ || !active_.one_host()) return;
  const Calls& calls = open_calls();
  for (const Departure& departure : gone) {
    // One that may still run may still change its inputs.
    if (!departure.ended || departure.peer.host != self_.host) continue;
    if (std::find(active_.members.begin(), active_.members.end(), departure.peer) ==
        active_.members.end())
      continue;
    Inputs inputs;
    // One that completed all calls may have committed, and then written the next step's inputs.
    bool may_have_committed = true;
    for (size_t i = 0; i < calls.count && calls.at(i).started; ++i) {
      const HandedIn given = ground_.handed_in(departure.peer, calls.at(i).operation, active_);
      if (given.data != nullptr) inputs[calls.at(i).name] = given.data;
      may_have_committed = may_have_committed && given.finished;
    }
    if (calls.count > 0 && inputs.size() == calls.count && !may_have_committed)
      candidates_[departure.peer] = std::move(inputs);
  }
}

Result<Fate> Steps::exchange_reports() {
  StepReport mine;
  mine.committed = has_state_ ? committed_ : 0;
  if (options_.settings_version) mine.settings = options_.settings_version();
  mine.has_state = has_state_ ? StepReport::kState : StepReport::kFresh;
  if (!has_state_ && spoiled_) mine.has_state = StepReport::kSpoiled;
  if (open_) {
    mine.open = open_->number;
    mine.assigned_epoch = open_->assigned_epoch;
    if (redealt_.step == open_->number) {
      mine.redealt_epoch = redealt_.epoch;
      mine.redeals = static_cast<uint32_t>(redealt_.all.size());
    }
    size_t count = 0;
    for (const auto& [peer, inputs] : candidates_)
      if (count < kLeftBehindMax) mine.left_behind[count++] = peer.packed();
  }
  const Group& world = ground_.world();
  std::vector<StepReport> reports(static_cast<size_t>(world.size()));
  Operation exchange;
  exchange.collective = Collective::kAllGather;
  exchange.name = "pliant/fate";
  exchange.input = &mine;
  exchange.output = reports.data();
  exchange.count = sizeof(StepReport);
  exchange.dtype = DType::kU8;
  exchange.plain_plan = true;
  PLIANT_TRY(ground_.run(exchange, world, nullptr));
  return decide_fate(reports);
}

// Before anything else is exchanged, since all other operations are planned by them.
Status Steps::settle(const Fate& fate) {
  if (fate.settler < 0 || !options_.settings || !options_.adopt_settings) return {};
  const Group& world = ground_.world();
  std::vector<std::byte> bytes;
  if (world.self == fate.settler) bytes = options_.settings();
  uint64_t size = bytes.size();
  Operation tell;
  tell.collective = Collective::kBroadcast;
  tell.name = "pliant/settings/size";
  tell.input = &size;
  tell.output = &size;
  tell.count = sizeof size;
  tell.dtype = DType::kU8;
  tell.root = fate.settler;
  tell.plain_plan = true;
  PLIANT_TRY(ground_.run(tell, world, nullptr));
  if (size > kSettingsBytesMax) return invalid("the settings of the job are too large");
  bytes.resize(size);
  tell.name = "pliant/settings";
  tell.input = bytes.data();
  tell.output = bytes.data();
  tell.count = size;
  PLIANT_TRY(ground_.run(tell, world, nullptr));
  return world.self == fate.settler ? Status() : options_.adopt_settings(bytes);
}

Group Steps::group_of(const std::vector<Rank>& ranks) const {
  std::vector<PeerId> members;
  for (const Rank rank : ranks) members.push_back(ground_.world().peer(rank));
  return make_group(members, self_, ground_.view().epoch);
}

Status Steps::follow(const Fate& fate) {
  const Group& world = ground_.world();
  // The results of the step before the open one may stand in memory of departed members until that
  // one is committed. At the same step on all members: a leader may have begun to use such memory.
  forget_at_ = fate.committed + 2;
  active_ranks_ = fate.with_state;
  newcomers_ = fate.with_state.size() < static_cast<size_t>(world.size());
  sync_before_ = fate.sync_before;
  inherited_step_ = fate.open;
  inherited_epoch_ = fate.assigned_epoch;
  const bool with_state = std::find(fate.with_state.begin(), fate.with_state.end(), world.self) !=
                          fate.with_state.end();
  if (!with_state) return {};
  // The first member of a new job: what it has is the state.
  has_state_ = true;
  if (test_defect() != Defect::kRankReuse || active_.members.empty())
    active_ = group_of(fate.with_state);
  // What can fail comes first: from the end of roll_forward() on this member follows the fate.
  auto redeals = learn_redeals(fate);
  if (!redeals) return redeals.error();
  PLIANT_TRY(roll_forward(fate));
  left_behind_.clear();
  left_inputs_.clear();
  if (!open_) contributors_known_ = false;
  if (open_ && !open_->rolled_forward) {
    contributors_known_ = false;
    for (size_t i = 0; i < open_calls().count; ++i) open_calls().at(i).started = false;
    left_behind_ = counting_dead(fate, *redeals);
    for (const PeerId peer : left_behind_)
      for (const auto& [name, data] : candidates_.at(peer)) left_inputs_[name].push_back(data);
  }
  redeal(fate, std::move(*redeals));
  return {};
}

Status Steps::roll_forward(const Fate& fate) {
  const Rank self = ground_.world().self;
  const bool behind = std::find(fate.behind.begin(), fate.behind.end(), self) != fate.behind.end();
  if (fate.behind.empty() || (!behind && self != fate.holder)) return {};
  if (test_defect() == Defect::kRollForwardSkipped) return {};
  std::vector<Rank> ranks = {fate.holder};
  ranks.insert(ranks.end(), fate.behind.begin(), fate.behind.end());
  const Group group = group_of(ranks);
  if (behind && !open_)
    return invalid(
        fmt::format("step {} was committed by others, but not begun here", fate.committed));
  Calls& calls = calls_[fate.committed % 2];
  // In the order of their names, which may have been handed in in any order.
  std::vector<Call*> ordered;
  for (size_t i = 0; i < calls.count; ++i) ordered.push_back(&calls.at(i));
  std::sort(ordered.begin(), ordered.end(),
            [](const Call* left, const Call* right) { return left->name < right->name; });
  PLIANT_TRY(pass_on(ordered, group, behind));
  if (behind) open_->rolled_forward = true;
  return {};
}

// On one host a shared result is there for all, as soon as one has seen it complete.
Status Steps::pass_on(const std::vector<Call*>& calls, const Group& group, bool behind) {
  std::vector<SharedPlace> places(calls.size());
  if (group.one_host() && !behind)
    for (size_t i = 0; i < calls.size(); ++i)
      places[i] = ground_.place_of(calls[i]->result,
                                   calls[i]->operation.count * size_of(calls[i]->operation.dtype));
  if (group.one_host() && !calls.empty()) {
    Operation tell;
    tell.collective = Collective::kBroadcast;
    tell.name = "pliant/places";
    tell.input = behind ? nullptr : places.data();
    tell.output = places.data();
    tell.count = places.size() * sizeof(SharedPlace);
    tell.dtype = DType::kU8;
    PLIANT_TRY(ground_.run(tell, group, nullptr));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    Call* const call = calls[i];
    if (behind) prepare_call(*call);
    if (places[i].owner != 0) {
      if (behind) call->result = ground_.at(places[i]);
      if (call->result == nullptr)
        return invalid(
            fmt::format("the result '{}' is in memory of a peer that was never met", call->name));
      continue;
    }
    const std::string name = "pliant/forward/" + call->name;
    Operation pass;
    pass.collective = Collective::kBroadcast;
    pass.name = name;
    pass.input = behind ? nullptr : call->result;
    pass.output =
        behind ? static_cast<void*>(call->own_result.get()) : const_cast<std::byte*>(call->result);
    pass.count = call->operation.count;
    pass.dtype = call->operation.dtype;
    PLIANT_TRY(ground_.run(pass, group, nullptr));
    if (behind) call->result = call->own_result.get();
  }
  return {};
}

}  // namespace pliant
