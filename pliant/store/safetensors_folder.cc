#include "pliant/store/safetensors_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "pliant/store/safetensors.h"

namespace pliant::store {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kEnding = ".safetensors";
constexpr const char* kShardingKey = "DCP_SHARDING_INFO";
constexpr const char* kDcpVersionKey = "DCP_VERSION";
constexpr const char* kValuesKey = "pliant_values";
constexpr std::string_view kMetadataStart = "__metadata__.";

// Trees of JSON are written recursively, so what comes out of a file may not be too deep.
template <typename T>
T parsed(const std::string& text) {
  constexpr int kDepthMax = 256;
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text && c == '\\') ++i;
    if (c == '"') in_text = !in_text;
    if (in_text) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kDepthMax) return T(nlohmann::detail::value_t::discarded);
  }
  return T::parse(text, nullptr, false);
}

std::string dumped(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Result<SafetensorsHeader> read_header(CheckpointContents& contents, uint32_t file) {
  const auto mapped = contents.files.map(file);
  if (!mapped.ok()) return mapped.error();
  auto header = decode_safetensors((*mapped)->bytes(), (*mapped)->bytes().size());
  if (!header.ok())
    return invalid(fmt::format("{}: {}", (*mapped)->path(), header.error().message));
  return header;
}

Status read_values_file(const std::string& folder, CheckpointContents& contents) {
  const std::string path = folder + "/" + kValuesFileName;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  const auto text = read_text_file(path, kIndexBytesMax);
  if (!text.ok()) return text.error();
  auto values = decode_values(*text);
  if (!values.ok()) return invalid(fmt::format("{}: {}", path, values.error().message));
  std::ranges::move(*values, std::back_inserter(contents.values));
  return {};
}

Result<std::vector<std::string>> safetensors_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(kEnding)) names.push_back(name);
  }
  if (code) return invalid(fmt::format("cannot list {}: {}", folder, code.message()));
  std::ranges::sort(names);
  return names;
}

// Puts the pieces of many files together.
class Gathering final {
 public:
  explicit Gathering(CheckpointContents& contents) : contents_(contents) {}

  Status add(const SafetensorsHeader& header, uint32_t file) {
    std::map<std::string, DcpSharding> sharding;
    const auto info = header.metadata.find(kShardingKey);
    const bool sharded = info != header.metadata.end();
    if (sharded) {
      contents_.format = CheckpointFormat::kDcpSafetensors;
      auto decoded = decode_dcp_sharding(info->second);
      if (!decoded.ok()) return decoded.error();
      sharding = std::move(*decoded);
    }
    for (const SafetensorsEntry& entry : header.tensors) {
      DcpSharding place{entry.info.name, std::vector<uint64_t>(entry.info.shape.size(), 0)};
      if (sharded) {
        const auto found = sharding.find(entry.info.name);
        if (found == sharding.end())
          return invalid(fmt::format("{} does not say where tensor '{}' belongs", kShardingKey,
                                     entry.info.name));
        place = found->second;
      }
      PLIANT_TRY(add_piece(entry, place, file));
    }
    return {};
  }

 private:
  Status add_piece(const SafetensorsEntry& entry, const DcpSharding& place, uint32_t file) {
    const std::vector<uint64_t>& shape = entry.info.shape;
    if (place.offsets.size() != shape.size())
      return invalid(fmt::format("{} gives {} offsets for tensor '{}' of shape {}", kShardingKey,
                                 place.offsets.size(), entry.info.name, tensor::shape_text(shape)));
    const auto [at, is_new] = numbers_.emplace(place.tensor, contents_.tensors.size());
    if (is_new) contents_.tensors.push_back({.info = {place.tensor, entry.info.dtype, shape}});
    StoredTensor& tensor = contents_.tensors[at->second];
    if (tensor.info.dtype != entry.info.dtype || tensor.info.shape.size() != shape.size())
      return invalid(
          fmt::format("the pieces of tensor '{}' differ in dtype or in the number of "
                      "dimensions",
                      place.tensor));
    StoredPiece piece = whole_piece(entry.info, file, entry.offset);
    for (uint32_t d = 0; d < piece.box.dims; ++d) {
      if (place.offsets[d] > tensor::Collection::kBytesMax)
        return invalid(fmt::format("{} has an offset of {} for tensor '{}'", kShardingKey,
                                   place.offsets[d], place.tensor));
      piece.box.begin[d] += place.offsets[d];
      piece.box.end[d] += place.offsets[d];
      tensor.info.shape[d] = std::max(tensor.info.shape[d], piece.box.end[d]);
    }
    tensor.pieces.push_back(piece);
    return {};
  }

  CheckpointContents& contents_;
  std::unordered_map<std::string, size_t> numbers_;
};

}  // namespace

Result<CheckpointContents> open_safetensors_file(const std::string& path) {
  CheckpointContents contents;
  contents.format = CheckpointFormat::kSafetensors;
  const uint32_t file = contents.files.add(path);
  const auto header = read_header(contents, file);
  if (!header.ok()) return header.error();
  if (header->metadata.contains(kShardingKey))
    return invalid(fmt::format("{} is one piece of a checkpoint; name its folder", path));
  for (const SafetensorsEntry& entry : header->tensors)
    contents.tensors.push_back({entry.info, {whole_piece(entry.info, file, entry.offset)}});
  add_metadata_values(header->metadata, contents.values);
  return contents;
}

Result<CheckpointContents> open_safetensors_index(const std::string& folder,
                                                  const std::string& index_name) {
  const std::string path = folder + "/" + index_name;
  const auto text = read_text_file(path, kIndexBytesMax);
  if (!text.ok()) return text.error();
  const auto index = decode_safetensors_index(*text);
  if (!index.ok()) return invalid(fmt::format("{}: {}", path, index.error().message));
  CheckpointContents contents;
  contents.format = CheckpointFormat::kShardedSafetensors;
  std::map<std::string, std::vector<std::string>> by_file;
  for (const auto& [name, file] : *index) by_file[file].push_back(name);
  for (const auto& [file_name, names] : by_file) {
    const uint32_t file = contents.files.add(folder + "/" + file_name);
    const auto header = read_header(contents, file);
    if (!header.ok()) return header.error();
    std::unordered_map<std::string_view, const SafetensorsEntry*> entries;
    for (const SafetensorsEntry& entry : header->tensors) entries[entry.info.name] = &entry;
    for (const std::string& name : names) {
      const auto found = entries.find(name);
      if (found == entries.end())
        return invalid(
            fmt::format("{}: tensor '{}' is not in {}, where it should be", path, name, file_name));
      const SafetensorsEntry& entry = *found->second;
      contents.tensors.push_back({entry.info, {whole_piece(entry.info, file, entry.offset)}});
    }
  }
  PLIANT_TRY(read_values_file(folder, contents));
  return contents;
}

Result<CheckpointContents> open_safetensors_folder(const std::string& folder) {
  const auto names = safetensors_files(folder);
  if (!names.ok()) return names.error();
  CheckpointContents contents;
  contents.format = CheckpointFormat::kShardedSafetensors;
  Gathering gathering(contents);
  for (const std::string& name : *names) {
    const uint32_t file = contents.files.add(folder + "/" + name);
    const auto header = read_header(contents, file);
    if (!header.ok()) return header.error();
    if (const Status added = gathering.add(*header, file); !added.ok())
      return invalid(fmt::format("{}/{}: {}", folder, name, added.error().message));
  }
  PLIANT_TRY(read_values_file(folder, contents));
  return contents;
}

Result<std::map<std::string, std::string>> decode_safetensors_index(const std::string& text) {
  const auto json = parsed<nlohmann::json>(text);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return invalid("it is no index of safetensors: it has no 'weight_map'");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) return invalid(fmt::format("tensor '{}' has no file", name));
    const auto file_name = file.get<std::string>();
    if (file_name.find('/') != std::string::npos || !file_name.ends_with(kEnding))
      return invalid(
          fmt::format("tensor '{}' is said to be in '{}', which is no safetensors file "
                      "of this folder",
                      name, file_name));
    files.emplace(name, file_name);
  }
  return files;
}

std::string encode_safetensors_index(const std::map<std::string, std::string>& files,
                                     uint64_t total_bytes) {
  return dumped({{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}}, 2) + "\n";
}

Result<std::map<std::string, DcpSharding>> decode_dcp_sharding(const std::string& text) {
  const auto json = parsed<nlohmann::json>(text);
  if (!json.is_object()) return invalid(fmt::format("{} is no JSON object", kShardingKey));
  std::map<std::string, DcpSharding> all;
  for (const auto& [key, info] : json.items()) {
    if (!info.is_object() || !info.contains("saved_offsets") || !info["saved_offsets"].is_array())
      return invalid(fmt::format("{} has no saved_offsets for '{}'", kShardingKey, key));
    DcpSharding place{key, {}};
    for (const auto& offset : info["saved_offsets"]) {
      if (!offset.is_number_unsigned() || place.offsets.size() >= tensor::kDimsMax)
        return invalid(
            fmt::format("{} has saved_offsets for '{}' that cannot be", kShardingKey, key));
      place.offsets.push_back(offset.get<uint64_t>());
    }
    // Newer writers may keep several pieces of a tensor in one file, under names of their own.
    if (info.contains("logical_fqn") && info["logical_fqn"].is_string())
      place.tensor = info["logical_fqn"].get<std::string>();
    all.emplace(key, std::move(place));
  }
  return all;
}

std::string encode_dcp_sharding(const std::map<std::string, std::vector<uint64_t>>& offsets) {
  Json json = Json::object();
  for (const auto& [name, list] : offsets) json[name] = {{"saved_offsets", list}};
  return dumped(json);
}

std::string dcp_shard_name(uint32_t shard) {
  return fmt::format("shard-{:05}-model-00001-of-00001{}", shard, kEnding);
}

std::string sharded_name(size_t number, size_t files) {
  return fmt::format("model-{:05}-of-{:05}{}", number, files, kEnding);
}

std::map<std::string, std::string> metadata_of(const std::vector<StoredValue>& values) {
  std::map<std::string, std::string> metadata;
  std::vector<StoredValue> others;
  for (const StoredValue& value : values) {
    const auto json = parsed<nlohmann::json>(value.json);
    if (value.name.starts_with(kMetadataStart) && json.is_string())
      metadata[value.name.substr(kMetadataStart.size())] = json.get<std::string>();
    else
      others.push_back(value);
  }
  if (!others.empty()) metadata[kValuesKey] = encode_values(others);
  return metadata;
}

void add_metadata_values(const std::map<std::string, std::string>& metadata,
                         std::vector<StoredValue>& values) {
  for (const auto& [key, text] : metadata) {
    if (key == kShardingKey || key == kDcpVersionKey) continue;
    if (key == kValuesKey) {
      if (auto decoded = decode_values(text); decoded.ok()) {
        std::ranges::move(*decoded, std::back_inserter(values));
        continue;
      }
    }
    values.push_back({std::string(kMetadataStart) + key, dumped(text)});
  }
}

std::string encode_values(const std::vector<StoredValue>& values) {
  Json json = Json::object();
  for (const StoredValue& value : values) {
    json[value.name] = parsed<Json>(value.json);
    if (json[value.name].is_discarded()) json[value.name] = value.json;
  }
  return dumped(json);
}

Result<std::vector<StoredValue>> decode_values(const std::string& text) {
  const Json json = parsed<Json>(text);
  if (!json.is_object()) return invalid("the values are no JSON object");
  std::vector<StoredValue> values;
  for (const auto& [name, value] : json.items()) values.push_back({name, dumped(value)});
  return values;
}

}  // namespace pliant::store
