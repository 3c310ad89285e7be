// Safetensors files: eight bytes of length, a header in JSON, then the elements of the tensors.
// Decoding and encoding are pure; a writer belongs to whoever fills it, one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/store/atomic_file.h"
#include "pliant/store/stored_tensor.h"

namespace pliant::store {

// The format's own limit; a header of more is refused by every reader.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

struct SafetensorsEntry {
  TensorInfo info;
  uint64_t offset = 0;  // of its elements, from the start of the file

  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors = {};  // in the order of their elements in the file
  std::map<std::string, std::string> metadata = {};
  uint64_t data_offset = 0;

  bool operator==(const SafetensorsHeader&) const = default;
  uint64_t file_bytes() const;
};

// "BF16"; what the format calls our types, and back.
const char* safetensors_name(DType dtype);
std::optional<DType> safetensors_dtype(std::string_view name);

// Reads the header of a file of `file_bytes`, of which `start` is the beginning: all of it, or at
// least the header. Refuses whatever breaks the format's rules: offsets that overlap, leave a hole
// or end behind the file, sizes that do not fit shape and dtype, names that occur twice.
Result<SafetensorsHeader> decode_safetensors(Bytes start, uint64_t file_bytes);

// Where tensors of these kinds will lie: larger elements first, so that each is aligned; otherwise
// in the order given.
Result<SafetensorsHeader> plan_safetensors(std::vector<TensorInfo> tensors,
                                           std::map<std::string, std::string> metadata);
// The bytes in front of the elements.
std::string encode(const SafetensorsHeader& header);

// Writes a file piece by piece, so that tensors may be larger than memory. The file appears when it
// is finished (see atomic_file.h).
class SafetensorsWriter final {
 public:
  static Result<std::unique_ptr<SafetensorsWriter>> create(const std::string& path,
                                                           SafetensorsHeader header,
                                                           Existing existing);
  const SafetensorsHeader& header() const { return header_; }
  // Bytes of one tensor, from `offset` of it on; each exactly once, in any order.
  Status write(size_t tensor, uint64_t offset, Bytes bytes);
  // Refuses if bytes are missing.
  Status finish();

 private:
  SafetensorsWriter(std::unique_ptr<AtomicFile> file, SafetensorsHeader header);

  std::unique_ptr<AtomicFile> file_;
  SafetensorsHeader header_;
  std::vector<uint64_t> missing_;  // bytes of each tensor
};

}  // namespace pliant::store
