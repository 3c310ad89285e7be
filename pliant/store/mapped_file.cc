#include "pliant/store/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "pliant/transport/socket.h"

namespace pliant::store {

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return system_error("cannot open " + path);
  struct stat about {};
  if (fstat(fd.get(), &about) != 0) return system_error("cannot look at " + path);
  if (!S_ISREG(about.st_mode)) return invalid(fmt::format("{} is no regular file", path));
  Bytes bytes;
  if (about.st_size > 0) {
    const auto size_bytes = static_cast<size_t>(about.st_size);
    void* const mapped = mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) return system_error("cannot map " + path);
    bytes = Bytes(static_cast<const std::byte*>(mapped), size_bytes);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release_pages() const {
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

uint32_t FileSet::add(const std::string& path) {
  const auto [place, is_new] = numbers_.emplace(path, static_cast<uint32_t>(paths_.size()));
  if (is_new) paths_.push_back(path);
  return place->second;
}

Result<std::shared_ptr<const MappedFile>> FileSet::map(uint32_t file) {
  for (const auto& [number, mapped] : mapped_) {
    if (number == file) return mapped;
  }
  auto opened = MappedFile::open(paths_[file]);
  if (!opened.ok()) return opened.error();
  if (mapped_.size() >= kMappedMax) mapped_.pop_front();
  mapped_.emplace_back(file, *opened);
  return *opened;
}

void FileSet::release_pages() {
  for (const auto& [number, mapped] : mapped_) mapped->release_pages();
}

Result<std::string> read_text_file(const std::string& path, uint64_t size_bytes_max) {
  const auto file = MappedFile::open(path);
  if (!file.ok()) return file.error();
  const Bytes bytes = (*file)->bytes();
  if (bytes.size() > size_bytes_max)
    return invalid(fmt::format("{} has {}; at most {} are read", path, human_bytes(bytes.size()),
                               human_bytes(size_bytes_max)));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace pliant::store
