// Memory that outlives its writer and cannot be changed any more: a memfd, filled once and sealed.
//
// A draft belongs to whoever fills it. Sealed memory is a value that processes pass to each other
// as a descriptor; the kernel frees it when the last of them has let go. Sealed memory: any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/transport/socket.h"

namespace pliant::store {

class VaultMemory final {
 public:
  using Shared = std::shared_ptr<const VaultMemory>;

  // Refuses whatever is no memfd of exactly this size, or could still be written to, grow or
  // shrink: who reads it later would see it change, or be killed for reading behind its end.
  static Result<Shared> adopt(Fd fd, uint64_t size_bytes);
  ~VaultMemory();
  VaultMemory(const VaultMemory&) = delete;
  VaultMemory& operator=(const VaultMemory&) = delete;

  Bytes bytes() const { return bytes_; }
  const Fd& fd() const { return fd_; }

 private:
  VaultMemory(Fd fd, Bytes bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  const Fd fd_;
  const Bytes bytes_;
};

class VaultDraft final {
 public:
  // At least one byte; it holds zeros.
  static Result<VaultDraft> make(uint64_t size_bytes);
  // Several threads may write to different places at once.
  Status write(uint64_t offset, Bytes bytes);
  // From here on nobody can change it. The draft is used up.
  Result<VaultMemory::Shared> seal();

 private:
  VaultDraft(Fd fd, uint64_t size_bytes) : fd_(std::move(fd)), size_bytes_(size_bytes) {}

  Fd fd_;
  uint64_t size_bytes_ = 0;
};

}  // namespace pliant::store
