#include "pliant/transport/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>

#include "pliant/base/bytes.h"

namespace pliant {
namespace {

constexpr uint64_t kMagic = 0x31474553544e4c50;  // "PLNTSEG1"
constexpr size_t kPage = 4096;
constexpr size_t kStaggerBytes = 320;
constexpr size_t kUnmapBytes = size_t{16} << 20;
constexpr size_t kUnmapSlices = 4096;  // at most
constexpr size_t kRingsOffset = kPage;
constexpr size_t kControlOffset = kRingsOffset + kSlotsMax * sizeof(Ring);
constexpr size_t kHeapOffset = kControlOffset + kControlBytes;
static_assert(sizeof(Ring) % 64 == 0 && kControlOffset % kPage == 0);

size_t machine_memory_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t round_up(size_t bytes) { return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

}  // namespace

Result<std::byte*> Segment::map_bytes(int fd, size_t size) {
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    return system_error(
        fmt::format("cannot map {} of shared memory (limit it by PLIANT_HEAP)", human_bytes(size)));
  return static_cast<std::byte*>(base);
}

Result<std::unique_ptr<Segment>> Segment::create(size_t heap_bytes, uint16_t slot) {
  const size_t heap = round_up(heap_bytes == 0 ? machine_memory_bytes() : heap_bytes);
  const size_t size = kHeapOffset + heap;
  const int fd = memfd_create("pliant", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return system_error("cannot create shared memory");
  // Sealed, so that a peer that maps it can trust its size.
  if (ftruncate(fd, static_cast<off_t>(size)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const Error error =
        system_error(fmt::format("cannot reserve {} of shared memory (limit it by "
                                 "PLIANT_HEAP)",
                                 human_bytes(size)));
    close(fd);
    return error;
  }
  auto base = map_bytes(fd, size);
  if (!base) {
    close(fd);
    return base.error();
  }
  auto* header = new (*base) SegmentHeader;
  header->size_bytes = size;
  header->asleep.store(0);
  header->magic = kMagic;
  std::unique_ptr<Segment> segment(new Segment(fd, *base, size));
  segment->stagger_ = slot % (kPage / kStaggerBytes) * kStaggerBytes;
  segment->free_.emplace(kHeapOffset, heap);
  return segment;
}

Result<std::unique_ptr<Segment>> Segment::map(int fd) {
  struct stat info {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &info) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      info.st_size < static_cast<off_t>(kHeapOffset)) {
    close(fd);
    return invalid("a peer handed over a descriptor that is no Pliant segment");
  }
  const auto size = static_cast<size_t>(info.st_size);
  auto base = map_bytes(fd, size);
  if (!base) {
    close(fd);
    return base.error();
  }
  std::unique_ptr<Segment> segment(new Segment(fd, *base, size));
  if (segment->header().magic != kMagic || segment->header().size_bytes != size)
    return invalid("a peer handed over a segment of another version");
  return segment;
}

// Slice by slice: other threads of the process cannot map or unmap anything meanwhile.
Segment::~Segment() {
  const size_t slice = std::max(kUnmapBytes, round_up(size_ / kUnmapSlices));
  for (size_t done = 0; done < size_; done += slice)
    munmap(base_ + done, std::min(slice, size_ - done));
  close(fd_);
}

Ring& Segment::ring(uint16_t sender_slot) {
  PLIANT_CHECK(sender_slot < kSlotsMax);
  return reinterpret_cast<Ring*>(base_ + kRingsOffset)[sender_slot];
}

std::span<std::byte> Segment::control() { return {base_ + kControlOffset, kControlBytes}; }

Result<std::span<std::byte>> Segment::allocate(size_t bytes) {
  const size_t size = round_up(std::min(bytes, size_) + stagger_);
  const std::lock_guard guard(mutex_);
  const auto at = std::find_if(free_.begin(), free_.end(),
                               [&](const auto& part) { return part.second >= size; });
  if (at == free_.end() || bytes > size_)
    return Error{Code::kOverloaded,
                 fmt::format("no room for a registered buffer of {}: release some, or raise "
                             "PLIANT_HEAP",
                             human_bytes(bytes)),
                 {},
                 {}};
  const auto [offset, room] = *at;
  free_.erase(at);
  if (room > size) free_.emplace(offset + size, room - size);
  used_.emplace(offset, bytes);
  return std::span(base_ + offset + stagger_, bytes);
}

void Segment::release(std::byte* memory) {
  const std::lock_guard guard(mutex_);
  const auto at = used_.find(static_cast<size_t>(memory - base_) - stagger_);
  PLIANT_CHECK(at != used_.end(), "release() of memory that allocate() did not give");
  const size_t offset = at->first;
  size_t size = round_up(at->second + stagger_);
  used_.erase(at);
  // Gives the pages back and makes the next owner see zeroes.
  PLIANT_CHECK(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         static_cast<off_t>(offset), static_cast<off_t>(size)) == 0);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

void Segment::discard(std::span<std::byte> part) {
  uint64_t begin = offset_of(part.data());
  uint64_t end = begin + part.size();
  {
    const std::lock_guard guard(mutex_);
    const auto above = used_.upper_bound(begin);
    PLIANT_CHECK(above != used_.begin(), "discard() of memory that allocate() did not give");
    const auto [offset, bytes] = *std::prev(above);
    const uint64_t first = offset + stagger_;
    begin = begin == first ? offset : round_up(begin);
    end = end == first + bytes ? offset + round_up(bytes + stagger_) : end / kPage * kPage;
  }
  if (begin >= end) return;
  PLIANT_CHECK(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                         static_cast<off_t>(end - begin)) == 0);
}

void Segment::fill(std::span<std::byte> part) {
  const uint64_t begin = offset_of(part.data()) / kPage * kPage;
  const uint64_t end = round_up(offset_of(part.data()) + part.size());
  (void)fallocate(fd_, 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
}

// The same pages get a second address: the caller's. Peers see them in the heap.
Status Segment::adopt(std::byte* memory, size_t bytes) {
  const size_t size = round_up(bytes);
  if (bytes == 0 || reinterpret_cast<uintptr_t>(memory) % kPage != 0)
    return invalid(
        fmt::format("memory to be shared starts a page and is not empty; {} at {} is not so",
                    human_bytes(bytes), fmt::ptr(memory)));
  if (contains(memory, 1))
    return invalid(fmt::format("the memory at {} is shared already", fmt::ptr(memory)));
  auto room = allocate(size + kPage);
  if (!room) return room.error();
  const size_t offset = round_up(offset_of(room->data()));
  std::memcpy(base_ + offset, memory, size);
  if (mmap(memory, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    const int why = errno;
    release(room->data());
    return Error{Code::kOverloaded,
                 fmt::format("cannot map {} at {}: {}", human_bytes(size), fmt::ptr(memory),
                             strerrordesc_np(why)),
                 {},
                 {}};
  }
  const std::lock_guard guard(mutex_);
  adopted_.emplace(memory, Adopted{size, offset, room->data()});
  any_adopted_.store(true, std::memory_order_release);
  return {};
}

Status Segment::surrender(std::byte* memory) {
  Adopted adopted{};
  {
    const std::lock_guard guard(mutex_);
    const auto at = adopted_.find(memory);
    if (at == adopted_.end())
      return invalid(fmt::format("the memory at {} is not shared", fmt::ptr(memory)));
    adopted = at->second;
    adopted_.erase(at);
  }
  if (mmap(memory, adopted.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
           -1, 0) == MAP_FAILED)
    return Error{Code::kOverloaded,
                 fmt::format("no private memory of {} is left", human_bytes(adopted.bytes)),
                 {},
                 {}};
  std::memcpy(memory, base_ + adopted.offset, adopted.bytes);
  release(adopted.room);
  return {};
}

bool Segment::in_heap(const std::byte* data, size_t bytes) const {
  return data >= base_ + kHeapOffset && data + bytes <= base_ + size_;
}

std::optional<uint64_t> Segment::adopted_offset(const std::byte* data, size_t bytes) const {
  if (!any_adopted_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard guard(mutex_);
  const auto above = adopted_.upper_bound(data);
  if (above == adopted_.begin()) return std::nullopt;
  const auto& [memory, adopted] = *std::prev(above);
  if (data + bytes > memory + adopted.bytes) return std::nullopt;
  return adopted.offset + static_cast<uint64_t>(data - memory);
}

bool Segment::contains(const void* data, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  return in_heap(at, bytes) || adopted_offset(at, bytes).has_value();
}

uint64_t Segment::offset_of(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  if (!in_heap(at, 0))
    if (const auto offset = adopted_offset(at, 0)) return *offset;
  return static_cast<uint64_t>(at - base_);
}

}  // namespace pliant
