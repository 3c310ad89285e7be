// Copies of a store's versions on other hosts, so that they outlive their host: the sender, which
// is a thread of its own, and the receiver, which is driven by the frames that arrive.
//
// A copy travels over TCP: which version, then each part's manifest and memory. The receiver checks
// every checksum before it keeps anything.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/runtime/store_wire.h"
#include "pliant/store/vault.h"
#include "pliant/transport/socket.h"

namespace pliant {

// The store of another host.
struct StorePeer {
  uint32_t host = 0;
  std::string endpoint;  // StoreService::copies_endpoint()
  bool operator==(const StorePeer&) const = default;
};

// Owned by the store's service: any thread. Of versions that come while it sends it takes the
// newest.
class StoreCopies final {
 public:
  struct Options {
    std::string job;
    std::string token;
    uint32_t host = 0;
  };

  explicit StoreCopies(Options options);
  // Gives up what is not sent yet.
  ~StoreCopies();
  StoreCopies(const StoreCopies&) = delete;
  StoreCopies& operator=(const StoreCopies&) = delete;

  // The last version given is sent to those that are new.
  void set_peers(std::vector<StorePeer> peers);
  // What cannot be sent is said in the log.
  void keep(store::Version::Shared version);

 private:
  void work();
  Status send(const store::Version& version, const StorePeer& peer) const;

  const Options options_;
  Fd cancel_;  // readable once this is being destroyed
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StorePeer> peers_;
  std::vector<StorePeer> served_;  // have newest_
  store::Version::Shared newest_;
  bool stopping_ = false;
  std::thread thread_;
};

// Owned by a line of the service, with whose loop it is called.
class CopyReceiver final {
 public:
  // A copy has at most so many bytes; 0: no limit.
  explicit CopyReceiver(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // The next frame; the version once it is whole, null before that.
  Result<store::Version::Shared> take(const StoreFrame& frame);
  uint32_t host() const { return about_->host; }

 private:
  Status begin_part(Bytes body);
  Status add_bytes(Bytes bytes);

  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  std::optional<StoreCopy> about_;
  std::vector<store::VaultPart> parts_;
  std::optional<store::Manifest> manifest_;  // of the part that is arriving
  std::optional<store::VaultDraft> draft_;
  uint64_t received_bytes_ = 0;  // of it
};

}  // namespace pliant
