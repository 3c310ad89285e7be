#include "pliant/store/file_set.h"

#include <fmt/format.h>

namespace pliant::store {

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
