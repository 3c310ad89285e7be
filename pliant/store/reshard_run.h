// Writes a checkpoint on disk for another layout: the files of each rank (reshard.h), with torch
// DCP's sharding metadata, the text form of the layout, and the values that are no tensors.
//
// Everything is written to DESTINATION.partial, which gets its name when it is complete. What stops
// it, a crash or a full disk included, leaves the files that are complete, and a journal of them;
// the same call again verifies these and writes the rest. Memory is bounded. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/store/atomic_file.h"
#include "pliant/store/checkpoint.h"
#include "pliant/tensor/layout.h"

namespace pliant::store {

struct ReshardOptions {
  static constexpr uint64_t kMemoryBytesMin = uint64_t{8} << 20;

  uint64_t shard_bytes_max = uint64_t{5} << 30;  // of a file; one piece may be larger
  uint64_t memory_bytes = uint64_t{256} << 20;   // of buffers, and of the pages of files
  Existing existing = Existing::kRefuse;
  enum class Unfinished : uint8_t { kContinue, kRestart } unfinished = Unfinished::kContinue;
  enum class Files : uint8_t {
    kPieces,  // of tensors, each once, with torch DCP's sharding metadata: a checkpoint
    kArrays,  // what each rank has in memory, replicas and padding included, a file for each rank
  } files = Files::kPieces;
  enum class Verify : uint8_t { kNo, kYes } verify = Verify::kNo;
  // In bytes, and may be empty: of what is written, kept included; of what is compared.
  std::function<void(uint64_t done, uint64_t total)> written = {};
  std::function<void(uint64_t done, uint64_t total)> compared = {};
};

struct ReshardReport {
  uint64_t tensors = 0;
  uint64_t files = 0;
  uint64_t files_kept = 0;   // of them, what an interrupted run had completed
  uint64_t bytes = 0;        // of elements, as they are in the files
  uint64_t bytes_moved = 0;  // of them, what this run read and wrote
  std::vector<std::string> warnings = {};
};

// The layout is of the tensors of the source. What an error leaves to continue is named in it.
Result<ReshardReport> reshard(Checkpoint& source, const tensor::Layout& layout,
                              const std::string& destination, const ReshardOptions& options);

}  // namespace pliant::store
