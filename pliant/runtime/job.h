// The coordinator's decisions about one job: when its hosts start, who is in the view, who is lost,
// when the rest is told to end, and with which exit code. Pure: an event and the time go in,
// actions come out; coordinator.h carries them out. Job decides for a job of fixed size,
// ElasticJob (elastic_job.h) for one whose members come and go.
//
// A worker need not join at all (`pliant run -- echo hi` is a job); one that does may leave and
// join again, with all the others, and gets a view of the next epoch. Any thread, one at a time.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/time.h"
#include "pliant/membership/view.h"
#include "pliant/runtime/control.h"
#include "pliant/runtime/hosts.h"

namespace pliant {

struct JobOptions {
  Duration start_timeout = std::chrono::seconds(60);  // until every host's agent is ready
  Duration join_timeout = std::chrono::seconds(60);   // from the first member to the last
  Duration grace = std::chrono::seconds(5);  // from the first failure to SIGTERM for the others
  Duration kill_after =
      std::chrono::seconds(2);  // from SIGTERM to SIGKILL, and from that to the end
  // A killed worker's connection closes before its agent can tell why; the reason is worth this.
  Duration reason_wait = std::chrono::milliseconds(100);
};

// What happened.
struct JobEvent {
  struct AgentGone {
    uint32_t host = 0;
    std::string reason;
  };
  struct Joined {
    Member member;
    uint32_t epoch = 0;  // not 0: a member of this view that comes back; elastic jobs only
  };
  struct Left {
    PeerId peer;
  };
  struct Disconnected {  // the connection closed, after Left or without
    PeerId peer;
  };
  struct Suspected {  // a member cannot reach another
    PeerId by;
    PeerLost lost;
  };
  struct UserSignal {
    int signal = 0;
  };
  struct Tick {};  // time has passed

  // Of elastic jobs; others ignore them.
  struct Told {  // Met, Alive, Progress, Proposal or Recovered
    PeerId peer;
    Message message;
  };
  struct Settle {};     // all that happened in this moment has been told
  struct Stop {};       // the user wants the job to end
  struct Overslept {};  // the coordinator did not run when it should have

  using Any =
      std::variant<AgentReady, AgentGone, Joined, Left, Disconnected, Suspected, WorkerExited,
                   UserSignal, Tick, Told, WorkerDied, Notice, Settle, Stop, Overslept>;
};

// What to do about it, in this order.
struct JobAction {
  struct Publish {
    View view;
    std::vector<Departure> gone;
    std::vector<PeerId> to;  // the members, then those that leave; or one that comes back
  };
  struct Refuse {  // this worker's wish to join
    PeerId peer;
    Refused refused;
  };
  struct TellLost {  // to these members
    std::vector<PeerId> to;
    PeerLost lost;
  };
  struct Finish {
    int exit_code = 0;
    std::string message;  // for the user; empty if all went well
  };

  // Of elastic jobs.
  struct Send {
    std::vector<PeerId> to;
    Message message;
  };
  struct Start {
    PeerId peer;
    uint32_t number = 0;  // for logs and RANK
  };
  struct Event {  // for those who watch the job
    std::string kind;
    std::string text;
    std::map<std::string, std::string> fields;
  };
  struct Say {  // one line for the user
    std::string text;
  };

  using Any = std::variant<StartWorkers, Publish, Refuse, TellLost, SignalWorkers, Finish, Send,
                           Start, SignalWorker, Event, Say>;
};

// What a coordinator asks of either kind of job.
class JobDecisions {
 public:
  virtual ~JobDecisions() = default;
  virtual std::vector<JobAction::Any> handle(const JobEvent::Any& event, Instant now) = 0;
  // When a Tick is due at the latest; nothing once the job is finished.
  virtual std::optional<Instant> next_deadline() const = 0;
};

// The order to start, as the agents' answers have it; torch's rendezvous is on `first`.
StartWorkers start_order(const AgentReady& first,
                         const std::map<uint32_t, std::optional<AgentReady>>& hosts);

class Job final : public JobDecisions {
 public:
  // Hosts that run workers are those that `workers` name; the index of a worker is its rank.
  Job(JobOptions options, std::vector<WorkerPlace> workers, Instant now);

  std::vector<JobAction::Any> handle(const JobEvent::Any& event, Instant now) override;
  std::optional<Instant> next_deadline() const override;

 private:
  struct Worker {
    WorkerPlace place;
    int32_t pid = 0;
    // Membership in the newest view. A lost worker stays lost until it joins anew.
    enum class Standing { kOutside, kMember, kLost } standing = Standing::kOutside;
    std::optional<Member> waiting;      // joined, but the view is not complete yet
    std::optional<Instant> reason_due;  // disconnected without Left: lost at this time
    std::optional<WorkerExited> end;
    bool ended_by_us = false;
  };
  // How far the job is in ending a failed run.
  enum class Ending { kNot, kGrace, kTerminated, kKilled };

  void on(const AgentReady& event, Instant now);
  void on(const JobEvent::AgentGone& event, Instant now);
  void on(const JobEvent::Joined& event, Instant now);
  void on(const JobEvent::Left& event, Instant now);
  void on(const JobEvent::Disconnected& event, Instant now);
  void on(const JobEvent::Suspected& event, Instant now);
  void on(const WorkerExited& event, Instant now);
  void on(const JobEvent::UserSignal& event, Instant now);
  void on(const JobEvent::Tick& event, Instant now);
  // Events of elastic jobs.
  template <typename Other>
  void on(const Other&, Instant) {}

  void end_worker(Worker& worker, WorkerExited end, Instant now);
  void declare_lost(Worker& worker, const std::string& reason);
  void add_evidence(PeerId peer);
  void publish_if_complete();
  void refuse_if_hopeless();
  void refuse_waiting(Code code, const std::string& reason);
  void escalate(Instant now);
  void finish_if_ended();
  void finish(int exit_code, std::string message);
  JobAction::Finish verdict() const;

  Worker* find(PeerId peer);
  const Worker* find(PeerId peer) const;
  std::string describe(const Worker& worker) const;
  std::string missing() const;
  size_t waiting_count() const;

  JobOptions options_;
  std::vector<Worker> workers_;  // by rank
  std::map<PeerId, size_t> ranks_;
  std::map<uint32_t, std::optional<AgentReady>> hosts_;
  bool started_ = false;
  bool finished_ = false;
  Instant start_due_;
  uint32_t epoch_ = 0;
  std::optional<Instant> join_due_;
  // Peers in the order in which something was first seen to be wrong with them. The root of a
  // failure is often seen before it has ended, and its followers end before it does.
  std::vector<PeerId> evidence_;
  std::map<PeerId, std::string> suspicions_;
  Ending ending_ = Ending::kNot;
  std::optional<Instant> ending_due_;
  int user_signal_ = 0;  // the last that asks the job to end

  std::vector<JobAction::Any> actions_;  // of the event in hand
};

// "was killed by signal 9 (Killed)", "exited with code 3"
std::string describe_end(const WorkerExited& end);
// "signal 9 (Killed)"
std::string name_signal(int signal);
// SIGINT, SIGTERM and SIGHUP do.
bool asks_to_end(int signal);

}  // namespace pliant
