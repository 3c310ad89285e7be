// The vault: the tensors that a host keeps at rest, so that they outlive the workers that wrote
// them. It keeps the newest versions (a step each) of a training state.
//
// Each writer of a version hands over its part: some pieces of some tensors in one block of sealed
// memory. The version can be seen once all of its writers have done so, and replaces one of the
// same step at that moment; until then nobody but the vault knows of it. "Newest" is the one that
// was completed last, whatever its step: a training that went back to an older step goes on from
// there.
//
// Beside its own versions it may keep copies of those of other hosts. Where there is one of the
// same step and epoch, a version has the pieces of both. Of versions of which it has no copy it may
// keep the outline: what was in them, so that a loss can be named.
//
// A Version never changes, and whoever holds it keeps its memory, also when the vault has let go of
// it: any thread. The vault itself: any thread, one at a time. It touches nothing but its memory.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/store/vault_manifest.h"
#include "pliant/store/vault_memory.h"
#include "pliant/tensor/collection.h"

namespace pliant::store {

// What one writer hands over.
struct VaultPart {
  Manifest manifest;
  VaultMemory::Shared memory;
};

class Version final {
 public:
  using Shared = std::shared_ptr<const Version>;

  // Fails if parts disagree about a tensor, or a manifest does not fit its memory.
  static Result<Shared> make(uint64_t step, uint32_t epoch, std::vector<VaultPart> parts);

  uint64_t step() const { return step_; }
  uint32_t epoch() const { return epoch_; }  // of the view whose members wrote it
  const tensor::Collection& tensors() const { return tensors_; }
  const std::vector<VaultPart>& parts() const { return parts_; }
  uint64_t memory_bytes() const { return memory_bytes_; }

  struct Piece {
    Box box;
    Bytes elements;  // row-major
    uint64_t checksum = 0;
  };
  // Of the tensor with this number. Where several overlap they are replicas, and the first counts.
  const std::vector<Piece>& pieces(size_t tensor) const { return pieces_[tensor]; }

  Result<size_t> find(std::string_view name) const;
  // Any box of a tensor, row-major, from however many pieces hold it. kInvalid names what no piece
  // on this host has.
  Status read(size_t tensor, const Box& box, std::span<std::byte> to) const;
  // The part of the tensor that its pieces hold, in elements.
  Result<uint64_t> covered(size_t tensor) const;
  // Reads everything and compares it with the checksums; the message names the first difference.
  Status verify() const;

 private:
  Version(uint64_t step, uint32_t epoch) : step_(step), epoch_(epoch) {}

  const uint64_t step_;
  const uint32_t epoch_;
  tensor::Collection tensors_;
  std::vector<std::vector<Piece>> pieces_;  // by tensor
  std::vector<VaultPart> parts_;
  uint64_t memory_bytes_ = 0;
};

struct VaultOptions {
  uint64_t bytes_max = 0;   // of all memory in it; 0: no limit
  size_t versions_max = 2;  // complete ones, at least 1
};

// Whose part it is. Writers are numbered; all of a version say the same epoch and number of them.
struct VaultTicket {
  uint64_t step = 0;
  uint32_t epoch = 0;
  uint32_t writer = 0;
  uint32_t writers = 1;

  auto operator<=>(const VaultTicket&) const = default;
};

class Vault final {
 public:
  static constexpr uint64_t kNewest = UINT64_MAX;  // instead of a step
  static constexpr uint32_t kWritersMax = 4096;
  static constexpr size_t kUnfinishedMax = 4;  // versions whose writers have not all come yet

  explicit Vault(VaultOptions options);

  // Takes a part. Older complete versions make room for it if need be, the newest one never;
  // kOverloaded if that is not enough. A part of a later epoch displaces an unfinished version of
  // the same step; one of an earlier epoch is kStaleEpoch.
  Status add(const VaultTicket& ticket, VaultPart part);
  // The writer is gone: its part goes, unless the version is complete.
  void withdraw(const VaultTicket& ticket);
  enum class Standing { kUnfinished, kComplete, kGone };
  Standing standing(const VaultTicket& ticket) const;

  // Keeps a copy of another host's version, and of each host no more than of its own.
  Status add_copy(uint32_t host, Version::Shared copy);
  static constexpr size_t kCopiedHostsMax = 64;

  // What another host wrote of a version, part by part; the last of each step counts, and of each
  // host as many are kept as of versions.
  struct Outline {
    uint64_t step = 0;
    uint32_t epoch = 0;
    std::vector<Manifest> parts;
  };
  Status add_outline(uint32_t host, Outline outline);
  static constexpr size_t kOutlinedHostsMax = 4096;
  // Those of this step, by host; valid until the next call that is not const.
  std::map<uint32_t, const Outline*> outlines(uint64_t step) const;

  // Complete ones, in the order in which they were completed; first those of which there are only
  // copies.
  std::vector<Version::Shared> versions() const;
  // The message says what there is.
  Result<Version::Shared> find(uint64_t step) const;
  // The newest one of this host alone; null if there is none.
  Version::Shared own_newest() const { return complete_.empty() ? nullptr : complete_.back(); }
  Status remove(uint64_t step);
  uint64_t memory_bytes() const;  // unfinished versions and copies included

 private:
  struct Unfinished {
    uint32_t epoch = 0;
    uint32_t writers = 0;
    std::map<uint32_t, VaultPart> parts;  // by writer
  };

  Status check(const VaultTicket& ticket) const;
  Status make_room(uint64_t bytes);
  Version::Shared with_copies(const Version::Shared& version) const;
  Status complete(uint64_t step);

  const VaultOptions options_;
  std::map<uint64_t, Unfinished> unfinished_;  // by step
  std::list<Version::Shared> complete_;
  std::map<uint32_t, std::list<Version::Shared>> copies_;  // by host
  std::map<uint32_t, std::list<Outline>> outlines_;        // by host
};

}  // namespace pliant::store
