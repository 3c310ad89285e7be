// Makes zip archives, pickles and files of torch.save for tests, byte by byte. Tests only.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/store/zip.h"

namespace pliant::store {

inline Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

template <typename T>
std::string little(T value) {
  std::string text(sizeof(T), '\0');
  std::memcpy(text.data(), &value, sizeof(T));
  return text;
}

struct ZipFile {
  std::string name;
  std::string contents;
};

// As torch writes them: stored, sizes in the directory alone, contents padded to an offset. With
// `wide`, every size and offset stands in zip64 fields.
inline std::string make_zip(const std::vector<ZipFile>& files, bool wide = false) {
  std::string archive;
  std::string directory;
  for (const ZipFile& file : files) {
    const auto name_bytes = static_cast<uint16_t>(file.name.size());
    const auto size = static_cast<uint32_t>(file.contents.size());
    const uint32_t crc = crc32(bytes_of(file.contents));
    const uint64_t header = archive.size();
    const uint16_t padding = 12;
    archive += little<uint32_t>(0x04034b50) + little<uint16_t>(0) + little<uint16_t>(0x0808) +
               little<uint16_t>(0) + little<uint32_t>(0) + little<uint32_t>(0) +
               little<uint32_t>(0) + little<uint32_t>(0) + little(name_bytes) + little(padding) +
               file.name + std::string(padding, 'Z') + file.contents;
    std::string extra;
    if (wide)
      extra = little<uint16_t>(1) + little<uint16_t>(24) + little<uint64_t>(size) +
              little<uint64_t>(size) + little<uint64_t>(header);
    const uint32_t none = 0xffffffff;
    directory += little<uint32_t>(0x02014b50) + little<uint16_t>(0) + little<uint16_t>(0) +
                 little<uint16_t>(0x0808) + little<uint16_t>(0) + little<uint32_t>(0) +
                 little(crc) + little(wide ? none : size) + little(wide ? none : size) +
                 little(name_bytes) + little(static_cast<uint16_t>(extra.size())) +
                 little<uint16_t>(0) + little<uint16_t>(0) + little<uint16_t>(0) +
                 little<uint32_t>(0) + little(wide ? none : static_cast<uint32_t>(header)) +
                 file.name + extra;
  }
  const uint64_t at = archive.size();
  archive += directory;
  const uint64_t count = files.size();
  if (wide) {
    const uint64_t end64 = archive.size();
    archive += little<uint32_t>(0x06064b50) + little<uint64_t>(44) + little<uint16_t>(0) +
               little<uint16_t>(0) + little<uint32_t>(0) + little<uint32_t>(0) + little(count) +
               little(count) + little<uint64_t>(directory.size()) + little(at);
    archive +=
        little<uint32_t>(0x07064b50) + little<uint32_t>(0) + little(end64) + little<uint32_t>(1);
  }
  archive += little<uint32_t>(0x06054b50) + little<uint16_t>(0) + little<uint16_t>(0) +
             little(static_cast<uint16_t>(wide ? 0xffff : count)) +
             little(static_cast<uint16_t>(wide ? 0xffff : count)) +
             little(static_cast<uint32_t>(directory.size())) +
             little(wide ? 0xffffffff : static_cast<uint32_t>(at)) + little<uint16_t>(0);
  return archive;
}

// Words of the pickle language.
namespace pickled {

inline std::string text(std::string_view value) {
  return "X" + little(static_cast<uint32_t>(value.size())) + std::string(value);
}
inline std::string number(int32_t value) { return "J" + little(value); }
inline std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string numbers(const std::vector<int32_t>& items) {
  std::string all = "(";
  for (const int32_t item : items) all += number(item);
  return all + "t";
}
inline std::string list(const std::vector<std::string>& items) {
  std::string all = "](";
  for (const std::string& item : items) all += item;
  return all + "e";
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string all = "}(";
  for (const auto& [key, value] : entries) all += text(key) + value;
  return all + "u";
}
inline std::string call(const std::string& what, const std::vector<std::string>& arguments) {
  return what + tuple(arguments) + "R";
}
// An object whose attributes are these.
inline std::string object(std::string_view module, std::string_view name,
                          const std::vector<std::pair<std::string, std::string>>& attributes) {
  return global(module, name) + ")\x81" + dict(attributes) + "b";
}
inline std::string size(const std::vector<int32_t>& items) {
  return call(global("torch", "Size"), {numbers(items)});
}
inline std::string whole(const std::string& value) { return "\x80\x02" + value + "."; }

// A tensor of torch.save, over the storage data/KEY.
inline std::string tensor(std::string_view type, std::string_view key, int32_t offset,
                          const std::vector<int32_t>& shape, const std::vector<int32_t>& strides) {
  const std::string storage =
      tuple({text("storage"), global("torch", type), text(key), text("cpu"), number(0)}) + "Q";
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              {storage, number(offset), numbers(shape), numbers(strides), "\x89",
               call(global("collections", "OrderedDict"), {})});
}

}  // namespace pickled

// A file of torch.save; the storages are data/0, data/1...
inline std::string make_torch_file(const std::string& root,
                                   const std::vector<std::string>& storages) {
  std::vector<ZipFile> files = {{"archive/data.pkl", pickled::whole(root)},
                                {"archive/byteorder", "little"}};
  for (size_t i = 0; i < storages.size(); ++i)
    files.push_back({"archive/data/" + std::to_string(i), storages[i]});
  files.push_back({"archive/version", "3\n"});
  return make_zip(files);
}

template <typename T>
std::string packed(const std::vector<T>& values) {
  std::string text;
  for (const T value : values) text += little(value);
  return text;
}

}  // namespace pliant::store
