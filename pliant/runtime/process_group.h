// A group of processes that does not outlive its owner.
//
// A guard, forked off at once, leads the group and holds one end of a socket whose other end only
// the owner has. When that closes, because the owner ends it or because the owner was killed, the
// guard kills the whole group, itself included. So neither a worker nor its children are left
// behind, even by kill -9. Owned by a launcher or agent; any thread, one at a time.
#pragma once

#include <sys/types.h>

#include <memory>

#include "pliant/base/result.h"
#include "pliant/transport/socket.h"

namespace pliant {

class ProcessGroup final {
 public:
  static Result<std::unique_ptr<ProcessGroup>> make();
  // Kills what is left of the group.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  pid_t id() const { return guard_; }
  // To every process of the group except the guard.
  void signal(int signal);

 private:
  ProcessGroup(pid_t guard, Fd lifeline) : guard_(guard), lifeline_(std::move(lifeline)) {}

  const pid_t guard_;
  Fd lifeline_;
};

// Ends a child of ours for sure and reaps it; gives up after a second on one that cannot die.
void kill_and_reap(pid_t child);

// From now on orphaned descendants become children of this process, and end_orphans() finds them:
// those that left their group, as daemons do, are still part of the job.
void adopt_orphans();
void end_orphans();

}  // namespace pliant
