#include "pliant/store/vault_file.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "pliant/base/checksum.h"
#include "pliant/store/file_set.h"
#include "pliant/store/safetensors.h"

namespace pliant::store {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kKey = "pliant.version";
constexpr size_t kWriteBytesMax = size_t{64} << 20;

std::string entry_name(const TensorInfo& info, const Box& box) {
  if (box == tensor::whole(info.shape)) return info.name;
  std::string name = info.name + "@";
  for (uint32_t d = 0; d < box.dims; ++d)
    name += fmt::format("{}{}:{}", d == 0 ? "" : ",", box.begin[d], box.end[d]);
  return name;
}

// The pieces of a version under the names that they get; replicas are written once.
struct Plan {
  std::vector<TensorInfo> entries = {};
  std::vector<const Version::Piece*> pieces = {};
  Json about = Json::object();
};

Plan plan_of(const Version& version) {
  Plan plan;
  plan.about = {{"step", version.step()}, {"epoch", version.epoch()}};
  plan.about["tensors"] = Json::array();
  std::set<std::string> taken;
  for (size_t i = 0; i < version.tensors().size(); ++i) {
    const TensorInfo& info = version.tensors()[i];
    Json pieces = Json::array();
    for (const Version::Piece& piece : version.pieces(i)) {
      const std::string name = entry_name(info, piece.box);
      if (!taken.insert(name).second) continue;
      plan.entries.push_back({name, info.dtype, tensor::extents_of(piece.box)});
      plan.pieces.push_back(&piece);
      Json begin = Json::array();
      for (uint32_t d = 0; d < piece.box.dims; ++d) begin.push_back(piece.box.begin[d]);
      pieces.push_back({{"entry", name},
                        {"begin", std::move(begin)},
                        {"checksum", fmt::format("{:016x}", piece.checksum)}});
    }
    plan.about["tensors"].push_back(
        {{"name", info.name}, {"shape", info.shape}, {"pieces", std::move(pieces)}});
  }
  return plan;
}

Error damaged(const std::string& path, const std::string& what) {
  return invalid(fmt::format("{} is no version of a store: {}", path, what));
}

// The elements of each entry, in the order of the manifest's pieces.
struct Read {
  LoadedVersion version;
  std::vector<Bytes> elements = {};
};

using Entries = std::map<std::string, const SafetensorsEntry*>;

// One tensor out of the metadata; nlohmann's exceptions end in the caller.
void take_tensor(const Json& object, const Entries& entries, Bytes file, Read& read) {
  Manifest& manifest = read.version.part.manifest;
  TensorInfo info;
  info.name = object.at("name").get<std::string>();
  info.shape = object.at("shape").get<std::vector<uint64_t>>();
  const auto number = static_cast<uint32_t>(manifest.tensors.size());
  for (const Json& item : object.at("pieces")) {
    const SafetensorsEntry& entry = *entries.at(item.at("entry").get<std::string>());
    info.dtype = entry.info.dtype;
    const auto begin = item.at("begin").get<std::vector<uint64_t>>();
    ManifestPiece piece;
    piece.tensor = number;
    piece.box.dims = static_cast<uint32_t>(std::min(begin.size(), size_t{tensor::kDimsMax}));
    for (uint32_t d = 0; d < piece.box.dims; ++d) {
      piece.box.begin[d] = begin[d];
      piece.box.end[d] = begin[d] + entry.info.shape.at(d);
    }
    const auto checksum = item.at("checksum").get<std::string>();
    std::from_chars(checksum.data(), checksum.data() + checksum.size(), piece.checksum, 16);
    manifest.pieces.push_back(piece);
    read.elements.push_back(file.subspan(entry.offset, entry.info.bytes()));
  }
  manifest.tensors.push_back(std::move(info));
}

// A tensor without pieces has no entry that would tell its type; it is empty, and any will do.
Result<Read> take_metadata(const std::string& path, const SafetensorsHeader& header, Bytes file) {
  const auto text = header.metadata.find(kKey);
  if (text == header.metadata.end()) return damaged(path, "its metadata lack pliant.version");
  Entries entries;
  for (const SafetensorsEntry& entry : header.tensors) entries.emplace(entry.info.name, &entry);
  Read read;
  try {
    const Json about = Json::parse(text->second);
    read.version.step = about.at("step").get<uint64_t>();
    read.version.epoch = about.at("epoch").get<uint32_t>();
    for (const Json& tensor : about.at("tensors")) take_tensor(tensor, entries, file, read);
  } catch (const std::exception& problem) {
    return damaged(path, problem.what());
  }
  return read;
}

}  // namespace

Status write_version(const Version& version, const std::string& path) {
  Plan plan = plan_of(version);
  const std::vector<TensorInfo> entries = plan.entries;
  auto header =
      plan_safetensors(std::move(plan.entries),
                       {{kKey, plan.about.dump(-1, ' ', false, Json::error_handler_t::replace)}});
  if (!header) return header.error();
  auto writer = SafetensorsWriter::create(path, std::move(*header), Existing::kReplace);
  if (!writer) return writer.error();
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < (*writer)->header().tensors.size(); ++i)
    places.emplace((*writer)->header().tensors[i].info.name, i);
  for (size_t i = 0; i < entries.size(); ++i) {
    const Bytes elements = plan.pieces[i]->elements;
    for (size_t offset = 0; offset < elements.size(); offset += kWriteBytesMax)
      PLIANT_TRY((*writer)->write(
          places.at(entries[i].name), offset,
          elements.subspan(offset, std::min(kWriteBytesMax, elements.size() - offset))));
  }
  return (*writer)->finish();
}

Result<LoadedVersion> read_version(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  const Bytes bytes = (*file)->bytes();
  const auto header = decode_safetensors(bytes, bytes.size());
  if (!header) return header.error();
  auto read = take_metadata(path, *header, bytes);
  if (!read) return read.error();
  Manifest& manifest = read->version.part.manifest;
  const auto collection = tensor::Collection::make(manifest.tensors);
  if (!collection) return damaged(path, collection.error().message);
  PLIANT_TRY(place_pieces(manifest));
  if (const Status fits = check(manifest); !fits.ok()) return damaged(path, fits.error().message);
  auto draft = VaultDraft::make(manifest.memory_bytes);
  if (!draft) return draft.error();
  for (size_t i = 0; i < manifest.pieces.size(); ++i) {
    const ManifestPiece& piece = manifest.pieces[i];
    const std::string& name = manifest.tensors[piece.tensor].name;
    if (read->elements[i].size() != manifest.piece_bytes(piece))
      return damaged(path, fmt::format("tensor '{}' has entries of several types", name));
    if (checksum64(read->elements[i]) != piece.checksum)
      return damaged(path, fmt::format("tensor '{}', piece {}: the checksum is wrong", name,
                                       to_string(piece.box)));
    PLIANT_TRY(draft->write(piece.offset, read->elements[i]));
  }
  auto memory = draft->seal();
  if (!memory) return memory.error();
  read->version.part.memory = std::move(*memory);
  return std::move(read->version);
}

}  // namespace pliant::store
