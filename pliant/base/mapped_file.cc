#include "pliant/base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace pliant {
namespace {

// The mapping does not need the descriptor any more. An empty file has none.
Result<Bytes> map_whole(int fd, const std::string& path) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return system_error("cannot look at " + path);
  if (!S_ISREG(about.st_mode)) return invalid(fmt::format("{} is no regular file", path));
  if (about.st_size == 0) return Bytes();
  const auto size_bytes = static_cast<size_t>(about.st_size);
  void* const mapped = mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return system_error("cannot map " + path);
  return Bytes(static_cast<const std::byte*>(mapped), size_bytes);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error("cannot open " + path);
  auto bytes = map_whole(fd, path);
  ::close(fd);
  if (!bytes) return bytes.error();
  return std::shared_ptr<const MappedFile>(new MappedFile(path, *bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release_pages() const {
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

}  // namespace pliant
