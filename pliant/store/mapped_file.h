// Files that are read through the memory that the kernel keeps them in. A mapping is immutable and
// shared by whoever reads from it; a FileSet belongs to one reader at a time.
//
// Whoever makes a mapped file shorter while it is read kills the reader (SIGBUS); a checkpoint that
// is complete does not change any more, and ours appear under their names only when they are.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"

namespace pliant::store {

class MappedFile final {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  Bytes bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // Gives the pages back, so that a long read does not count as memory of this process; they are
  // read again if somebody looks.
  void release_pages() const;

 private:
  MappedFile(std::string path, Bytes bytes) : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  Bytes bytes_;
};

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
