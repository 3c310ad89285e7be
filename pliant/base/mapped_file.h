// A file that is read through the memory that the kernel keeps it in. Immutable, and shared by
// whoever reads from it; any thread.
//
// Whoever makes a mapped file shorter while it is read kills the reader (SIGBUS); a checkpoint or a
// dataset that is complete does not change any more, and ours appear under their names only when
// they are.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"

namespace pliant {

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

}  // namespace pliant
