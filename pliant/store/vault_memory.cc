#include "pliant/store/vault_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace pliant::store {
namespace {

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
// The kernel takes less than 2 GiB at once.
constexpr size_t kWriteMax = size_t{1} << 30;

}  // namespace

Result<VaultMemory::Shared> VaultMemory::adopt(Fd fd, uint64_t size_bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return invalid("a descriptor is no memory that can be sealed");
  if ((seals & kSeals) != kSeals) return invalid("memory is not sealed: it could still change");
  struct stat about {};
  if (fstat(fd.get(), &about) != 0) return system_error("cannot look at sealed memory");
  if (size_bytes == 0 || static_cast<uint64_t>(about.st_size) != size_bytes)
    return invalid(
        fmt::format("sealed memory has {} bytes instead of {}", about.st_size, size_bytes));
  void* const memory = mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return system_error("cannot map sealed memory");
  return Shared(new VaultMemory(std::move(fd), Bytes(static_cast<const std::byte*>(memory),
                                                     static_cast<size_t>(size_bytes))));
}

VaultMemory::~VaultMemory() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

Result<VaultDraft> VaultDraft::make(uint64_t size_bytes) {
  if (size_bytes == 0) return invalid("there is no memory of no bytes");
  Fd fd(memfd_create("pliant-store", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return system_error("cannot make shared memory");
  if (ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0)
    return system_error(fmt::format("cannot make {} of shared memory", human_bytes(size_bytes)));
  return VaultDraft(std::move(fd), size_bytes);
}

// Written rather than mapped: the kernel need not clear pages that are filled at once, and no
// mapping is left that would keep the memory from being sealed.
Status VaultDraft::write(uint64_t offset, Bytes bytes) {
  PLIANT_CHECK(offset <= size_bytes_ && bytes.size() <= size_bytes_ - offset,
               "a write behind the end of a draft");
  while (!bytes.empty()) {
    const ssize_t taken = pwrite(fd_.get(), bytes.data(), std::min(bytes.size(), kWriteMax),
                                 static_cast<off_t>(offset));
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0)
      return system_error(fmt::format("cannot fill {} of shared memory; is there enough?",
                                      human_bytes(size_bytes_)));
    bytes = bytes.subspan(static_cast<size_t>(taken));
    offset += static_cast<uint64_t>(taken);
  }
  return {};
}

Result<VaultMemory::Shared> VaultDraft::seal() {
  if (fcntl(fd_.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0)
    return system_error("cannot seal shared memory");
  return VaultMemory::adopt(std::move(fd_), size_bytes_);
}

}  // namespace pliant::store
