// One simulated history: a job that trains while faults drawn from a seed happen to it, then a
// healed world in which it must go on. Deterministic: the same options give the same events. Made,
// run once, thrown away; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pliant/sim/coordinator.h"
#include "pliant/sim/judge.h"
#include "pliant/sim/network.h"
#include "pliant/sim/worker.h"
#include "pliant/sim/world.h"

namespace pliant::sim {

struct HistoryOptions {
  uint64_t seed = 1;
  uint32_t members = 0;  // 0: drawn
  uint64_t steps = 5;    // that every member must commit after the world has healed
  std::optional<bool> constant_batch = {};  // otherwise drawn
  // Instead of the drawn faults: none, or one kill exactly before this delivery.
  bool calm = false;
  std::optional<uint64_t> kill_at = {};
};

struct HistoryResult {
  uint64_t seed = 0;
  uint64_t steps = 0;    // distinct committed ones
  uint64_t commits = 0;  // by all members together
  uint64_t deliveries = 0;
  uint64_t redealt = 0;    // commits that asked a member for more samples
  uint64_t handed_on = 0;  // results that a member took from another of its host
  uint64_t events = 0;
  uint32_t epochs = 0;
  std::map<std::string, uint64_t> faults;
  std::map<std::string, uint64_t> ends;
  std::vector<Violation> violations;
  std::vector<std::string> trace;  // the last events, if something was violated

  bool operator==(const HistoryResult&) const = default;
};
inline bool operator==(const Violation& left, const Violation& right) {
  return left.promise == right.promise && left.text == right.text;
}

class History final {
 public:
  explicit History(const HistoryOptions& options);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  HistoryResult run();

 private:
  enum class Kind : uint8_t {
    kKill,
    kKillUnseen,  // nobody sees its end but by silence and closed links
    kKillMany,
    kStop,
    kPartition,  // one-way or two-way
    kCutOff,     // from the coordinator
    kReset,
    kCoordinator,
    kResize,
    kDrain,
    kDamage,
  };
  static constexpr int kKinds = 11;
  struct Fault {
    Kind kind = Kind::kKill;
    std::optional<Duration> after;     // the first view
    std::optional<uint64_t> delivery;  // otherwise before this one
  };

  void draw_faults();
  void plan_faults();
  void on_delivery();
  void inject(Kind kind);
  void kill(Worker& worker, bool seen);
  void stop_for_a_while(Worker& worker);
  void partition();
  void crash_coordinator();
  void resize();
  void heal();
  bool reached_goal() const;
  std::string why_not() const;

  // The agents of all hosts.
  void start_worker(PeerId peer, uint32_t number);
  void signal_worker(PeerId peer, int signal);
  void worker_ended(Worker& worker, int exit_code);
  void report_exit(PeerId peer, int exit_code, const std::string& reason);

  Worker* find(PeerId peer);
  std::vector<Worker*> running();  // members, not stopped
  Worker* pick();
  void count(const std::string& kind) { ++world_.faults[kind]; }

  const HistoryOptions options_;
  World world_;
  Judge judge_;
  Network network_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Fault> faults_;
  bool begun_ = false;  // the first view is there
  uint64_t first_delivery_ = 0;
  Instant heal_at_{};
  int damage_ = 0;
};

}  // namespace pliant::sim
