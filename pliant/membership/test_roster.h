// An elastic job for the tests of Roster, driven by sentences; time moves only by wait(). One
// thread.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pliant/membership/roster.h"

namespace pliant {

class RosterTest : public ::testing::Test {
 protected:
  using Actions = std::vector<RosterAction::Any>;
  using Event = RosterEvent;
  using Action = RosterAction;

  static RosterOptions standard() {
    RosterOptions options;
    options.hosts = {{"a", 4}, {"b", 4}};
    options.initial = 4;
    options.min = 2;
    options.max = 8;
    return options;
  }
  void open(const RosterOptions& options) {
    roster_.emplace(options, now_);
    for (uint32_t host = 0; host < options.hosts.size(); ++host) send(Event::HostReady{host});
  }
  // Starts the job and brings it to its first view.
  void run(const RosterOptions& options = standard()) {
    open(options);
    for (const PeerId peer : std::vector(started_)) join(peer);
    ASSERT_EQ(number(roster_->view().epoch), 1u);
    ASSERT_EQ(roster_->view().size(), static_cast<Rank>(options.initial));
  }
  Actions send(const Event::Any& event) {
    roster_->handle(event, now_);
    return decide();
  }
  Actions decide() {
    Actions actions = roster_->decide(now_);
    for (const auto& action : actions) {
      if (const auto* start = std::get_if<Action::Start>(&action)) started_.push_back(start->peer);
      if (const auto* publish = std::get_if<Action::Publish>(&action)) {
        EXPECT_GE(publish->view.epoch, last_.epoch);
        last_ = publish->view;
        gone_ = publish->gone;
        to_ = publish->to;
        ++views_;
      }
      if (const auto* say = std::get_if<Action::Say>(&action)) said_.push_back(say->text);
      if (const auto* finish = std::get_if<Action::Finish>(&action)) finish_ = *finish;
    }
    return actions;
  }
  Actions wait(Duration time) {
    now_ += time;
    keep_alive();
    return send(Event::Tick{});
  }
  void keep_alive() {
    for (const Member& member : roster_->view().members)
      if (!mute_.contains(member.id)) roster_->handle(Event::Alive{member.id}, now_);
  }
  Actions join(PeerId peer, uint32_t epoch = 0) { return send(Event::Joined{member(peer), epoch}); }
  static Member member(PeerId peer) {
    return {.id = peer,
            .pid = static_cast<int32_t>(100 * peer.incarnation + 10 * peer.host + peer.slot),
            .host = peer.host == 0 ? "a" : "b",
            .address = "127.0.0.1",
            .port = 1,
            .local_name = ""};
  }
  // `peer` has met all members and all of `others`.
  Actions meet(PeerId peer, const std::vector<PeerId>& others = {}) {
    Event::Met met{peer, others};
    for (const Member& known : roster_->view().members) met.peers.push_back(known.id);
    return send(met);
  }
  Actions exit(PeerId peer, int code, const std::string& reason = "exited") {
    return send(Event::Exited{peer, member(peer).pid, code, reason});
  }
  Actions kill(PeerId peer) { return exit(peer, 137, "was killed by signal 9 (Killed)"); }
  PeerId at(Rank rank) const { return roster_->view().at(rank).id; }
  Rank size() const { return roster_->view().size(); }
  std::vector<PeerId> newcomers(size_t from) const {
    return {started_.begin() + static_cast<ptrdiff_t>(from), started_.end()};
  }
  template <typename T>
  static const T* find(const Actions& actions) {
    for (const auto& action : actions)
      if (const T* found = std::get_if<T>(&action)) return found;
    return nullptr;
  }
  static std::vector<PeerId> ids(const View& view) {
    std::vector<PeerId> peers;
    for (const Member& known : view.members) peers.push_back(known.id);
    return peers;
  }

  Instant now_{std::chrono::hours(1)};
  std::optional<Roster> roster_;
  std::vector<PeerId> started_;
  std::set<PeerId> mute_;
  View last_;
  std::vector<Departure> gone_;
  std::vector<PeerId> to_;
  int views_ = 0;
  std::vector<std::string> said_;
  std::optional<Action::Finish> finish_;
};

}  // namespace pliant
