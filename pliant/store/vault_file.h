// A version of the vault in a file: a safetensors file of its pieces, whose metadata say which
// tensors they belong to. A piece that is a whole tensor has the tensor's name, so that anything
// which reads safetensors reads it; the others are called "name@0:4,8:16". Any thread.
#pragma once

#include <string>

#include "pliant/base/result.h"
#include "pliant/store/vault.h"

namespace pliant::store {

// The file appears, or replaces the one before, when it is complete and on the disk.
Status write_version(const Version& version, const std::string& path);

struct LoadedVersion {
  uint64_t step = 0;
  uint32_t epoch = 0;
  VaultPart part;  // all of it
};
// Reads what write_version() wrote and compares it with its checksums.
Result<LoadedVersion> read_version(const std::string& path);

}  // namespace pliant::store
