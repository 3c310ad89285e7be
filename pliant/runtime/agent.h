// An agent: starts the workers of one host, passes their output on and reports their ends.
//
// Owned by `pliant run` for its own host and by `pliant agent` elsewhere; both signal the workers
// through the process group that they lend. Called, and calls back, with the loop held.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/loop/loop.h"
#include "pliant/runtime/child.h"
#include "pliant/runtime/control.h"
#include "pliant/runtime/output.h"
#include "pliant/runtime/process_group.h"

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

// The variables that torch's "env://" rendezvous and Pliant itself expect of worker `slot`.
std::map<std::string, std::string> worker_environment(const AgentSpec& spec,
                                                      const StartWorkers& start, uint16_t slot);

class Agent final {
 public:
  // What it borrows; all outlive it.
  struct Surroundings {
    Loop& loop;
    ProcessGroup& group;
    Output& out;
    Output& error;
  };

  // spec.address is known by now.
  Agent(Surroundings surroundings, AgentSpec spec,
        std::function<void(const WorkerExited&)> on_exit);

  // Checks that the workers can be started; the answer goes to the coordinator.
  AgentReady prepare();
  void start(const StartWorkers& start);
  size_t running() const { return children_.size(); }

 private:
  void start_worker(const StartWorkers& start, uint16_t slot);

  Surroundings surroundings_;
  const AgentSpec spec_;
  const std::function<void(const WorkerExited&)> on_exit_;
  std::string program_;
  std::map<uint16_t, std::unique_ptr<Child>> children_;  // by slot
};

}  // namespace pliant
