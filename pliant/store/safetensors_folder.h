// Safetensors in several files: with an index, as Hugging Face shards models, or with torch DCP's
// sharding metadata, as torch's HuggingFaceStorageWriter writes pieces of tensors and its reader
// reshards them. Also the values that are no tensors, for which safetensors has no place of its
// own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/store/stored_tensor.h"

namespace pliant::store {

inline constexpr const char* kSafetensorsIndexName = "model.safetensors.index.json";
inline constexpr const char* kValuesFileName = "pliant_values.json";
inline constexpr uint64_t kIndexBytesMax = uint64_t{1} << 28;

Result<CheckpointContents> open_safetensors_file(const std::string& path);
// The file of an index names the others.
Result<CheckpointContents> open_safetensors_index(const std::string& folder,
                                                  const std::string& index_name);
// All safetensors files of a folder without an index.
Result<CheckpointContents> open_safetensors_folder(const std::string& folder);

// tensor -> file. Refuses files outside the folder.
Result<std::map<std::string, std::string>> decode_safetensors_index(const std::string& json);
std::string encode_safetensors_index(const std::map<std::string, std::string>& files,
                                     uint64_t total_bytes);

// Where the pieces of one file begin in their tensors: what "DCP_SHARDING_INFO" says.
struct DcpSharding {
  std::string tensor;
  std::vector<uint64_t> offsets;
};
Result<std::map<std::string, DcpSharding>> decode_dcp_sharding(const std::string& json);
std::string encode_dcp_sharding(const std::map<std::string, std::vector<uint64_t>>& offsets);

// "shard-00002-model-00001-of-00001.safetensors", "model-00002-of-00003.safetensors"
std::string dcp_shard_name(uint32_t shard);
std::string sharded_name(size_t number, size_t files);

// Values in the metadata of a safetensors file: those that are metadata themselves, which are
// called
// "__metadata__.KEY", and all others in one entry.
std::map<std::string, std::string> metadata_of(const std::vector<StoredValue>& values);
void add_metadata_values(const std::map<std::string, std::string>& metadata,
                         std::vector<StoredValue>& values);
// Values in a file of their own, for checkpoints of several files.
std::string encode_values(const std::vector<StoredValue>& values);
Result<std::vector<StoredValue>> decode_values(const std::string& json);

}  // namespace pliant::store
