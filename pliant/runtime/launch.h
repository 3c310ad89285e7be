// What `pliant run` does: starts a job's coordinator, agents and workers, waits for its end and
// leaves nothing behind. One call at a time a process, from the main thread: it takes over the
// signals until it returns.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/membership/roster.h"
#include "pliant/runtime/control.h"
#include "pliant/runtime/hosts.h"
#include "pliant/runtime/options.h"

namespace pliant {

// What makes a job elastic. Sizes of 0 are the defaults.
struct ElasticOptions {
  uint32_t min = 0;           // default: 1
  uint32_t max = 0;           // default: as many as there are slots
  int restarts = 0;           // failed workers that are replaced; RosterOptions::kAnyNumber: all
  std::string schedule = {};  // "2@0,4@100"; empty: none
  Duration heartbeat = std::chrono::seconds(2);
  uint32_t host_failures = 0;         // of workers within a minute before their host is set aside
  RevocationOptions revocation = {};  // {host} in the URL stands for the host's name
};

// Where people reach a job while it runs.
struct ControlPlace {
  std::string endpoint = "127.0.0.1:0";  // of the HTTP interface; port 0 lets the kernel choose
  std::string folder;                    // of job files (job_files.h); empty: none is written
};

struct LaunchOptions {
  int count = 0;                                   // workers; 0: as many as there are slots
  std::vector<Host> hosts;                         // empty: this machine, with room for all
  std::vector<std::string> command;                // program and arguments
  std::map<std::string, std::string> environment;  // for the workers, beside our own
  SessionOptions session;                          // what the workers' sessions are to use
  OutputOptions output;
  std::string address;  // on which the coordinator listens; empty: loopback, or towards the hosts
  // The command that runs another one on a host; {host} stands for its name.
  std::string launcher = "ssh -o BatchMode=yes {host}";
  std::string agent_program;  // path of `pliant` on other hosts; empty: that of this program
  Duration grace = std::chrono::seconds(5);
  std::optional<ElasticOptions> elastic;  // without: a job of fixed size
  std::string name;                       // of the job; empty: that of the program
  std::optional<ControlPlace> control;    // without: no HTTP interface
  std::string coordinator_program;        // path of `pliant` here; empty: that of this program
  StoreOptions store;
  bool verbose = false;
};

struct LaunchResult {
  int exit_code = 0;
  std::string message;  // one sentence for the user if it is not 0
};

// The path of the program that this process runs, to be started again in another role.
Result<std::string> own_program();

// An error means that nothing was started.
Result<LaunchResult> launch(const LaunchOptions& options);

// The membership options of an elastic job of `count` workers (0: by schedule, or in all slots) on
// `hosts` (none: this machine, with room for all). Errors are for the user.
Result<RosterOptions> elastic_roster(const ElasticOptions& options, int count,
                                     const std::vector<Host>& hosts);

// `options` for the agent of `host`, with defaults for what is empty. Errors are for the user.
Result<RevocationOptions> revocation_for(const RevocationOptions& options, const std::string& host);

// Splits a command as a shell would, quotes included, and puts `host` for each {host}.
Result<std::vector<std::string>> launcher_words(const std::string& launcher,
                                                const std::string& host);

}  // namespace pliant
