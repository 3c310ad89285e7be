// The simulated coordinator: carries the production roster's events and actions over simulated
// lines, crashes, and comes back from its last snapshot. Owned by a History; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "pliant/membership/roster.h"
#include "pliant/runtime/herald.h"
#include "pliant/sim/judge.h"
#include "pliant/sim/world.h"

namespace pliant::sim {

// One direction of a connection: keeps the order, can be held up.
class Line final {
 public:
  explicit Line(World& world) : world_(world) {}
  void send(Timeline::Event event);
  void block() { blocked_ = true; }
  void unblock();

 private:
  World& world_;
  bool blocked_ = false;
  Instant last_{};
  std::deque<Timeline::Event> held_;
};

RosterOptions roster_options(const Scenario& scenario);

class Coordinator final {
 public:
  struct Callbacks {
    std::function<void(PeerId, uint32_t number)> start;
    std::function<void(PeerId, int signal)> signal;
    std::function<void(PeerId, const Message&)> send;  // to a worker
    std::function<void()> crashed;
  };
  Coordinator(World& world, Judge& judge, Callbacks callbacks);

  void start();
  bool up() const { return roster_.has_value(); }
  // Changes with every crash: a connection belongs to one life.
  uint64_t life() const { return life_; }

  void from_worker(uint64_t life, const RosterEvent::Any& event);
  // Agents say it again when the coordinator is back.
  void from_agent(const RosterEvent::Any& event);

  // At once, or after the next view was logged and before anybody hears of it.
  void crash_now();
  void crash_at_next_view() { crash_at_next_view_ = true; }
  void restart();
  Status resize(uint32_t size);
  Status drain(PeerId peer);
  const Roster* roster() const { return roster_ ? &*roster_ : nullptr; }

 private:
  void handle(const RosterEvent::Any& event);
  void decide();
  void act(const RosterAction::Any& action, bool heard);
  void publish(const RosterAction::Publish& publish);
  void plan_tick();

  World& world_;
  Judge& judge_;
  const Callbacks callbacks_;
  std::optional<Roster> roster_;
  Herald herald_;
  std::vector<std::byte> log_;  // the last snapshot
  uint64_t life_ = 1;
  bool crash_at_next_view_ = false;
  std::optional<Instant> tick_;
  std::vector<RosterEvent::Any> from_agents_;  // all ends of workers
};

}  // namespace pliant::sim
