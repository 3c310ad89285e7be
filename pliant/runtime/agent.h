// An agent: starts the workers of one host, passes their output on and reports their ends. Those
// of an elastic job are started one by one, each with a life lock (life.h), and its agent learns
// from the cloud if the host will be taken away (revocation.h). It keeps the host's tensors at rest
// (store_service.h).
//
// Owned by `pliant run` for its own host and by `pliant agent` elsewhere; both signal the workers
// through the process group that they lend. Called, and calls back, with the loop held.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/child.h"
#include "pliant/runtime/control.h"
#include "pliant/runtime/life.h"
#include "pliant/runtime/output.h"
#include "pliant/runtime/process_group.h"
#include "pliant/runtime/revocation_watch.h"
#include "pliant/runtime/store_service.h"

namespace pliant {

// Finds a program as a shell would. `exit_code` and `problem` say why it cannot be run: 127 if
// there is none, 126 if it is not executable.
struct Program {
  std::string path;
  int exit_code = 0;
  std::string problem;
};
Program find_program(const std::string& name, const std::string& directory,
                     const std::string& search_path);

// The variables that torch's "env://" rendezvous and Pliant itself expect of a worker.
std::map<std::string, std::string> worker_environment(const AgentSpec& spec,
                                                      const StartWorkers& start,
                                                      const StartWorker& worker);

class Agent final {
 public:
  // What it borrows; all outlive it.
  struct Surroundings {
    Loop& loop;
    ProcessGroup& group;
    Output& out;
    Output& error;
  };

  // What it tells the coordinator.
  struct Reports {
    std::function<void(const WorkerExited&)> on_exit;
    std::function<void(const WorkerDied&)> on_died = [](const WorkerDied&) {};
    std::function<void(const Notice&)> on_notice = [](const Notice&) {};
  };

  // spec.address is known by now.
  Agent(Surroundings surroundings, AgentSpec spec, Reports reports);

  // Checks that the workers can be started; the answer goes to the coordinator.
  AgentReady prepare();
  // The same answer and what became of its workers since, for a coordinator that was away.
  AgentReady report() const;
  // All workers; of an elastic job none yet. Only the first call counts, but for where the other
  // hosts' stores are.
  void start(const StartWorkers& start);
  // Nothing if this worker was started already.
  void start_worker(const StartWorker& order);
  // Nothing if it has ended.
  void signal_worker(const SignalWorker& order);
  // The host will be taken away. Only the first reason is told; later reports repeat it.
  void give_notice(const std::string& reason);
  size_t running() const { return children_.size(); }
  // The store of this host; null before prepare() has succeeded.
  const StoreService* store() const { return store_.get(); }

 private:
  struct Running {
    PeerId peer;
    // Destroyed after the child, whose end lets go of the lock.
    std::unique_ptr<LifeWatch> watch;
    std::unique_ptr<Child> child;
  };

  Status try_start(PeerId peer, const StartWorker& order);
  Status open_store();
  void copy_store_to(const std::vector<std::string>& stores);
  ChildOptions child_options(const StartWorker& order) const;
  void on_end(PeerId peer, const ChildEnd& end);
  void report_end(const WorkerExited& end);
  void watch_revocation();

  Surroundings surroundings_;
  const AgentSpec spec_;
  const Reports reports_;
  std::string program_;
  AgentReady ready_;  // what prepare() said
  std::optional<StartWorkers> start_;
  std::map<uint16_t, uint32_t> newest_;     // incarnation of each slot
  std::map<uint16_t, WorkerExited> ended_;  // the last of each slot
  std::map<uint16_t, Running> children_;    // by slot
  std::string notice_;                      // why the host will be taken away; empty: it will not
  std::unique_ptr<RevocationWatch> revocation_;
  std::unique_ptr<StoreService> store_;
};

}  // namespace pliant
