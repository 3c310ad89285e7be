// How commands find the jobs that run on this machine: each launcher keeps a small private file
// that says where its job's HTTP interface is, and with which token it is asked.
//
// The folder is the user's alone (mode 0700), the files too (0600). A launcher that was killed
// leaves its file behind; whoever lists jobs next ignores and removes it. Any thread.
//
// And the folder in which a job keeps what only matters while it runs, the coordinator's journal.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/transport/socket.h"

namespace pliant {

// The store of one host of the job (store_service.h). Those of other machines are found through the
// job's HTTP interface.
struct JobStore {
  std::string host;      // its name
  uint32_t number = 0;   // of the host
  std::string name;      // of the Unix socket; empty: another machine's
  std::string endpoint;  // of HTTP; empty: another machine's
  std::string job;       // by which its workers know the job
  std::string token;     // of both
  bool operator==(const JobStore&) const = default;
};

struct JobEntry {
  std::string job;       // its name; several jobs may have the same
  std::string endpoint;  // "127.0.0.1:4711" of the HTTP interface
  std::string token;
  pid_t pid = 0;                      // of the launcher
  std::vector<JobStore> stores = {};  // of all hosts

  bool operator==(const JobEntry&) const = default;
};

// RUNTIME_DIRECTORY/pliant if that is given, HOME/.cache/pliant/jobs otherwise.
Result<std::string> job_folder(const std::string& runtime_directory, const std::string& home);

// The file of a running job, for as long as this exists.
class JobFile final {
 public:
  // Makes the folder if need be; refuses one that others may write to. The process with entry.pid
  // must run. A file of the same pid is replaced.
  static Result<std::unique_ptr<JobFile>> write(const std::string& folder, const JobEntry& entry);
  ~JobFile();
  JobFile(const JobFile&) = delete;
  JobFile& operator=(const JobFile&) = delete;

  const std::string& path() const { return path_; }

  // The jobs whose launchers run, by pid. No folder, no jobs. Stale files are removed; what cannot
  // be read is passed over.
  static std::vector<JobEntry> list(const std::string& folder);
  // The job of this name or, if it is a number, with this launcher; with an empty name, the only
  // one. None or several are an error that says what there is.
  static Result<JobEntry> find(const std::string& folder, const std::string& name);

 private:
  explicit JobFile(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// A folder of a running job, removed with this object. Who has it holds a lock on it that no death
// leaves behind; folders whose lock is free are those of killed jobs, and the next job of the same
// user removes them.
class JobFolder final {
 public:
  // In the first of `bases` where it can be made.
  static Result<std::unique_ptr<JobFolder>> make(const std::vector<std::string>& bases);
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::string& path() const { return path_; }
  // Holds the lock; a process that inherits it keeps the folder from being taken for a dead job's.
  const Fd& lock() const { return lock_; }

 private:
  JobFolder(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  const std::string path_;
  const Fd lock_;
};

}  // namespace pliant
