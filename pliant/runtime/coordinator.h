// The coordinator of a job: listens for its workers and agents, keeps strangers out, and carries
// out what Job (job.h) decides.
//
// Lives inside `pliant run`. Everything is called, and every callback runs, with the loop held; so
// is the destructor. Who does not prove the job's token within a few seconds is dropped; at most a
// bounded number of such connections exists at a time, each holding kStrangerBytesMax at most.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/control_socket.h"
#include "pliant/runtime/job.h"
#include "pliant/transport/socket.h"

namespace pliant {

struct CoordinatorOptions {
  Address address;  // to listen on; port 0 lets the kernel choose
  std::string token;
  JobOptions job;
  std::vector<WorkerPlace> workers;
  Duration stranger_timeout = std::chrono::seconds(5);
};

class Coordinator final {
 public:
  // Orders to the agents that live in this process; further ones get them over their connection.
  struct Callbacks {
    std::function<void(const StartWorkers&)> on_start;
    std::function<void(int signal)> on_signal;
    std::function<void(const JobAction::Finish&)> on_finish;
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

 private:
  // A connection is a stranger until it has greeted with the token. A refused one is kept for a
  // moment, so that it can read why.
  struct Connection {
    enum class Role { kStranger, kGreeted, kWorker, kAgent, kRefused } role = Role::kStranger;
    PeerId peer;
    uint32_t host = 0;
    std::string from;  // its address, for people
    std::optional<Loop::TimerId> deadline;
    std::unique_ptr<ControlSocket> socket;
  };
  using Id = uint64_t;

  Coordinator(Loop& loop, CoordinatorOptions options, Callbacks callbacks, Fd listener,
              std::string endpoint);
  void listen_again();
  void pause_listening();
  void accept_waiting();
  void on_message(Id id, const Message& message);
  void on_closed(Id id, const Error& error);
  void greet(Id id, const Message& message);
  void admit_worker(Id id, const Join& join);
  void refuse(Id id, const Refused& refused);
  void drop(Id id, const std::string& why);
  Connection* connection_of(PeerId peer);
  size_t stranger_count() const;

  void perform(const JobAction::Any& action);
  void send_to_agents(const Message& message);
  void arm_timer();

  Loop& loop_;
  const CoordinatorOptions options_;
  const Callbacks callbacks_;
  const Fd listener_;
  const std::string endpoint_;
  const size_t strangers_max_;
  bool listening_ = false;
  std::optional<Loop::TimerId> resume_;

  Id next_id_ = 1;
  std::map<Id, Connection> connections_;
  std::map<PeerId, Id> workers_;

  Job job_;
  std::optional<Loop::TimerId> tick_;
  std::deque<JobEvent::Any> events_;  // told while another is being handled
  bool handling_ = false;
};

}  // namespace pliant
