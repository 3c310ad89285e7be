// What an interrupted reshard has done already: a small file in its unfinished folder, one line of
// JSON for what was asked for and one for each file that is complete and on the disk. Whoever has
// it open is the only one that works there. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/transport/socket.h"

namespace pliant::store {

inline constexpr const char* kJournalName = "reshard.journal";

// Two runs with equal requests write equal files.
struct ReshardRequest {
  std::string source = {};    // where it is,
  uint64_t source_state = 0;  // and a digest of its files: names, sizes, times
  uint64_t layout = 0;        // a digest of its text form
  uint64_t shard_bytes_max = 0;
  std::string kind = {};  // of files: "pieces" or "arrays"

  bool operator==(const ReshardRequest&) const = default;
};

// "of another source, /data/a": how they differ; empty if they do not.
std::string difference(const ReshardRequest& begun, const ReshardRequest& wanted);

struct WrittenFile {
  std::string name = {};
  uint64_t size_bytes = 0;
  uint64_t checksum = 0;  // RunningChecksum

  bool operator==(const WrittenFile&) const = default;
};

struct JournalContents {
  ReshardRequest request = {};
  std::vector<WrittenFile> files = {};  // as they were written; the last of a name counts

  bool operator==(const JournalContents&) const = default;
};

std::string encode(const ReshardRequest& request);
std::string encode(const WrittenFile& file);
// A last line without its end is what a crash left of it, and is no line yet.
Result<JournalContents> decode_journal(std::string_view text);

class ReshardJournal final {
 public:
  // Makes the file if there is none. Refuses if another process has it open.
  static Result<std::unique_ptr<ReshardJournal>> open(const std::string& path);

  // What is in there; nothing if no line was written yet.
  const std::string& text() const { return text_; }
  // Empties it.
  Status clear();
  // Adds a line, which is on the disk when this returns.
  Status append(const std::string& line);

 private:
  ReshardJournal(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  Fd fd_;
  std::string text_;  // ends with a line
};

}  // namespace pliant::store
