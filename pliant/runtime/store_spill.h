// Keeps the newest version of a host's store in a file (store/vault_file.h), so that it outlives
// the job. Owned by the store's service: any thread. Writes on a thread of its own; of versions
// that come while it writes it takes the newest.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "pliant/store/vault.h"

namespace pliant {

class StoreSpill final {
 public:
  explicit StoreSpill(std::string path);
  // Finishes what was given to it.
  ~StoreSpill();
  StoreSpill(const StoreSpill&) = delete;
  StoreSpill& operator=(const StoreSpill&) = delete;

  // What cannot be written is said in the log; the file keeps the version before.
  void keep(store::Version::Shared version);

 private:
  void work();

  const std::string path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  store::Version::Shared next_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace pliant
