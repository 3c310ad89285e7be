#include "pliant/store/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>

namespace pliant::store {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kEnd64LocatorSignature = 0x07064b50;
constexpr uint32_t kDirectorySignature = 0x02014b50;
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr size_t kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kEnd64LocatorBytes = 20;
constexpr size_t kDirectoryBytes = 46;  // of an entry, without its texts
constexpr size_t kLocalBytes = 30;
constexpr size_t kCommentBytesMax = 0xffff;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kEncrypted = 1;
constexpr uint32_t kIn64 = 0xffffffff;  // "the true value is in the zip64 field"
constexpr uint16_t kIn64Short = 0xffff;

// The field at `offset`; zero past the end, which callers exclude.
template <typename T>
T at(Bytes bytes, size_t offset) {
  T value{};
  if (offset <= bytes.size() && bytes.size() - offset >= sizeof(T))
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

struct Directory {
  uint64_t entries = 0;
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

bool lies_inside(uint64_t offset, uint64_t size_bytes, uint64_t total) {
  return offset <= total && size_bytes <= total - offset;
}

// The end record is the last thing in the file, but for a comment.
std::optional<size_t> find_end(Bytes archive) {
  if (archive.size() < kEndBytes) return std::nullopt;
  const size_t last = archive.size() - kEndBytes;
  const size_t first = last > kCommentBytesMax ? last - kCommentBytesMax : 0;
  for (size_t offset = last + 1; offset-- > first;) {
    if (at<uint32_t>(archive, offset) != kEndSignature) continue;
    if (at<uint16_t>(archive, offset + 20) == archive.size() - offset - kEndBytes) return offset;
  }
  return std::nullopt;
}

Result<Directory> zip64_directory(Bytes archive, size_t end) {
  if (end < kEnd64LocatorBytes ||
      at<uint32_t>(archive, end - kEnd64LocatorBytes) != kEnd64LocatorSignature)
    return invalid("the end of the zip archive refers to a zip64 record that is not there");
  const auto offset = at<uint64_t>(archive, end - kEnd64LocatorBytes + 8);
  if (!lies_inside(offset, kEnd64Bytes, end - kEnd64LocatorBytes) ||
      at<uint32_t>(archive, offset) != kEnd64Signature)
    return invalid(fmt::format("there is no zip64 end record at offset {}", offset));
  return Directory{.entries = at<uint64_t>(archive, offset + 32),
                   .offset = at<uint64_t>(archive, offset + 48),
                   .size_bytes = at<uint64_t>(archive, offset + 40)};
}

Result<Directory> find_directory(Bytes archive) {
  const auto end = find_end(archive);
  if (!end) return invalid("it is no zip archive, or its end is missing: no end record was found");
  Directory directory{.entries = at<uint16_t>(archive, *end + 10),
                      .offset = at<uint32_t>(archive, *end + 16),
                      .size_bytes = at<uint32_t>(archive, *end + 12)};
  if (at<uint16_t>(archive, *end + 4) != 0 && at<uint16_t>(archive, *end + 4) != kIn64Short)
    return invalid("it is one part of a split zip archive");
  if (directory.entries == kIn64Short || directory.offset == kIn64 ||
      directory.size_bytes == kIn64) {
    const auto wide = zip64_directory(archive, *end);
    if (!wide.ok()) return wide.error();
    directory = *wide;
  }
  if (!lies_inside(directory.offset, directory.size_bytes, *end))
    return invalid(
        fmt::format("the directory of the zip archive ({} bytes at offset {}) is not "
                    "inside the file of {} bytes: it is cut or damaged",
                    directory.size_bytes, directory.offset, archive.size()));
  if (directory.entries > directory.size_bytes / kDirectoryBytes)
    return invalid(
        fmt::format("the directory of the zip archive has {} bytes, too few for its {} "
                    "entries",
                    directory.size_bytes, directory.entries));
  return directory;
}

// The true values of the fields that are all ones stand in the zip64 extra field, in this order.
Status read_zip64(Bytes extra, bool packed_wide, ZipEntry& entry, uint64_t& packed,
                  uint64_t& header) {
  while (extra.size() >= 4) {
    const auto id = at<uint16_t>(extra, 0);
    const size_t length = at<uint16_t>(extra, 2);
    if (length > extra.size() - 4) break;
    if (id != kZip64Extra) {
      extra = extra.subspan(4 + length);
      continue;
    }
    Reader reader(extra.subspan(4, length));
    if (entry.size_bytes == kIn64) entry.size_bytes = reader.take<uint64_t>();
    if (packed_wide) packed = reader.take<uint64_t>();
    if (header == kIn64) header = reader.take<uint64_t>();
    if (!reader.ok()) break;
    return {};
  }
  return invalid(fmt::format("entry '{}' of the zip archive lacks its zip64 sizes", entry.name));
}

// The contents begin behind the local header, whose texts have lengths of their own.
Status place(Bytes archive, uint64_t header, ZipEntry& entry) {
  if (!lies_inside(header, kLocalBytes, archive.size()) ||
      at<uint32_t>(archive, header) != kLocalSignature)
    return invalid(fmt::format("entry '{}' of the zip archive has no header at offset {}",
                               entry.name, header));
  const uint64_t texts =
      uint64_t{at<uint16_t>(archive, header + 26)} + at<uint16_t>(archive, header + 28);
  entry.offset = header + kLocalBytes + texts;
  if (!lies_inside(entry.offset, entry.size_bytes, archive.size()))
    return invalid(
        fmt::format("entry '{}' of the zip archive ({} bytes at offset {}) ends behind "
                    "the file of {} bytes: it is cut or damaged",
                    entry.name, entry.size_bytes, entry.offset, archive.size()));
  return {};
}

// Reads the entry at the start of `rest` and moves `rest` behind it.
Result<ZipEntry> take_entry(Bytes archive, Bytes& rest) {
  if (rest.size() < kDirectoryBytes || at<uint32_t>(rest, 0) != kDirectorySignature)
    return invalid("the directory of the zip archive is damaged: an entry does not begin as one");
  const size_t name_bytes = at<uint16_t>(rest, 28);
  const size_t extra_bytes = at<uint16_t>(rest, 30);
  const size_t comment_bytes = at<uint16_t>(rest, 32);
  if (rest.size() - kDirectoryBytes < name_bytes + extra_bytes + comment_bytes)
    return invalid("the directory of the zip archive is damaged: an entry ends behind it");
  ZipEntry entry;
  entry.name = {reinterpret_cast<const char*>(rest.data()) + kDirectoryBytes, name_bytes};
  entry.crc32 = at<uint32_t>(rest, 16);
  entry.size_bytes = at<uint32_t>(rest, 24);
  uint64_t packed = at<uint32_t>(rest, 20);
  uint64_t header = at<uint32_t>(rest, 42);
  if ((at<uint16_t>(rest, 8) & kEncrypted) != 0)
    return invalid(fmt::format("entry '{}' of the zip archive is encrypted", entry.name));
  if (at<uint16_t>(rest, 10) != 0)
    return invalid(
        fmt::format("entry '{}' of the zip archive is compressed; only stored entries "
                    "can be read: save it again with torch.save",
                    entry.name));
  if (entry.size_bytes == kIn64 || packed == kIn64 || header == kIn64)
    PLIANT_TRY(read_zip64(rest.subspan(kDirectoryBytes + name_bytes, extra_bytes), packed == kIn64,
                          entry, packed, header));
  if (packed != entry.size_bytes)
    return invalid(fmt::format("entry '{}' of the zip archive states two sizes, {} and {} bytes",
                               entry.name, entry.size_bytes, packed));
  PLIANT_TRY(place(archive, header, entry));
  rest = rest.subspan(kDirectoryBytes + name_bytes + extra_bytes + comment_bytes);
  return entry;
}

// Without this, a small file could pretend to be a large one by naming the same bytes again and
// again.
Status check_apart(const std::vector<ZipEntry>& entries) {
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(
      order, {}, [&](uint32_t i) { return std::pair(entries[i].offset, entries[i].size_bytes); });
  for (size_t i = 1; i < order.size(); ++i) {
    const ZipEntry& left = entries[order[i - 1]];
    const ZipEntry& right = entries[order[i]];
    if (left.offset + left.size_bytes > right.offset)
      return invalid(fmt::format("entries '{}' and '{}' of the zip archive share bytes", left.name,
                                 right.name));
  }
  return {};
}

constexpr size_t kSlices = 8;
using CrcTable = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr CrcTable make_crc_table() {
  CrcTable table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320U : 0U);
    table[0][i] = value;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t before = table[slice - 1][i];
      table[slice][i] = (before >> 8) ^ table[0][before & 0xff];
    }
  }
  return table;
}

constexpr CrcTable kCrcTable = make_crc_table();

}  // namespace

uint32_t crc32(Bytes bytes, uint32_t before) {
  uint32_t value = ~before;
  // Eight bytes a turn: the shift register is linear, so each byte has a table of its own.
  for (; bytes.size() >= kSlices; bytes = bytes.subspan(kSlices)) {
    const auto low = at<uint32_t>(bytes, 0) ^ value;
    const auto high = at<uint32_t>(bytes, 4);
    value = kCrcTable[7][low & 0xff] ^ kCrcTable[6][(low >> 8) & 0xff] ^
            kCrcTable[5][(low >> 16) & 0xff] ^ kCrcTable[4][low >> 24] ^ kCrcTable[3][high & 0xff] ^
            kCrcTable[2][(high >> 8) & 0xff] ^ kCrcTable[1][(high >> 16) & 0xff] ^
            kCrcTable[0][high >> 24];
  }
  for (const std::byte byte : bytes)
    value = (value >> 8) ^ kCrcTable[0][(value ^ std::to_integer<uint32_t>(byte)) & 0xff];
  return ~value;
}

Result<ZipArchive> ZipArchive::open(Bytes archive) {
  const auto directory = find_directory(archive);
  if (!directory.ok()) return directory.error();
  ZipArchive zip;
  zip.archive_ = archive;
  Bytes rest = archive.subspan(directory->offset, directory->size_bytes);
  for (uint64_t i = 0; i < directory->entries; ++i) {
    auto entry = take_entry(archive, rest);
    if (!entry.ok()) return entry.error();
    zip.entries_.push_back(*entry);
  }
  PLIANT_TRY(check_apart(zip.entries_));
  zip.by_name_.resize(zip.entries_.size());
  std::iota(zip.by_name_.begin(), zip.by_name_.end(), 0U);
  const auto name_of = [&](uint32_t i) { return zip.entries_[i].name; };
  std::ranges::sort(zip.by_name_, {}, name_of);
  const auto twice = std::ranges::adjacent_find(zip.by_name_, {}, name_of);
  if (twice != zip.by_name_.end())
    return invalid(fmt::format("entry '{}' occurs twice in the zip archive", name_of(*twice)));
  return zip;
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto name_of = [&](uint32_t i) { return entries_[i].name; };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found == by_name_.end() || name_of(*found) != name ? nullptr : &entries_[*found];
}

Bytes ZipArchive::contents(const ZipEntry& entry) const {
  return archive_.subspan(entry.offset, entry.size_bytes);
}

Status ZipArchive::check(const ZipEntry& entry) const {
  const uint32_t found = crc32(contents(entry));
  if (found == entry.crc32) return {};
  return invalid(
      fmt::format("entry '{}' of the zip archive, at offset {}, is damaged: its CRC-32 "
                  "is {:08x}, and {:08x} was written",
                  entry.name, entry.offset, found, entry.crc32));
}

}  // namespace pliant::store
