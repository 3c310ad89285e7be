#include "pliant/store/dcp.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "pliant/store/pickle.h"
#include "pliant/store/torch_file.h"

namespace pliant::store {
namespace {

bool is_class(const PickleValue& value, std::string_view name) {
  // The module has moved from release to release; the names of the classes have not.
  return value.is(PickleKind::kObject) && last_part(value.global_name()) == name &&
         value.global_name().starts_with("torch.distributed.");
}

std::string key_of(std::string_view name, std::span<const uint64_t> offsets) {
  std::string key(name);
  for (const uint64_t offset : offsets) key += fmt::format("\n{}", offset);
  return key;
}

// A path that leaves the folder would read what the checkpoint has no business with.
bool stays_inside(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != std::string_view::npos)
    return false;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    if (path.substr(0, slash) == "..") return false;
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return true;
}

class MetadataReader final {
 public:
  Result<DcpMetadata> read(const PickleValue& root) {
    if (!is_class(root, "Metadata"))
      return invalid("it is no metadata of torch.distributed.checkpoint");
    PLIANT_TRY(gather_places(root.attribute("storage_data")));
    const PickleValue states = root.attribute("state_dict_metadata");
    DcpMetadata metadata;
    for (size_t i = 0; i < states.entries(); ++i) {
      const auto [key, value] = states.entry(i);
      const auto name = key.string();
      if (!name || name->size() > tensor::Collection::kNameMax)
        return invalid("an entry of state_dict_metadata has no name, or a very long one");
      if (is_class(value, "BytesStorageMetadata")) {
        auto where = take(*name, {});
        if (!where.ok()) return where.error();
        metadata.objects.push_back({std::string(*name), std::move(*where)});
      } else if (is_class(value, "TensorStorageMetadata")) {
        auto tensor = tensor_of(std::string(*name), value);
        if (!tensor.ok()) return tensor.error();
        metadata.tensors.push_back(std::move(*tensor));
      } else {
        return invalid(fmt::format("entry '{}' is neither a tensor nor bytes but '{}'", *name,
                                   value.global_name()));
      }
    }
    return metadata;
  }

 private:
  Status gather_places(const PickleValue& storage) {
    for (size_t i = 0; i < storage.entries(); ++i) {
      const auto [index, info] = storage.entry(i);
      const auto name = index.attribute("fqn").string();
      if (!name || name->size() > tensor::Collection::kNameMax)
        return invalid("an entry of storage_data does not say which tensor it is of");
      const PickleValue offset = index.attribute("offset");
      std::vector<uint64_t> offsets;
      if (!offset.is_none()) {
        auto sizes = pickled_sizes(offset);
        if (!sizes)
          return invalid(fmt::format("a piece of '{}' has an offset that cannot be", *name));
        offsets = std::move(*sizes);
      }
      places_.insert_or_assign(key_of(*name, offsets), info);
    }
    return {};
  }

  Result<DcpLocation> take(std::string_view name, std::span<const uint64_t> offsets) {
    const auto found = places_.find(key_of(name, offsets));
    if (found == places_.end())
      return invalid(
          fmt::format("the metadata does not say where piece {} of '{}' is stored, or "
                      "has it twice",
                      tensor::shape_text(offsets), name));
    // Each place is for one piece; otherwise a small file could list very many.
    const PickleValue info = found->second;
    places_.erase(found);
    const auto file = info.attribute("relative_path").string();
    const auto offset = info.attribute("offset").integer();
    const auto length = info.attribute("length").integer();
    if (!file || !offset || !length || *offset < 0 || *length < 0 || !stays_inside(*file))
      return invalid(
          fmt::format("the metadata has a wrong file, offset or length for piece {} of "
                      "'{}'",
                      tensor::shape_text(offsets), name));
    if (info.attribute("transform_descriptors").size() > 0)
      return invalid(
          fmt::format("'{}' is stored in a transformed form (compressed, say), which "
                      "cannot be read here: save it without stream transforms",
                      name));
    return DcpLocation{std::string(*file), static_cast<uint64_t>(*offset),
                       static_cast<uint64_t>(*length)};
  }

  // The dtype is the first thing in the state of the properties; older ones are dicts.
  static std::optional<DType> dtype_of(const PickleValue& properties) {
    const PickleValue state = properties.state();
    const PickleValue dtype =
        state.is(PickleKind::kTuple) ? state.item(0) : properties.attribute("dtype");
    const std::string name = dtype.global_name();
    return name.starts_with("torch.") ? torch_dtype(last_part(name)) : std::nullopt;
  }

  Result<DcpTensor> tensor_of(std::string name, const PickleValue& value) {
    const auto dtype = dtype_of(value.attribute("properties"));
    if (!dtype) return invalid(fmt::format("tensor '{}' is of a dtype that is unknown here", name));
    auto shape = pickled_sizes(value.attribute("size"));
    if (!shape || !size_in_bytes(*dtype, *shape))
      return invalid(
          fmt::format("tensor '{}' has a shape that cannot be, or more than {} "
                      "dimensions",
                      name, tensor::kDimsMax));
    DcpTensor tensor{.info = {std::move(name), *dtype, std::move(*shape)}};
    const PickleValue chunks = value.attribute("chunks");
    for (size_t i = 0; i < chunks.size(); ++i) PLIANT_TRY(add_chunk(chunks.item(i), tensor));
    return tensor;
  }

  Status add_chunk(const PickleValue& chunk, DcpTensor& tensor) {
    const auto offsets = pickled_sizes(chunk.attribute("offsets"));
    const auto sizes = pickled_sizes(chunk.attribute("sizes"));
    const size_t dims = tensor.info.shape.size();
    if (!offsets || !sizes || offsets->size() != dims || sizes->size() != dims)
      return invalid(fmt::format("a piece of tensor '{}' does not have its {} dimensions",
                                 tensor.info.name, dims));
    Box box;
    box.dims = static_cast<uint32_t>(dims);
    for (uint32_t d = 0; d < dims; ++d) {
      if ((*offsets)[d] > tensor.info.shape[d] ||
          (*sizes)[d] > tensor.info.shape[d] - (*offsets)[d])
        return invalid(fmt::format("a piece of tensor '{}', {} at {}, lies outside its shape {}",
                                   tensor.info.name, tensor::shape_text(*sizes),
                                   tensor::shape_text(*offsets),
                                   tensor::shape_text(tensor.info.shape)));
      box.begin[d] = (*offsets)[d];
      box.end[d] = (*offsets)[d] + (*sizes)[d];
    }
    auto where = take(tensor.info.name, *offsets);
    // torch does not write pieces without elements, but lists them.
    if (!where.ok()) return tensor::is_empty(box) ? Status() : where.error();
    tensor.boxes.push_back(box);
    tensor.places.push_back(std::move(*where));
    return {};
  }

  std::unordered_map<std::string, PickleValue> places_;
};

// What was pickled whole may still hold tensors, which are then as good as others.
Status add_object(const std::string& folder, const DcpObject& object,
                  CheckpointContents& contents) {
  const uint32_t file = contents.files.add(folder + "/" + object.where.file);
  const auto mapped = contents.files.map(file);
  if (!mapped.ok()) return invalid(fmt::format("'{}': {}", object.name, mapped.error().message));
  const Bytes bytes = (*mapped)->bytes();
  if (object.where.offset > bytes.size() ||
      object.where.size_bytes > bytes.size() - object.where.offset)
    return invalid(fmt::format("'{}' ends behind {}, which has {} bytes: the file is cut",
                               object.name, (*mapped)->path(), bytes.size()));
  auto found = decode_torch_file(bytes.subspan(object.where.offset, object.where.size_bytes));
  if (!found.ok()) {
    contents.values.push_back({object.name, fmt::format("\"<{} bytes, not written by torch.save>\"",
                                                        object.where.size_bytes)});
    return {};
  }
  append(std::move(*found), object.name, file, object.where.offset, contents);
  return {};
}

}  // namespace

Result<DcpMetadata> decode_dcp_metadata(Bytes bytes) {
  const auto pickle = Pickle::decode(bytes);
  if (!pickle.ok()) return pickle.error();
  return MetadataReader().read(pickle->root());
}

Result<CheckpointContents> open_dcp(const std::string& folder) {
  const auto file = MappedFile::open(folder + "/.metadata");
  if (!file.ok()) return file.error();
  auto metadata = decode_dcp_metadata((*file)->bytes());
  if (!metadata.ok())
    return invalid(fmt::format("{}/.metadata: {}", folder, metadata.error().message));
  CheckpointContents contents;
  contents.format = CheckpointFormat::kDcp;
  for (DcpTensor& found : metadata->tensors) {
    StoredTensor stored{.info = std::move(found.info)};
    for (size_t i = 0; i < found.boxes.size(); ++i) {
      const DcpLocation& where = found.places[i];
      stored.pieces.push_back({.box = found.boxes[i],
                               .file = contents.files.add(folder + "/" + where.file),
                               .offset = where.offset,
                               .size_bytes = where.size_bytes,
                               .strides = {},
                               .encoding = PieceEncoding::kTorchSave});
    }
    contents.tensors.push_back(std::move(stored));
  }
  for (const DcpObject& object : metadata->objects)
    PLIANT_TRY(add_object(folder, object, contents));
  return contents;
}

}  // namespace pliant::store
