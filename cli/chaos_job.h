// A job of `pliant chaos`: `pliant run` with its workers, the folder of their records, and the way
// to talk to it. Ends both with itself. Owned by chaos; one thread.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/base/time.h"

namespace pliant::cli {

// Takes the user's wish to end for as long as it exists, so that what was made is removed.
class Interrupts final {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Waits; less long once the user wants to end.
  void sleep(Duration time);
  bool happened() const { return signal_ != 0; }
  int signal() const { return signal_; }

 private:
  sigset_t set_;
  sigset_t before_;
  int signal_ = 0;
};

class ChaosJob final {
 public:
  struct Options {
    std::string name;
    std::vector<std::string> run;     // options of `pliant run`
    std::vector<std::string> worker;  // of `pliant chaos-worker`
    bool quiet = false;
  };
  struct Member {
    int pid = 0;
    std::string host;
    bool seasoned = false;  // has committed, so that it has the state
  };
  struct AgentProcess {
    int pid = 0;
    std::string host;
  };
  // A variable by which the agents' launcher names the host of each.
  static constexpr const char* kHostVariable = "PLIANT_CHAOS_HOST";

  static Result<std::unique_ptr<ChaosJob>> start(const Options& options, Interrupts& interrupts);
  ~ChaosJob();
  ChaosJob(const ChaosJob&) = delete;
  ChaosJob& operator=(const ChaosJob&) = delete;

  const std::string& folder() const { return folder_; }
  void keep() { kept_ = true; }
  bool running();
  void end();
  // Waits until the records grow; false if they do not for `longest`.
  bool progresses(uint64_t before, Duration longest);

  // The job's own account of itself; nothing while its coordinator is away.
  std::optional<nlohmann::json> status() const;
  Status resize(int members) const;
  std::vector<Member> members() const;
  int coordinator_pid() const;
  std::vector<AgentProcess> agents() const;
  // Bytes of all records: they grow as long as anybody commits.
  uint64_t record_bytes() const;

 private:
  ChaosJob(std::string folder, std::string name, Interrupts& interrupts)
      : folder_(std::move(folder)), name_(std::move(name)), interrupts_(interrupts) {}
  Status spawn(const std::vector<std::string>& words, bool quiet);

  const std::string folder_;
  const std::string name_;
  Interrupts& interrupts_;
  pid_t pid_ = 0;
  int exit_status_ = 0;
  bool kept_ = false;
};

}  // namespace pliant::cli
