// The coordinator's durable log: an append-only file of records, each with its length and checksum.
//
// What append() has returned success for is on the disk and is read back by the next open(),
// whatever kills the process or the machine. A record that was cut off while it was written is
// dropped, with a warning; a damaged one is named with its offset, and what stands before it is
// used. One process at a time may have a journal open: a second one is refused with the pid of the
// first. Files are the owner's alone (mode 0600). Any thread, one at a time.
//
// Layout, little-endian. Head: "pliantj\n", u32 version, u32 check of these. Record: u32 length,
// u32 check of (number, length), u64 checksum of (number, bytes), bytes. Records are numbered from
// 0, so that one that stands at another's place is noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/transport/socket.h"

namespace pliant {

using JournalRecord = std::vector<std::byte>;

struct JournalContents {
  std::vector<JournalRecord> records;
  uint64_t intact_bytes = 0;  // of the file, its head included
  // Empty, or one sentence on what was left out behind the intact records.
  std::string warning;
  // True if that was more than an unfinished last write: records that were once acknowledged are
  // lost, so their reader must not take the last record for the newest decision.
  bool damaged = false;
};

inline constexpr size_t kJournalRecordBytesMax = size_t{64} << 20;

// The records of a file's bytes; an error if it is no journal, or one of another version. An empty
// file is an empty journal. Pure.
Result<JournalContents> decode_journal(Bytes file);
// The file that holds these records.
std::vector<std::byte> encode_journal(const std::vector<JournalRecord>& records);

class Journal final {
 public:
  // Opens or creates the file; its folder must exist. Takes PATH.lock for as long as it is open.
  static Result<std::unique_ptr<Journal>> open(std::string path);
  ~Journal() = default;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // What open() found.
  const JournalContents& found() const { return found_; }
  uint64_t size_bytes() const { return end_; }

  // Returns when the record is on the disk. After a failure that leaves the disk's state unknown
  // every later call fails as well: the caller ends, and its successor reads what is really there.
  Status append(Bytes record);
  // Replaces all records by this one, in one step: a crash leaves the old file or the new one.
  Status compact(Bytes snapshot);
  // Deletes the files; the job has ended and nobody will ask again.
  Status remove();

 private:
  Journal(std::string path, Fd lock, Fd file, JournalContents found);

  const std::string path_;
  Fd lock_;
  Fd file_;
  JournalContents found_;
  uint64_t count_ = 0;  // of records in the file
  uint64_t end_ = 0;    // of the last record
  std::string broken_;  // why no more can be written
};

}  // namespace pliant
