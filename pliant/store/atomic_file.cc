#include "pliant/store/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace pliant::store {
namespace {

constexpr const char* kRandom = ".partial-XXXXXX";

std::string without_slashes_at_end(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

Status sync_folder(const std::string& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) return system_error("cannot sync the folder " + folder);
  return {};
}

std::string way_to(const Fd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

bool is_there(const std::string& path) {
  struct stat about {};
  return lstat(path.c_str(), &about) == 0;
}

Error already_there(const std::string& path) {
  return invalid(
      fmt::format("{} exists; choose another destination or allow replacing it with "
                  "--force",
                  path));
}

// Not every file system knows these flags; there the check and the act are two steps.
Status rename_to_free(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (errno == EEXIST) return already_there(to);
  if (errno == EINVAL && !is_there(to) && rename(from.c_str(), to.c_str()) == 0) return {};
  return system_error(fmt::format("cannot rename {} to {}", from, to));
}

Status remove_folder(const std::string& path) {
  std::error_code code;
  std::filesystem::remove_all(path, code);
  if (code) return invalid(fmt::format("cannot remove {}: {}", path, code.message()));
  return {};
}

// Puts a folder in the place of another, which is removed afterwards.
Status replace_folder(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL) return system_error(fmt::format("cannot replace {}", to));
    const std::string aside = from + ".old";
    if (rename(to.c_str(), aside.c_str()) != 0 || rename(from.c_str(), to.c_str()) != 0)
      return system_error(fmt::format("cannot replace {}; see {}", to, aside));
    return remove_folder(aside);
  }
  return remove_folder(from);
}

}  // namespace

Status check_free(const std::string& path, Existing existing) {
  if (existing == Existing::kRefuse && is_there(without_slashes_at_end(path)))
    return already_there(path);
  return {};
}

AtomicFile::AtomicFile(std::string path, std::string temporary, Fd fd, Existing existing)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      fd_(std::move(fd)),
      existing_(existing) {}

Result<std::unique_ptr<AtomicFile>> AtomicFile::create(const std::string& path, uint64_t size_bytes,
                                                       Existing existing) {
  PLIANT_TRY(check_free(path, existing));
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return invalid(fmt::format("{} is a folder; name a file", path));
  std::string temporary;
  Fd fd(::open(folder_of(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
  // It is given its name through /proc, which need not be there.
  if (!fd.valid() || access(way_to(fd).c_str(), F_OK) != 0) {
    temporary = path + kRandom;
    fd = Fd(mkostemp(temporary.data(), O_CLOEXEC));
    if (!fd.valid()) return system_error("cannot create a file beside " + path);
  }
  std::unique_ptr<AtomicFile> file(
      new AtomicFile(path, std::move(temporary), std::move(fd), existing));
  // mkostemp() makes files for their owner alone; checkpoints are as public as other files.
  const mode_t mask = umask(0);
  umask(mask);
  if (fchmod(file->fd_.get(), 0666 & ~mask) != 0) return system_error("cannot write " + path);
  if (size_bytes > 0) {
    const int refused = posix_fallocate(file->fd_.get(), 0, static_cast<off_t>(size_bytes));
    if (refused != 0 && refused != EOPNOTSUPP && refused != EINVAL) {
      errno = refused;
      return system_error(fmt::format("cannot reserve {} for {}", human_bytes(size_bytes), path));
    }
  }
  return file;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::write(Bytes bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("cannot write " + path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

// Beside its place: no call puts a file without a name in the place of another.
Status AtomicFile::take_name() {
  std::string name = path_ + kRandom;
  const Fd placeholder(mkostemp(name.data(), O_CLOEXEC));
  if (!placeholder.valid() || unlink(name.c_str()) != 0 ||
      linkat(AT_FDCWD, way_to(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return system_error("cannot create a file beside " + path_);
  temporary_ = std::move(name);
  return {};
}

Status AtomicFile::commit() {
  if (fsync(fd_.get()) != 0) return system_error("cannot sync " + path_);
  if (temporary_.empty()) PLIANT_TRY(take_name());
  if (existing_ == Existing::kReplace) {
    if (rename(temporary_.c_str(), path_.c_str()) != 0)
      return system_error("cannot replace " + path_);
  } else {
    PLIANT_TRY(rename_to_free(temporary_, path_));
  }
  temporary_.clear();
  return sync_folder_of(path_);
}

AtomicFolder::AtomicFolder(std::string path, std::string temporary, Existing existing)
    : path_(std::move(path)), temporary_(std::move(temporary)), existing_(existing) {}

Result<std::unique_ptr<AtomicFolder>> AtomicFolder::create(const std::string& path,
                                                           Existing existing) {
  PLIANT_TRY(check_free(path, existing));
  const std::string name = without_slashes_at_end(path);
  std::error_code ignored;
  if (is_there(name) && !std::filesystem::is_directory(name, ignored))
    return invalid(fmt::format("{} is no folder; name another destination", path));
  std::string temporary = name + kRandom;
  if (mkdtemp(temporary.data()) == nullptr)
    return system_error("cannot create a folder beside " + name);
  const mode_t mask = umask(0);
  umask(mask);
  std::unique_ptr<AtomicFolder> folder(new AtomicFolder(name, std::move(temporary), existing));
  if (chmod(folder->temporary_.c_str(), 0777 & ~mask) != 0)
    return system_error("cannot write " + name);
  return folder;
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

Status AtomicFolder::commit() {
  PLIANT_TRY(publish_folder(temporary_, path_, existing_));
  temporary_.clear();
  return {};
}

Status publish_folder(const std::string& temporary, const std::string& path, Existing existing) {
  PLIANT_TRY(sync_folder(temporary));
  if (existing == Existing::kReplace && is_there(path)) {
    PLIANT_TRY(replace_folder(temporary, path));
  } else {
    PLIANT_TRY(rename_to_free(temporary, path));
  }
  return sync_folder_of(path);
}

Status sync_folder_of(const std::string& path) { return sync_folder(folder_of(path)); }

Status write_file(const std::string& path, Bytes bytes, Existing existing) {
  auto file = AtomicFile::create(path, bytes.size(), existing);
  if (!file.ok()) return file.error();
  PLIANT_TRY((*file)->write(bytes, 0));
  return (*file)->commit();
}

}  // namespace pliant::store
