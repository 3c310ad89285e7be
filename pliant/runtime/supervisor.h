// Keeps the coordinator of an elastic job alive: owns the sockets on which the job listens, the
// folder of its journal and the process that coordinates it, which is started again when it dies.
// Who dials meanwhile waits in the socket's queue and is served by the next one.
//
// Owned by the launcher; called, and calls back, with the loop held, and so is the destructor.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/child.h"
#include "pliant/runtime/coordinator_process.h"
#include "pliant/runtime/job_files.h"
#include "pliant/runtime/output.h"
#include "pliant/runtime/steady_link.h"
#include "pliant/transport/socket.h"

namespace pliant {

class Supervisor final {
 public:
  struct Options {
    CoordinatorSpec spec;            // without sockets and journal
    Address address;                 // for workers and agents; port 0 lets the kernel choose
    std::optional<Address> control;  // of the HTTP interface
    std::string program;             // path of `pliant`
  };
  // Once: the job is over, or cannot go on.
  using OnFinish = std::function<void(const JobFinished&)>;

  // Listens; nothing is started yet.
  static Result<std::unique_ptr<Supervisor>> open(Loop& loop, Output& error, Options options,
                                                  OnFinish on_finish);
  // Ends the coordinator and removes its journal.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  const std::string& control_endpoint() const { return control_endpoint_; }

  Status start();
  // The user's. One that asks the job to end is told to later coordinators, too.
  void signal(int signal);
  void agent_ended(uint32_t host, const std::string& reason);
  // Another agent of the host is started; later coordinators are not told of the end before it.
  void agent_returns(uint32_t host) { ended_agents_.erase(host); }

 private:
  Supervisor(Loop& loop, Output& error, Options options, OnFinish on_finish)
      : loop_(loop),
        error_(error),
        options_(std::move(options)),
        on_finish_(std::move(on_finish)) {}
  Status prepare();
  std::vector<Message> introduction() const;
  Status spawn();
  void on_end(const ChildEnd& end);
  void on_message(const Message& message);
  void remember(int signal);
  void finish(const JobFinished& finished);

  Loop& loop_;
  Output& error_;
  Options options_;
  const OnFinish on_finish_;
  Fd listener_;
  Fd control_listener_;
  std::string endpoint_;
  std::string control_endpoint_;
  std::unique_ptr<JobFolder> folder_;  // of the journal
  std::unique_ptr<Child> child_;
  std::unique_ptr<SteadyLink> link_;
  std::optional<Loop::TimerId> restart_;
  std::deque<Instant> ends_;  // of coordinators, within the last minute
  int ending_signal_ = 0;
  std::map<uint32_t, std::string> ended_agents_;  // by host, and why
  bool finished_ = false;
};

}  // namespace pliant
