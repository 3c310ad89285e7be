// The files of a checkpoint, and small files read whole. A FileSet belongs to one reader at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pliant/base/mapped_file.h"
#include "pliant/base/result.h"

namespace pliant::store {

// The files of a checkpoint by number, mapped when they are needed; few at a time, because a
// checkpoint may have very many.
class FileSet final {
 public:
  static constexpr size_t kMappedMax = 64;

  // The number of the file, which is new if it was not there.
  uint32_t add(const std::string& path);
  size_t size() const { return paths_.size(); }
  const std::string& path(uint32_t file) const { return paths_[file]; }
  Result<std::shared_ptr<const MappedFile>> map(uint32_t file);
  void release_pages();

 private:
  std::vector<std::string> paths_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::deque<std::pair<uint32_t, std::shared_ptr<const MappedFile>>> mapped_;  // oldest first
};

// Reads a small file whole; refuses one that is larger.
Result<std::string> read_text_file(const std::string& path, uint64_t size_bytes_max);

}  // namespace pliant::store
