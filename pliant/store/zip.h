// Reads zip archives whose entries are stored, not compressed, as torch.save writes them: zip64,
// padding and data descriptors included. Pure: it looks at bytes that somebody else keeps (a mapped
// file, usually), copies none of them, and believes no size that the bytes themselves do not bear
// out. Any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"

namespace pliant::store {

struct ZipEntry {
  std::string_view name;  // a view of the archive
  uint64_t offset = 0;    // of the first byte of its contents, from the start of the archive
  uint64_t size_bytes = 0;
  uint32_t crc32 = 0;

  bool operator==(const ZipEntry&) const = default;
};

class ZipArchive final {
 public:
  // Reads the directory of the archive. `archive` outlives what is returned. Refuses compressed,
  // encrypted and split archives, names that occur twice and entries that share bytes.
  static Result<ZipArchive> open(Bytes archive);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  // Null if there is none of this name.
  const ZipEntry* find(std::string_view name) const;
  Bytes contents(const ZipEntry& entry) const;
  // Reads the entry and compares it with the checksum that the directory states.
  Status check(const ZipEntry& entry) const;

 private:
  Bytes archive_;
  std::vector<ZipEntry> entries_;  // in the order of the directory
  std::vector<uint32_t> by_name_;
};

// As in zip, gzip and PNG: polynomial 0x04c11db7, reflected.
uint32_t crc32(Bytes bytes, uint32_t before = 0);

}  // namespace pliant::store
