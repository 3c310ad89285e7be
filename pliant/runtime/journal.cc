#include "pliant/runtime/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "pliant/store/atomic_file.h"

namespace pliant {
namespace {

constexpr std::string_view kMagic = "pliantj\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeadBytes = 16;
constexpr size_t kRecordHeadBytes = 16;
constexpr mode_t kMode = 0600;

uint32_t check_of_head(uint32_t version) { return static_cast<uint32_t>(hash64(kMagic, version)); }

uint32_t check_of_length(uint64_t number, uint32_t length) {
  return static_cast<uint32_t>(hash64("length", number ^ (uint64_t{length} << 32)));
}

// The number is the seed, but mixed first, or number 0 would add nothing.
uint64_t checksum_of(uint64_t number, Bytes bytes) {
  return hash64(bytes, hash64("record", number));
}

void put_bytes(std::vector<std::byte>& to, Bytes bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> encoded_head() {
  Writer writer;
  for (const char c : kMagic) writer.put(c);
  writer.put(kVersion);
  writer.put(check_of_head(kVersion));
  return writer.bytes();
}

void put_record(std::vector<std::byte>& to, uint64_t number, Bytes record) {
  Writer writer;
  writer.put(static_cast<uint32_t>(record.size()));
  writer.put(check_of_length(number, static_cast<uint32_t>(record.size())));
  writer.put(checksum_of(number, record));
  put_bytes(to, writer.bytes());
  put_bytes(to, record);
}

// What is wrong with the file's head; success if it is a head of ours, or an empty file.
Status check_head(Bytes file) {
  if (file.empty()) return {};
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const size_t common = std::min(kMagic.size(), text.size());
  if (text.substr(0, common) != kMagic.substr(0, common))
    return invalid("it is not a journal of a job");
  if (file.size() < kHeadBytes) return {};  // torn while it was created; nothing was in it
  Reader reader(file.subspan(kMagic.size(), kHeadBytes - kMagic.size()));
  const auto version = reader.take<uint32_t>();
  if (reader.take<uint32_t>() != check_of_head(version)) return invalid("its head is damaged");
  if (version != kVersion)
    return invalid(
        fmt::format("it is of version {}, and this program reads version {}", version, kVersion));
  return {};
}

bool all_zero(Bytes bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

void note_torn(JournalContents& contents, size_t rest) {
  contents.warning = fmt::format(
      "the last record, at offset {}, was not written to its end ({} bytes of it are dropped)",
      contents.intact_bytes, rest);
}

void note_damage(JournalContents& contents, size_t rest) {
  contents.damaged = true;
  contents.warning = fmt::format(
      "the record at offset {} is damaged; the {} records before it are used, {} bytes from there "
      "on are dropped",
      contents.intact_bytes, contents.records.size(), rest);
}

// Reads the record at the beginning of `rest`; false, with a note, if it is not intact.
bool take_record(Bytes rest, JournalContents& contents) {
  const uint64_t number = contents.records.size();
  if (rest.size() < kRecordHeadBytes) {
    note_torn(contents, rest.size());
    return false;
  }
  Reader reader(rest);
  const auto length = reader.take<uint32_t>();
  const auto check = reader.take<uint32_t>();
  const auto checksum = reader.take<uint64_t>();
  if (check != check_of_length(number, length) || length > kJournalRecordBytesMax) {
    // A file that has grown before its data was written shows zeros; anything else was changed.
    all_zero(rest) ? note_torn(contents, rest.size()) : note_damage(contents, rest.size());
    return false;
  }
  const Bytes body = rest.subspan(kRecordHeadBytes);
  if (length > body.size()) {
    note_torn(contents, rest.size());
    return false;
  }
  const Bytes bytes = body.first(length);
  if (checksum != checksum_of(number, bytes)) {
    // The last one may be half written; with others behind it, it was whole once.
    const bool last = length == body.size();
    last ? note_torn(contents, rest.size()) : note_damage(contents, rest.size());
    return false;
  }
  contents.records.emplace_back(bytes.begin(), bytes.end());
  contents.intact_bytes += kRecordHeadBytes + length;
  return true;
}

Status write_at(const Fd& file, Bytes bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("cannot write");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Result<std::vector<std::byte>> read_whole(const Fd& file) {
  struct stat about {};
  if (fstat(file.get(), &about) != 0) return system_error("cannot read");
  if (!S_ISREG(about.st_mode)) return invalid("it is no regular file");
  std::vector<std::byte> bytes(static_cast<size_t>(about.st_size));
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t count =
        pread(file.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("cannot read");
    if (count == 0) break;
    got += static_cast<size_t>(count);
  }
  bytes.resize(got);
  return bytes;
}

Error about(const std::string& path, const Error& error) {
  return {error.code, fmt::format("journal {}: {}", path, error.message), {}, {}};
}

bool same_file(const Fd& fd, const std::string& path) {
  struct stat open_one {};
  struct stat named {};
  return fstat(fd.get(), &open_one) == 0 && stat(path.c_str(), &named) == 0 &&
         open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

Error held_by_another(const Fd& lock) {
  std::array<char, 32> text{};
  const ssize_t count = pread(lock.get(), text.data(), text.size() - 1, 0);
  const long pid = count > 0 ? std::strtol(text.data(), nullptr, 10) : 0;
  if (pid <= 0) return invalid("another coordinator of this job has it open");
  return invalid(fmt::format("the coordinator with pid {} has it open; one job has one", pid));
}

// The lock is a file beside the journal, because compact() puts another file in its place.
Result<Fd> take_lock(const std::string& path) {
  constexpr int kTriesMax = 100;
  for (int i = 0; i < kTriesMax; ++i) {
    Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode));
    if (!lock.valid()) return system_error("cannot open " + path);
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return held_by_another(lock);
      return system_error("cannot lock " + path);
    }
    // Its last holder may have deleted it between our open() and our lock.
    if (!same_file(lock, path)) continue;
    const std::string pid = fmt::format("{}\n", getpid());
    if (ftruncate(lock.get(), 0) != 0) return system_error("cannot write " + path);
    PLIANT_TRY(write_at(lock, std::as_bytes(std::span(pid.data(), pid.size())), 0));
    return lock;
  }
  return invalid("its lock is taken and deleted again and again");
}

}  // namespace

Result<JournalContents> decode_journal(Bytes file) {
  PLIANT_TRY(check_head(file));
  JournalContents contents;
  if (file.empty()) return contents;
  if (file.size() < kHeadBytes) {
    note_torn(contents, file.size());
    return contents;
  }
  contents.intact_bytes = kHeadBytes;
  while (contents.intact_bytes < file.size()) {
    if (!take_record(file.subspan(contents.intact_bytes), contents)) break;
  }
  return contents;
}

std::vector<std::byte> encode_journal(const std::vector<JournalRecord>& records) {
  std::vector<std::byte> file = encoded_head();
  for (size_t i = 0; i < records.size(); ++i) put_record(file, i, records[i]);
  return file;
}

Journal::Journal(std::string path, Fd lock, Fd file, JournalContents found)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      file_(std::move(file)),
      found_(std::move(found)),
      count_(found_.records.size()),
      end_(found_.intact_bytes) {}

Result<std::unique_ptr<Journal>> Journal::open(std::string path) {
  Result<Fd> lock = take_lock(path + ".lock");
  if (!lock.ok()) return about(path, lock.error());
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, kMode));
  if (!file.valid()) return system_error("cannot open the journal " + path);
  const auto bytes = read_whole(file);
  if (!bytes.ok()) return about(path, bytes.error());
  auto found = decode_journal(*bytes);
  if (!found.ok()) return about(path, found.error());
  // What is cut off must not come back: a later record would be followed by the rest of an old one.
  if (found->intact_bytes < bytes->size() &&
      ftruncate(file.get(), static_cast<off_t>(found->intact_bytes)) != 0)
    return system_error("cannot cut the journal " + path);
  if (found->intact_bytes == 0) {
    const std::vector<std::byte> head = encoded_head();
    if (Status status = write_at(file, head, 0); !status.ok()) return about(path, status.error());
    found->intact_bytes = head.size();
  }
  if (fsync(file.get()) != 0) return system_error("cannot sync the journal " + path);
  PLIANT_TRY(store::sync_folder_of(path));
  return std::unique_ptr<Journal>(
      new Journal(std::move(path), std::move(*lock), std::move(file), std::move(*found)));
}

Status Journal::append(Bytes record) {
  if (!broken_.empty()) return invalid(broken_);
  if (record.size() > kJournalRecordBytesMax)
    return about(path_,
                 invalid(fmt::format("a record of {} is too long", human_bytes(record.size()))));
  std::vector<std::byte> bytes;
  bytes.reserve(kRecordHeadBytes + record.size());
  put_record(bytes, count_, record);
  if (const Status status = write_at(file_, bytes, end_); !status.ok()) {
    // A full disk may have room again later, if no half of a record stays behind.
    if (ftruncate(file_.get(), static_cast<off_t>(end_)) != 0)
      broken_ = about(path_, status.error()).message;
    return about(path_, status.error());
  }
  if (fdatasync(file_.get()) != 0) {
    // The kernel may have thrown the pages away and would call the next sync a success.
    const Error error = about(path_, system_error("cannot sync"));
    broken_ = error.message;
    return error;
  }
  ++count_;
  end_ += bytes.size();
  return {};
}

Status Journal::compact(Bytes snapshot) {
  if (!broken_.empty()) return invalid(broken_);
  if (snapshot.size() > kJournalRecordBytesMax)
    return about(
        path_, invalid(fmt::format("a snapshot of {} is too long", human_bytes(snapshot.size()))));
  const std::string temporary = path_ + ".new";
  std::vector<std::byte> bytes = encoded_head();
  put_record(bytes, 0, snapshot);
  Fd file(::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (!file.valid()) return about(path_, system_error("cannot create " + temporary));
  Status status = write_at(file, bytes, 0);
  if (status.ok() && fsync(file.get()) != 0) status = system_error("cannot sync " + temporary);
  if (status.ok() && rename(temporary.c_str(), path_.c_str()) != 0)
    status = system_error("cannot rename " + temporary);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return about(path_, status.error());
  }
  file_ = std::move(file);
  count_ = 1;
  end_ = bytes.size();
  // Without it a crash might bring the old file back, and with it forget what is appended now.
  status = store::sync_folder_of(path_);
  if (!status.ok()) broken_ = about(path_, status.error()).message;
  return status;
}

Status Journal::remove() {
  broken_ = fmt::format("journal {}: it was removed", path_);
  // The lock goes last: whoever takes it next must find the journal gone.
  for (const char* ending : {"", ".new", ".lock"}) {
    if (unlink((path_ + ending).c_str()) != 0 && errno != ENOENT)
      return system_error("cannot remove " + path_ + ending);
  }
  return {};
}

}  // namespace pliant
