// What workers and the store of their host (store_service.h) say to each other over a Unix socket,
// and stores, workers and commands of other hosts over TCP: frames of a kind and a body, some of
// which bring a block of sealed memory along, as only a Unix socket can.
//
// A line begins with a Hello and an Answer (transport/handshake.h), which are no frames. Owned by
// one end of a connection; one thread at a time. Never waits.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/store/vault.h"
#include "pliant/transport/socket.h"

namespace pliant {

enum class StoreKind : uint8_t {
  kOffer = 1,  // to the store: a ticket and a manifest, with its memory
  kAsk,        // to the store: a step
  kList,       // to the store: which versions there are; empty
  kOutcome,    // from the store: how it went; of an offer, once the version is complete
  kVersion,    // from the store: a step, and how many parts follow
  kPart,       // from the store: a manifest, with its memory
  kVersions,   // from the store: all complete ones
  kCopy,       // between stores: of which version; its parts follow
  kCopyPart,   // between stores: a manifest; its memory follows
  kCopyBytes,  // between stores: the next bytes of that memory
  kHosts,      // to the store: where those of the other hosts are; empty
  kHostList,   // from the store: there
  kLook,       // to the store: a step, as kAsk, but only its outline
  kOutline,    // from the store, after kVersion: a part
  kPull,       // to the store: pieces of a version, which come as kCopyPart and kCopyBytes
};

struct StoreFrame {
  StoreKind kind = StoreKind::kOutcome;
  std::vector<std::byte> body;
  Fd memory;  // invalid if none came along
};

struct StoreOffer {
  store::VaultTicket ticket;
  store::Manifest manifest;
};
struct StoreVersion {
  uint64_t step = 0;
  uint32_t epoch = 0;
  uint32_t parts = 0;
};
struct StoreCopy {
  enum class Purpose : uint8_t {
    kCopy,     // of another host's version
    kOutline,  // of one: its manifests alone, so that its loss can be named
    kOwn,      // becomes a version of the store's own host
  };
  uint32_t host = 0;  // whose it is
  Purpose purpose = Purpose::kCopy;
  StoreVersion version;
};
// A part of a version without its elements.
struct StoreOutline {
  uint32_t host = 0;  // that wrote it; of a part that is held, that which answers
  bool held = false;  // can be pulled, under its number among those that are held
  store::Manifest manifest;
};
struct StorePull {
  struct Piece {
    uint32_t part = 0;
    uint32_t piece = 0;  // of the part's manifest
    bool operator==(const Piece&) const = default;
  };
  uint64_t step = 0;
  uint32_t epoch = 0;
  std::vector<Piece> pieces;
  bool operator==(const StorePull&) const = default;
};
// The store of another host.
struct StorePeer {
  uint32_t host = 0;
  std::string endpoint;  // StoreService::copies_endpoint()
  bool operator==(const StorePeer&) const = default;
};
// For lists.
struct StoreSummary {
  uint64_t step = 0;
  uint32_t epoch = 0;
  uint32_t parts = 0;
  uint64_t tensors = 0;
  uint64_t memory_bytes = 0;
  bool operator==(const StoreSummary&) const = default;
};

std::vector<std::byte> encode(const StoreOffer& offer);
Result<StoreOffer> decode_offer(Bytes body);
std::vector<std::byte> encode_ask(uint64_t step);
Result<uint64_t> decode_ask(Bytes body);
std::vector<std::byte> encode_outcome(const Status& outcome);
Status decode_outcome(Bytes body);  // the outcome, or that it cannot be read
std::vector<std::byte> encode(const StoreVersion& version);
Result<StoreVersion> decode_version(Bytes body);
std::vector<std::byte> encode(const StoreCopy& copy);
Result<StoreCopy> decode_copy(Bytes body);
std::vector<std::byte> encode(const StoreOutline& outline);
Result<StoreOutline> decode_outline(Bytes body);
std::vector<std::byte> encode(const StorePull& pull);
Result<StorePull> decode_pull(Bytes body);
std::vector<std::byte> encode(const std::vector<StorePeer>& peers);
Result<std::vector<StorePeer>> decode_peers(Bytes body);
std::vector<std::byte> encode(const std::vector<StoreSummary>& summaries);
Result<std::vector<StoreSummary>> decode_summaries(Bytes body);

class StoreLine final {
 public:
  static constexpr size_t kHeadBytes = 16;
  static constexpr uint64_t kBodyBytesMax = store::Manifest::kBytesMax + 1024;

  explicit StoreLine(Fd socket) : socket_(std::move(socket)) {}
  const Fd& socket() const { return socket_; }

  void send(StoreKind kind, const std::vector<std::byte>& body,
            store::VaultMemory::Shared memory = nullptr);
  // Bytes that are no frame, as a hello is.
  void send_raw(Bytes bytes);
  // Sends what can be sent now; true if nothing is left.
  Result<bool> flush();
  bool flushed() const { return out_.empty(); }

  // Takes in what has arrived, in so many reads at most; kPeerLost if the other end has hung up,
  // perhaps after frames that next() still gives.
  static constexpr int kReadsMax = 16;
  Status fill(int reads_max = kReadsMax);
  // The next frame, if it is complete. Of one that announces too much nothing is kept.
  Result<std::optional<StoreFrame>> next();
  // What has arrived and was not taken, for bytes that are no frame; valid until the next call.
  Bytes peek_raw() const { return Bytes(in_).subspan(taken_); }
  void skip_raw(size_t size_bytes) { taken_ += size_bytes; }
  size_t waiting_bytes() const { return in_.size() - taken_; }

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    size_t sent_bytes = 0;
    store::VaultMemory::Shared memory;  // travels with the first byte
  };

  Fd socket_;
  std::deque<Outgoing> out_;
  std::vector<std::byte> in_;
  size_t taken_ = 0;  // of `in_`
  std::deque<Fd> memories_;
};

}  // namespace pliant
