// The coordinator of a job: listens for its workers and agents, keeps strangers out, and carries
// out what Job (job.h) or ElasticJob (elastic_job.h) decides.
//
// Lives inside `pliant run`, or for an elastic job in a `pliant coordinator` that `pliant run`
// starts again when it dies (coordinator_process.h). Everything is called, and every callback runs,
// with the loop held; so is the destructor. Who does not prove the job's token within a few seconds
// is dropped; at most a bounded number of such connections exists at a time, each holding
// kStrangerBytesMax at most.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/control_socket.h"
#include "pliant/runtime/elastic_job.h"
#include "pliant/runtime/herald.h"
#include "pliant/runtime/job.h"
#include "pliant/runtime/job_report.h"
#include "pliant/transport/socket.h"

namespace pliant {

struct CoordinatorOptions {
  Address address;    // to listen on; port 0 lets the kernel choose
  int listener = -1;  // a descriptor that listens already, and becomes ours; -1: none
  std::string token;
  std::string name;  // of the job, for people
  JobOptions job;
  std::vector<WorkerPlace> workers;
  Duration stranger_timeout = std::chrono::seconds(5);

  std::optional<RosterOptions> elastic;  // set: `workers` is ignored
  std::vector<std::byte> log;            // of an earlier coordinator of the same elastic job
};

// How a job is doing. One of fixed size knows no steps.
struct JobStatus {
  struct Entry {
    Rank rank = 0;
    Member member;
    Instant since{};  // a member
  };
  std::string name;
  std::string state;   // "starting", "running", "paused", "ending" or "finished"
  std::string paused;  // why, if it is
  uint32_t epoch = 0;
  uint32_t target = 0;
  uint32_t min = 0;
  uint32_t max = 0;
  uint64_t step = 0;  // the last that was reported
  uint64_t samples = 0;
  std::vector<Entry> members;
};

// What the user wants of a job; one of fixed size only stops.
struct JobWish {
  struct Resize {
    uint32_t size = 0;
  };
  struct DrainPeer {
    PeerId peer;
  };
  struct DrainHost {
    std::string host;
  };
  struct Stop {};
  using Any = std::variant<Resize, DrainPeer, DrainHost, Stop>;
};

// Something that happened to an elastic job: a view, a loss, a leave, a join, a pause, ...
struct JobNews {
  uint64_t sequence = 0;  // counts from 1
  std::chrono::system_clock::time_point time;
  std::string kind;
  std::string text;
  std::map<std::string, std::string> fields;
};

class Coordinator final {
 public:
  // Orders to the agents that live in this process; further ones get them over their connection.
  struct Callbacks {
    std::function<void(const StartWorkers&)> on_start;
    std::function<void(int signal)> on_signal;
    std::function<void(const JobAction::Finish&)> on_finish;

    // Of elastic jobs.
    std::function<void(const JobNews&)> on_news = {};
    std::function<void(const std::string& line)> on_line = {};
    // To be kept for the next coordinator before this returns; what was decided is told after it.
    std::function<void(Bytes log)> on_log = {};
  };

  static Result<std::unique_ptr<Coordinator>> open(Loop& loop, CoordinatorOptions options,
                                                   Callbacks callbacks);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // "address:port", as workers and agents need it.
  std::string endpoint() const { return endpoint_; }

  // What happened in this process: a local agent's reports, the user's signals.
  void tell(const JobEvent::Any& event);

  JobStatus status() const;
  // The hosts whose agents are there, and where their stores are.
  const std::map<uint32_t, StoreReport>& stores() const { return stores_; }
  // kInvalid with a reason for wishes that cannot be granted.
  Status wish(const JobWish::Any& wish);

 private:
  // A connection is a stranger until it has greeted with the token. A refused one is kept for a
  // moment, so that it can read why.
  struct Connection {
    enum class Role {
      kStranger,
      kGreeted,
      kWorker,
      kAgent,
      kLauncher,
      kRefused
    } role = Role::kStranger;
    PeerId peer;
    uint32_t host = 0;
    std::string from;  // its address, for people
    std::optional<Loop::TimerId> deadline;
    std::unique_ptr<ControlSocket> socket;
  };
  using Id = uint64_t;

  Coordinator(Loop& loop, CoordinatorOptions options, Callbacks callbacks, Fd listener,
              std::string endpoint, std::unique_ptr<JobDecisions> job);
  void listen_again();
  void pause_listening();
  void accept_waiting();
  void on_message(Id id, const Message& message);
  void on_closed(Id id, const Error& error);
  void greet(Id id, const Message& message);
  void introduce(Id id, const Message& message);
  void admit_worker(Id id, const Join& join);
  void join_again(PeerId peer, const Join& join);
  void hear_agent(const Connection& agent, const Message& message);
  void hear_launcher(const Message& message);
  void refuse(Id id, const Refused& refused);
  void drop(Id id, const std::string& why);
  Connection* connection_of(PeerId peer);
  size_t stranger_count() const;

  void drain_events();
  void perform(const JobAction::Any& action);
  void publish(const JobAction::Publish& publish);
  void start_worker(const JobAction::Start& start);
  void signal_worker(const SignalWorker& signal);
  void publish_news(const JobAction::Event& event);
  void keep_log(const std::vector<JobAction::Any>& actions);
  void send_to_all(const std::vector<PeerId>& peers, const Message& message);
  void drop_agent(uint32_t host, const std::string& why);
  bool send_to_agent(uint32_t host, const Message& message);
  void send_to_agents(const Message& message);
  void send_to_launcher(const Message& message);
  void keep_now();
  void hear_silent();
  void settle_soon();
  void arm_timer();

  Loop& loop_;
  const CoordinatorOptions options_;
  const Callbacks callbacks_;
  const Fd listener_;
  const std::string endpoint_;
  const size_t strangers_max_;
  bool listening_ = false;
  std::optional<Loop::TimerId> resume_;
  std::map<uint32_t, StoreReport> stores_;  // by host

  Id next_id_ = 1;
  std::map<Id, Connection> connections_;
  std::map<PeerId, Id> workers_;

  const std::unique_ptr<JobDecisions> job_;
  ElasticJob* const elastic_;  // job_, if it is one
  Herald herald_;              // has the newest view
  std::map<PeerId, Instant> member_since_;
  std::optional<JobFinished> finished_;
  uint64_t news_ = 0;                                               // so many were told
  std::shared_ptr<bool> settling_ = std::make_shared<bool>(false);  // a Settle is posted
  std::optional<Loop::TimerId> tick_;
  std::deque<JobEvent::Any> events_;  // told while another is being handled
  bool handling_ = false;
};

}  // namespace pliant
