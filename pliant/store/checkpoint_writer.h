// Writes checkpoints in the formats that everybody reads: safetensors in one file, in several with
// an index, or in pieces with torch DCP's sharding metadata. Memory is bounded, and the destination
// appears when it is complete (see atomic_file.h). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/store/atomic_file.h"
#include "pliant/store/safetensors.h"
#include "pliant/store/stored_tensor.h"
#include "pliant/store/verify.h"

namespace pliant::store {

struct WriteOptions {
  CheckpointFormat format = CheckpointFormat::kSafetensors;  // one of the first three
  uint64_t shard_bytes_max = uint64_t{5} << 30;              // of a file; one tensor may be larger
  uint64_t memory_bytes = uint64_t{256} << 20;
  Existing existing = Existing::kRefuse;
  std::function<void(uint64_t done, uint64_t total)> progress = {};  // in bytes; may be empty
};

struct PlannedPiece {
  size_t tensor = 0;
  Box box;
};
struct PlannedFile {
  std::string name;
  std::vector<PlannedPiece> pieces = {};
};

// Which pieces of which tensors go into which file. Pure.
std::vector<PlannedFile> plan_files(const std::vector<TensorInfo>& tensors, CheckpointFormat format,
                                    uint64_t shard_bytes_max);

// What is written: tensors, values, and a function that reads a box of a tensor, row-major.
struct WriteSource {
  std::vector<TensorInfo> tensors = {};
  std::vector<StoredValue> values = {};
  std::function<Status(size_t tensor, const Box& box, std::span<std::byte> to)> read;
};

// What torch's reader has to know about the pieces of a file that has one piece of each tensor.
std::map<std::string, std::string> sharding_metadata(const WriteSource& source,
                                                     const PlannedFile& file);
// About types that torch's reader does not know.
std::vector<std::string> torch_warnings(const std::vector<TensorInfo>& tensors);

// Writes planned files, one at a time, through one buffer. One thread.
class PlannedFileWriter final {
 public:
  PlannedFileWriter(const WriteSource& source, const WriteOptions& options);

  uint64_t done() const { return done_; }  // bytes of elements
  // Each tensor at most once in a file.
  Status write_file(const std::string& path, const PlannedFile& file,
                    std::map<std::string, std::string> metadata, Existing existing);
  // RunningChecksum of all bytes of the file that was written last.
  uint64_t file_checksum() const { return file_checksum_; }

 private:
  Status write_piece(SafetensorsWriter& writer, size_t entry, const PlannedPiece& piece,
                     RunningChecksum& checksum);

  const WriteSource& source_;
  const WriteOptions& options_;
  uint64_t total_ = 0;
  uint64_t done_ = 0;
  uint64_t file_checksum_ = 0;
  std::vector<std::byte> buffer_;
};

struct WriteReport {
  uint64_t files = 0;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  std::vector<std::string> warnings = {};
};

Result<WriteReport> write_checkpoint(const WriteSource& source, const std::string& path,
                                     const WriteOptions& options);

}  // namespace pliant::store
