// Copies of a store's versions on other hosts, so that they outlive their host: the sender, which
// is a thread of its own, and the receiver, which is driven by the frames that arrive.
//
// A copy travels over TCP: which version, then each part's manifest and memory. The receiver checks
// every checksum before it keeps anything. Hosts that get no copy get the outline, the manifests
// alone, so that they can tell what is gone if this host is.
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

  // All get outlines, `copied` whole versions. The last version given is sent to those that are
  // new.
  void set_peers(const std::vector<StorePeer>& all, const std::vector<StorePeer>& copied);
  // What cannot be sent is said in the log.
  void keep(store::Version::Shared version);

 private:
  struct Target {
    StorePeer peer;
    StoreCopy::Purpose purpose = StoreCopy::Purpose::kCopy;
    bool operator==(const Target&) const = default;
  };

  void work();
  Status send(const store::Version& version, const Target& target) const;

  const Options options_;
  Fd cancel_;  // readable once this is being destroyed
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Target> targets_;
  std::vector<Target> served_;  // have newest_
  store::Version::Shared newest_;
  bool stopping_ = false;
  std::thread thread_;
};

// Receives one part: its manifest, and then its memory. One thread at a time.
class PartReceiver final {
 public:
  Status begin(store::Manifest manifest);
  bool begun() const { return draft_.has_value(); }
  // The part once all of its bytes have come.
  Result<std::optional<store::VaultPart>> add(Bytes bytes);

 private:
  store::Manifest manifest_;
  std::optional<store::VaultDraft> draft_;
  uint64_t received_bytes_ = 0;
};

// Some pieces of a version as one part, on its way to whoever pulls them. One thread at a time.
class PullStream final {
 public:
  // kInvalid if the version has no such pieces, or there are none.
  static Result<PullStream> make(store::Version::Shared version, const StorePull& pull);
  const store::Manifest& manifest() const { return manifest_; }
  // The next bytes of the part's memory, at most a frame's worth; empty at its end.
  std::vector<std::byte> next();

 private:
  explicit PullStream(store::Version::Shared version) : version_(std::move(version)) {}

  store::Version::Shared version_;
  store::Manifest manifest_;
  std::vector<Bytes> pieces_;  // as in the manifest
  size_t piece_ = 0;           // the next, or the one in hand
  uint64_t sent_bytes_ = 0;    // of the memory
};

// Owned by a line of the service, with whose loop it is called.
class CopyReceiver final {
 public:
  // A copy has at most so many bytes; 0: no limit.
  explicit CopyReceiver(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // The next frame; true once all has come.
  Result<bool> take(const StoreFrame& frame);
  bool is_put() const { return about_ && about_->purpose == StoreCopy::Purpose::kOwn; }
  // Then: what it is, and what came, of which nothing is left here.
  const StoreCopy& about() const { return *about_; }
  std::vector<store::VaultPart> take_parts() { return std::move(parts_); }
  store::Vault::Outline take_outline();

 private:
  Status begin_part(Bytes body);

  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  std::optional<StoreCopy> about_;
  std::vector<store::VaultPart> parts_;
  std::vector<store::Manifest> outline_;
  PartReceiver part_;  // that is arriving
};

}  // namespace pliant
