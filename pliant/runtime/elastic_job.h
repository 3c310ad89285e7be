// The coordinator's decisions about an elastic job: Roster (membership/roster.h) decides who is a
// member and who is started; what is decided here is when the hosts are ready, what the user's
// signals do, and with which exit code the job ends. Pure, like Job; one thread at a time.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pliant/membership/roster.h"
#include "pliant/runtime/job.h"

namespace pliant {

class ElasticJob final : public JobDecisions {
 public:
  ElasticJob(JobOptions options, RosterOptions roster, Instant now);
  // Goes on where the log of an earlier coordinator ends.
  static Result<ElasticJob> resume(JobOptions options, RosterOptions roster, Bytes log,
                                   Instant now);

  // Membership is decided at Settle and Tick, for all that happened before at once.
  std::vector<JobAction::Any> handle(const JobEvent::Any& event, Instant now) override;
  std::optional<Instant> next_deadline() const override;

  // True if a Settle is due.
  bool unsettled() const { return unsettled_; }
  std::vector<PeerId> silent(Instant now) const { return roster_.silent(now); }
  const Roster& roster() const { return roster_; }
  // Wishes of the user, as Roster's.
  Status resize(uint32_t size, Instant now);
  Status drain_host(const std::string& name, Instant now);
  Status drain_peer(PeerId peer, Instant now);

  enum class Phase { kStarting, kRunning, kEnding, kFinished };
  Phase phase() const;

 private:
  // How far the job is in ending.
  enum class Ending { kNot, kAsked, kTerminated, kKilled };

  ElasticJob(JobOptions options, Roster roster, Instant now);
  void on(const AgentReady& event, Instant now);
  void on(const JobEvent::AgentGone& event, Instant now);
  void on(const JobEvent::Joined& event, Instant now);
  void on(const JobEvent::Left& event, Instant now);
  void on(const JobEvent::Disconnected& event, Instant now);
  void on(const JobEvent::Suspected& event, Instant now);
  void on(const WorkerExited& event, Instant now);
  void on(const JobEvent::UserSignal& event, Instant now);
  void on(const JobEvent::Tick& event, Instant now);
  void on(const JobEvent::Told& event, Instant now);
  void on(const WorkerDied& event, Instant now);
  void on(const Notice& event, Instant now);
  void on(const JobEvent::Settle& event, Instant now);
  void on(const JobEvent::Stop& event, Instant now);
  void on(const JobEvent::Overslept& event, Instant now);

  void tell(const RosterEvent::Any& event, Instant now);
  void settle(Instant now);
  void take(RosterAction::Any action);
  void escalate(Instant now);
  void finish(int exit_code, std::string message);

  const JobOptions options_;
  Roster roster_;
  std::map<uint32_t, std::optional<AgentReady>> hosts_;
  bool started_ = false;
  bool finished_ = false;
  bool unsettled_ = false;
  Instant start_due_;
  Ending ending_ = Ending::kNot;
  std::optional<Instant> ending_due_;
  int user_signal_ = 0;       // the last that asks the job to end
  bool ended_badly_ = false;  // some worker, after that

  std::vector<JobAction::Any> actions_;  // of the event in hand
};

}  // namespace pliant
