#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "pliant/membership/roster.h"

namespace pliant {
namespace {

std::string describe(Rank rank, const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

}  // namespace

std::vector<RosterAction::Any> Roster::decide(Instant now) {
  decided_ = now;
  if (!finished_) {
    act_on_time(now);
    dismiss_superfluous(now);
    if (number(view_.epoch) == 0) {
      first_view(now);
    } else {
      next_view(now);
    }
    start_wanted(now);
    print_changes(now);
    finish_if_over();
  }
  return std::exchange(actions_, {});
}

std::optional<Instant> Roster::next_deadline() const {
  if (finished_) return std::nullopt;
  std::optional<Instant> earliest;
  // What was due at the last decision and is still there waits for an event, not for time.
  const auto consider = [&](std::optional<Instant> due) {
    if (due && *due > decided_ && (!earliest || *due < *earliest)) earliest = due;
  };
  for (const auto& [peer, worker] : workers_) {
    consider(worker.due);
    consider(worker.account_due);
    if (worker.standing != Standing::kMember) continue;
    if (!worker.seasoned && worker.member_since)
      consider(*worker.member_since + options_.leave_timeout);
    consider(worker.heard + (worker.returning
                                 ? std::max(options_.heartbeat, options_.return_wait_min)
                                 : options_.heartbeat));
  }
  consider(join_due_);
  consider(batch_due_);
  for (const Suspicion& suspicion : suspicions_) consider(suspicion.due);
  for (const Change& change : changes_) consider(change.due);
  if (needed() > 0) {
    for (const Instant due : replacements_) consider(due);
    consider(places_.next_due(decided_));
  }
  return earliest;
}

std::vector<PeerId> Roster::silent(Instant now) const {
  std::vector<PeerId> peers;
  for (const auto& [peer, worker] : workers_) {
    if (worker.standing == Standing::kMember && now - worker.heard >= options_.heartbeat)
      peers.push_back(peer);
  }
  return peers;
}

void Roster::act_on_time(Instant now) {
  lose_silent(now);
  for (auto& [peer, worker] : workers_) {
    if (worker.account_due && *worker.account_due <= now)
      fail(peer, worker, {1, name_of(peer, worker) + " was lost"}, now);
    if (!worker.due || *worker.due > now) continue;
    actions_.push_back(RosterAction::Signal{peer, worker.next_signal});
    worker.due.reset();
    if (worker.next_signal == SIGTERM) ask_to_go(peer, worker, now + options_.evict_after, SIGKILL);
  }
}

void Roster::lose_silent(Instant now) {
  for (const PeerId peer : silent(now)) {
    Worker& worker = workers_.at(peer);
    const Duration wait = std::max(options_.heartbeat, options_.return_wait_min);
    if (worker.returning && now - worker.heard < wait) continue;
    lose(peer, worker, false,
         worker.returning ? "was not heard of since the coordinator is back"
                          : fmt::format("was silent for {}", human_duration(now - worker.heard)),
         now);
    worker.account_due = now;
  }
  for (const Suspicion& suspicion : suspicions_) {
    if (suspicion.due > now) continue;
    Worker* const accused = find(suspicion.peer);
    Worker* const accuser = find(suspicion.by);
    if (accused == nullptr || accuser == nullptr) continue;
    if (accused->standing != Standing::kMember || accuser->standing != Standing::kMember) continue;
    lose(
        suspicion.peer, *accused, false,
        fmt::format("is out of reach of {}: {}", name_of(suspicion.by, *accuser), suspicion.reason),
        now);
    accused->account_due = now;
  }
  forget_suspicions([&](const Suspicion& suspicion) { return suspicion.due <= now; });
}

void Roster::forget_suspicions(const std::function<bool(const Suspicion&)>& which) {
  std::erase_if(suspicions_, [&](const Suspicion& suspicion) {
    if (!which(suspicion)) return false;
    suspected_.erase({suspicion.by, suspicion.peer});
    return true;
  });
}

uint32_t Roster::min_now() const {
  if (ending_) return 1;
  if (retired_ == 0) return options_.min;
  // At the end of a program its members leave one by one; that is no reason to pause.
  return std::min(options_.min, std::max(uint32_t{1}, static_cast<uint32_t>(wanted())));
}

// Once the program has ended on the last member, its state is gone and nobody is to start anew;
// neither are newcomers to go on that got nothing of it.
bool Roster::is_over() const {
  if (ending_ || hopeless_) return true;
  if (!is_closing()) return false;
  bool fresh = false;
  for (const auto& [peer, worker] : workers_) {
    if (worker.standing != Standing::kMember) continue;
    if (worker.seasoned) return false;
    fresh = true;
  }
  return ended_well_ || fresh;
}

// The program has ended on some member by its own will: the others will follow, and newcomers would
// find nobody who gives them the state.
bool Roster::is_closing() const { return retired_ > 0 && number(view_.epoch) > 0; }

size_t Roster::wanted() const {
  if (is_over()) return 0;
  return target_ > vacancies_ ? target_ - vacancies_ : 0;
}

// Workers that are members or on the way to be.
size_t Roster::counted() const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
    const Worker& worker = entry.second;
    if (worker.draining || worker.left) return false;
    return worker.standing == Standing::kOutside || worker.standing == Standing::kCandidate ||
           worker.standing == Standing::kMember;
  }));
}

size_t Roster::needed() const {
  if (is_closing()) return 0;
  // Whether a lost member is to be replaced is known when its end is.
  const auto open = std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.account_due.has_value();
  });
  const size_t have = counted() + static_cast<size_t>(open);
  return wanted() - std::min(wanted(), have);
}

// Workers that were started and are not wanted any more, the youngest first; those that are on
// their way out with a drained host, too.
void Roster::dismiss_superfluous(Instant now) {
  if (ending_) return;
  const bool over = is_over();
  std::vector<PeerId> outside;
  std::vector<PeerId> candidates;
  for (auto& [peer, worker] : workers_) {
    const bool waits = worker.standing == Standing::kCandidate;
    if (worker.standing == Standing::kMember && over) dismiss(peer, worker, now);
    if (worker.left || (!waits && worker.standing != Standing::kOutside)) continue;
    if (worker.draining || (is_closing() && !worker.member_since)) {
      dismiss(peer, worker, now);
    } else {
      (waits ? candidates : outside).push_back(peer);
    }
  }
  const size_t limit = over ? 0 : target_;
  const size_t have = counted();
  size_t excess = have - std::min(limit, have);
  if (excess == 0) return;
  const auto younger = [&](PeerId left, PeerId right) {
    return workers_.at(left).number > workers_.at(right).number;
  };
  std::sort(outside.begin(), outside.end(), younger);
  std::sort(candidates.begin(), candidates.end(), younger);
  for (const auto* const list : {&outside, &candidates}) {
    for (auto peer = list->begin(); peer != list->end() && excess > 0; ++peer, --excess)
      dismiss(*peer, workers_.at(*peer), now);
  }
}

void Roster::dismiss(PeerId peer, Worker& worker, Instant now) {
  if (worker.standing == Standing::kCandidate || worker.standing == Standing::kMember)
    refuse(peer, Code::kCancelled, "the job needs no further member now");
  const bool knows = worker.told && worker.standing == Standing::kCandidate;
  worker.standing = Standing::kLeaving;
  if (knows) return ask_to_go(peer, worker, now + options_.leave_timeout, SIGTERM);
  actions_.push_back(RosterAction::Signal{peer, SIGTERM});
  ask_to_go(peer, worker, now + options_.evict_after, SIGKILL);
}

void Roster::first_view(Instant now) {
  std::vector<PeerId> candidates;
  for (const auto& [peer, worker] : workers_)
    if (worker.standing == Standing::kCandidate) candidates.push_back(peer);
  if (candidates.empty()) {
    join_due_.reset();
    return;
  }
  const bool complete = candidates.size() == counted() && needed() == 0;
  const bool late = join_due_ && now >= *join_due_;
  if (!complete && !late) return;
  if (candidates.size() >= min_now()) {
    join_due_.reset();
    publish(candidates, now);
    return;
  }
  std::string reason =
      late ? fmt::format("{} of at least {} members joined within {}", candidates.size(), min_now(),
                         human_duration(options_.join_timeout))
           : fmt::format("{} of at least {} members are left", candidates.size(), min_now());
  if (last_failure_) reason += "; " + last_failure_->text;
  for (const PeerId peer : candidates) {
    workers_.at(peer).standing = Standing::kOutside;
    refuse(peer, late ? Code::kTimeout : Code::kPeerLost, reason);
  }
  join_due_.reset();
}

void Roster::next_view(Instant now) {
  std::vector<PeerId> all;  // that are still there
  std::vector<PeerId> stay;
  bool returning = false;
  for (const Member& member : view_.members) {
    const Worker* const worker = find(member.id);
    if (worker == nullptr || worker->standing != Standing::kMember) continue;
    all.push_back(member.id);
    returning = returning || worker->returning;
    if (!worker->draining) stay.push_back(member.id);
  }
  if (stay.size() > target_) stay.resize(target_);
  // Those that leave wait for newcomers to get the state, if they alone have it.
  const bool heirs = ending_ || any_seasoned(stay, now) || !any_seasoned(all, now);
  const size_t room = target_ - stay.size();
  std::vector<PeerId> join = joining(heirs ? stay : all, room, now);
  if (stay.size() + join.size() < min_now()) {
    // Nobody can be let go; but who will be taken away anyhow does not wait for it in vain.
    if ((heirs || stay.empty()) && !somebody_comes() && release_noticed(now)) return next_view(now);
    stay = all;
    join.clear();
    if (stay.size() < target_) join = joining(stay, target_ - stay.size(), now);
  } else if (!heirs) {
    stay = all;
  }
  if (stay.size() + join.size() < min_now()) {
    const bool hope = !all.empty() || (needed() > 0 && places_.hopeful());
    if (all.size() < view_.members.size() && hope) pause(all);
    return;
  }
  const bool renumber = republish_ && !returning;
  if (stay.size() == view_.members.size() && join.empty() && !renumber) return;
  stay.insert(stay.end(), join.begin(), join.end());
  publish(stay, now);
}

// True if somebody of them has the state of the program. The word of it may be lost with a
// coordinator; after some time it is taken for granted.
bool Roster::any_seasoned(const std::vector<PeerId>& peers, Instant now) const {
  return std::any_of(peers.begin(), peers.end(), [&](PeerId peer) {
    const Worker& worker = workers_.at(peer);
    return worker.seasoned ||
           (worker.member_since && now - *worker.member_since >= options_.leave_timeout);
  });
}

// True if there are or will be workers that can take the place of members under notice.
bool Roster::somebody_comes() const {
  if (ending_) return false;
  if (needed() > 0 && places_.hopeful()) return true;
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) {
    const Worker& worker = entry.second;
    if (worker.draining || worker.left) return false;
    return worker.standing == Standing::kOutside || worker.standing == Standing::kCandidate;
  });
}

// Members under notice leave without a view that does without them: the others pause, if there are
// any. True if there was somebody to let go.
bool Roster::release_noticed(Instant now) {
  std::string reason;
  size_t stay = 0;
  for (const Member& member : view_.members) {
    Worker* const worker = find(member.id);
    if (worker == nullptr || worker->standing != Standing::kMember) continue;
    if (!worker->noticed) {
      ++stay;
      continue;
    }
    reason = fmt::format("{} {}", name_of(member.id, *worker), worker->drain_reason);
    departed_[member.id] = {member.id, false, true, worker->drain_reason};
    worker->standing = Standing::kLeaving;
    ask_to_go(member.id, *worker, now + options_.leave_timeout, SIGTERM);
    refuse(member.id, Code::kCancelled, reason);
  }
  if (stay == 0 && !reason.empty() && !ending_)
    revoked_ = Failure{128 + SIGTERM, "all members were told to leave: " + reason};
  return !reason.empty();
}

// Candidates for the next view beside those who stay, if it is time for that.
std::vector<PeerId> Roster::joining(const std::vector<PeerId>& stay, size_t room, Instant now) {
  std::vector<PeerId> ready = ready_candidates(stay);
  if (ready.size() > room) ready.resize(room);
  if (ready.empty()) {
    batch_due_.reset();
    return {};
  }
  if (!batch_due_) batch_due_ = now + options_.join_batch;
  const auto expected =
      static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
        const Worker& worker = entry.second;
        return !worker.draining && !worker.left &&
               (worker.standing == Standing::kCandidate || worker.standing == Standing::kOutside);
      }));
  if (ready.size() < std::min(expected, room) && now < *batch_due_) return {};
  return ready;
}

// Those that have met all who stay, and each other.
std::vector<PeerId> Roster::ready_candidates(const std::vector<PeerId>& stay) {
  std::vector<std::pair<uint32_t, PeerId>> by_number;
  for (const auto& [peer, worker] : workers_) {
    if (worker.standing == Standing::kCandidate && !worker.draining)
      by_number.emplace_back(worker.number, peer);
  }
  std::sort(by_number.begin(), by_number.end());
  std::vector<PeerId> ready;
  for (const auto& [ignored, peer] : by_number) {
    Worker& worker = workers_.at(peer);
    const auto knows = [&](PeerId other) { return worker.met.contains(other); };
    const auto known = [&, id = peer](PeerId other) { return workers_.at(other).met.contains(id); };
    if (has_met(worker, stay) && std::all_of(ready.begin(), ready.end(), knows) &&
        std::all_of(ready.begin(), ready.end(), known))
      ready.push_back(peer);
  }
  return ready;
}

// `stay` are members of the newest view.
bool Roster::has_met(Worker& worker, const std::vector<PeerId>& stay) const {
  if (worker.met_view == view_.epoch) return true;
  const auto met = [&](PeerId peer) { return worker.met.contains(peer); };
  if (!std::all_of(stay.begin(), stay.end(), met)) return false;
  if (stay.size() == view_.members.size()) worker.met_view = view_.epoch;
  return true;
}

void Roster::publish(const std::vector<PeerId>& members, Instant now) {
  const bool first = view_.members.empty() && number(view_.epoch) == 0;
  Change change;
  change.due = now + options_.line_wait;
  View next{Epoch{number(view_.epoch) + 1}, {}};
  RosterAction::Publish action{{}, {}, members};
  const std::unordered_set<PeerId> in(members.begin(), members.end());
  for (Rank rank = 0; rank < view_.size(); ++rank) {
    const Member& member = view_.at(rank);
    if (in.contains(member.id)) continue;
    Worker* const worker = find(member.id);
    const Departure gone = depart(member.id, now);
    if (worker != nullptr && worker->standing == Standing::kLeaving) action.to.push_back(member.id);
    if (worker != nullptr) worker->rank = -1;
    change.gone.push_back({gone.peer, describe(rank, member), gone.reason, gone.planned,
                           gone.planned && (worker == nullptr || worker->left),
                           gone.planned || worker == nullptr});
    action.gone.push_back(gone);
  }
  for (const PeerId peer : members) {
    Worker& worker = workers_.at(peer);
    if (worker.standing == Standing::kCandidate) {
      worker.standing = Standing::kMember;
      worker.member_since = now;
      worker.member_epoch = number(next.epoch);
      worker.seasoned = worker.seasoned || first;
      worker.heard = now;
      if (!first) change.joined.push_back(describe(next.size(), worker.member));
    }
    worker.rank = next.size();
    next.members.push_back(worker.member);
  }
  view_ = std::move(next);
  departed_.clear();
  batch_due_.reset();
  republish_ = false;
  // Those that everybody missed are out, and nobody has to be accused any more.
  forget_suspicions([&](const Suspicion& suspicion) {
    return !in.contains(suspicion.peer) || !in.contains(suspicion.by);
  });
  revoked_.reset();
  const std::string epoch = std::to_string(number(view_.epoch));
  for (const std::string& who : change.joined) event("join", who + " joined", {{"epoch", epoch}});
  for (const Change::Gone& gone : change.gone)
    if (gone.planned) event("leave", gone.who + " " + gone.reason, {{"epoch", epoch}});
  action.view = view_;
  actions_.push_back(std::move(action));
  event("view", fmt::format("epoch {} has {} members", epoch, view_.size()),
        {{"epoch", epoch}, {"size", std::to_string(view_.size())}});
  if (!std::exchange(paused_, "").empty())
    event("resume", fmt::format("{} members go on", view_.size()), {{"epoch", epoch}});
  change.epoch = view_.epoch;
  change.size = view_.size();
  if (!first && !ending_) changes_.push_back(std::move(change));
}

// Why a member of the newest view is not in the next.
Departure Roster::depart(PeerId peer, Instant now) {
  if (const auto at = departed_.find(peer); at != departed_.end()) return at->second;
  Worker* const worker = find(peer);
  if (worker == nullptr || worker->standing != Standing::kMember)
    return {peer, worker == nullptr, false, "was lost"};
  worker->standing = Standing::kLeaving;
  ask_to_go(peer, *worker, now + options_.leave_timeout, SIGTERM);
  return {peer, false, true,
          worker->draining ? worker->drain_reason
                           : fmt::format("leaves: {} members are wanted", target_)};
}

void Roster::pause(const std::vector<PeerId>& stay) {
  std::string reason = fmt::format("{} of at least {} members are left", stay.size(), min_now());
  if (reason == paused_) return;
  paused_ = reason;
  std::string losses;
  for (Rank rank = 0; rank < view_.size(); ++rank) {
    const auto gone = departed_.find(view_.at(rank).id);
    if (gone != departed_.end())
      losses += fmt::format("{} {}; ", describe(rank, view_.at(rank)), gone->second.reason);
  }
  actions_.push_back(RosterAction::Pause{stay, reason});
  const std::string text =
      fmt::format("{}paused: {}; the job goes on when enough have joined", losses, reason);
  actions_.push_back(RosterAction::Say{text});
  event("pause", text, {{"members", std::to_string(stay.size())}});
}

void Roster::start_wanted(Instant now) {
  replacements_.erase(replacements_.begin(), replacements_.upper_bound(now));
  const size_t need = needed();
  while (replacements_.size() > need) replacements_.erase(std::prev(replacements_.end()));
  for (size_t i = replacements_.size(); i < need; ++i) {
    const auto peer = places_.take(now);
    if (!peer) return;
    started_ = true;
    Worker& worker = workers_[*peer];
    worker.number = next_number_++;
    actions_.push_back(RosterAction::Start{*peer, worker.number});
    event("start",
          fmt::format("worker {} starts on host {}", worker.number, places_.host_name(peer->host)),
          {{"peer", to_string(*peer)}});
  }
}

void Roster::finish_if_over() {
  if (!started_ || !workers_.empty()) return;
  if (wanted() > 0 && places_.hopeful()) return;
  finished_ = true;
  RosterAction::Finish finish;
  if (hopeless_) {
    finish = {hopeless_->exit_code, hopeless_->text + ", again and again; the job ends"};
  } else if (failed_at_end_) {
    finish = {failed_at_end_->exit_code, failed_at_end_->text + "; the job ends"};
  } else if (!ended_well_ && revoked_) {
    finish = {revoked_->exit_code, revoked_->text + "; the job ends"};
  } else if (!ended_well_ && last_failure_) {
    finish = {last_failure_->exit_code,
              fmt::format("no worker is left: {}; the job ends", last_failure_->text)};
  }
  for (const Change& change : changes_) {
    const bool quiet = finish.exit_code == 0 && change.joined.empty() &&
                       std::all_of(change.gone.begin(), change.gone.end(),
                                   [](const Change::Gone& gone) { return gone.quiet; });
    if (!quiet) actions_.push_back(RosterAction::Say{line_of(change)});
  }
  changes_.clear();
  event("finish", finish.message.empty() ? "the job has ended well" : finish.message,
        {{"exit_code", std::to_string(finish.exit_code)}});
  actions_.push_back(std::move(finish));
}

}  // namespace pliant
