// Files and folders that appear under their names only when they are complete and on the disk: they
// are written under no name (a folder, and a file where the file system cannot do this, under a
// name of their own beside it), synced, and then given theirs. Whatever fails before that, a full
// disk or a crash of the program included, leaves what was there before intact, and a killed writer
// of a file leaves nothing behind. Owned by whoever writes; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/transport/socket.h"

namespace pliant::store {

enum class Existing : uint8_t { kRefuse, kReplace };

// Refuses, with what to do, a path where there is something; a hint, because only commit() decides.
Status check_free(const std::string& path, Existing existing);

class AtomicFile final {
 public:
  // Reserves the space at once where the file system can, so that a full disk is known early.
  static Result<std::unique_ptr<AtomicFile>> create(const std::string& path, uint64_t size_bytes,
                                                    Existing existing);
  ~AtomicFile();  // deletes what was not committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status write(Bytes bytes, uint64_t offset);
  Status commit();

 private:
  Status take_name();
  AtomicFile(std::string path, std::string temporary, Fd fd, Existing existing);

  std::string path_;
  std::string temporary_;  // empty if it has no name yet, and once committed
  Fd fd_;
  Existing existing_;
};

class AtomicFolder final {
 public:
  static Result<std::unique_ptr<AtomicFolder>> create(const std::string& path, Existing existing);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Where to put the files until commit().
  const std::string& temporary() const { return temporary_; }
  Status commit();

 private:
  AtomicFolder(std::string path, std::string temporary, Existing existing);

  std::string path_;
  std::string temporary_;
  Existing existing_;
};

// Gives a folder its name: the last step of AtomicFolder, for whoever keeps a folder through
// crashes. Its files are on the disk already; both paths are in the same file system.
Status publish_folder(const std::string& temporary, const std::string& path, Existing existing);

// A new name is on the disk when its folder is.
Status sync_folder_of(const std::string& path);

// A small file, at once.
Status write_file(const std::string& path, Bytes bytes, Existing existing);

}  // namespace pliant::store
