#include "pliant/store/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace pliant::store {
namespace {

struct TorchType {
  DType dtype;
  const char* name;
  const char* storage;  // null if torch has none: it came after untyped storages
};
constexpr std::array<TorchType, kDTypes> kTypes = {{
    {DType::kI8, "int8", "CharStorage"},
    {DType::kI16, "int16", "ShortStorage"},
    {DType::kI32, "int32", "IntStorage"},
    {DType::kI64, "int64", "LongStorage"},
    {DType::kU8, "uint8", "ByteStorage"},
    {DType::kU16, "uint16", nullptr},
    {DType::kU32, "uint32", nullptr},
    {DType::kU64, "uint64", nullptr},
    {DType::kBool, "bool", "BoolStorage"},
    {DType::kF16, "float16", "HalfStorage"},
    {DType::kBF16, "bfloat16", "BFloat16Storage"},
    {DType::kF32, "float32", "FloatStorage"},
    {DType::kF64, "float64", "DoubleStorage"},
    {DType::kF8E4M3, "float8_e4m3fn", nullptr},
    {DType::kF8E5M2, "float8_e5m2", nullptr},
}};

// A file may refer to one value several times (tied weights), but not without end.
constexpr size_t kVisitsEach = 4;
constexpr size_t kVisitsFree = 1000;
constexpr size_t kDepthMax = 100;
constexpr size_t kTextFree = size_t{64} << 10;
// A view may repeat elements (expand), so a few bytes can be a tensor of any size. Beyond this
// factor it is a trap rather than a checkpoint.
constexpr uint64_t kRepeatMax = 4096;
constexpr uint64_t kRepeatFree = uint64_t{1} << 20;

// Walks over the structure and gathers tensors and values.
class Flattener final {
 public:
  Flattener(const ZipArchive& zip, std::string folder, size_t values, size_t pickle_bytes)
      : zip_(zip),
        folder_(std::move(folder)),
        walk_(kVisitsEach * values + kVisitsFree, SIZE_MAX, kDepthMax),
        shown_(kVisitsEach * values + kVisitsFree, kVisitsEach * pickle_bytes + kTextFree) {}

  TorchContents contents;

  Status visit(const PickleValue& value, const std::string& name, size_t depth) {
    if (!walk_.enter(depth))
      return invalid(
          fmt::format("'{}' is nested too deeply, or refers to the same values again "
                      "and again",
                      name));
    if (name.size() > tensor::Collection::kNameMax)
      return invalid(
          fmt::format("a name of {} bytes is too long: '{}...'", name.size(), name.substr(0, 80)));
    if (const auto rebuilt = rebuild_of(value, 0)) return add_tensor(*rebuilt, name);
    if (is_mapping(value)) return visit_entries(value, name, depth);
    if (is_nest(value)) return visit_items(value, name, depth);
    const bool size = value.is(PickleKind::kObject) && value.global_name() == "torch.Size";
    return add_value(name, to_json(size ? value.arguments().item(0) : value, shown_));
  }

 private:
  // What torch would call to make a tensor: its arguments, and the dtype if it is one of them.
  struct Rebuild {
    PickleValue arguments;
    std::optional<PickleValue> dtype;
  };

  static std::optional<Rebuild> rebuild_of(const PickleValue& value, size_t depth) {
    if (!value.is(PickleKind::kObject) || depth > 4) return std::nullopt;
    return rebuild_of(value.global_name(), value.arguments(), depth);
  }
  static std::optional<Rebuild> rebuild_of(const std::string& name, const PickleValue& arguments,
                                           size_t depth) {
    if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor")
      return Rebuild{arguments, std::nullopt};
    if (name == "torch._utils._rebuild_tensor_v3") return Rebuild{arguments, arguments.item(6)};
    if (name == "torch._utils._rebuild_parameter" ||
        name == "torch._utils._rebuild_parameter_with_state")
      return rebuild_of(arguments.item(0), depth + 1);
    // A tensor with attributes: the function, the class, and the function's arguments.
    if (name == "torch._tensor._rebuild_from_type_v2" && depth < 4)
      return rebuild_of(arguments.item(0).global_name(), arguments.item(2), depth + 1);
    return std::nullopt;
  }

  static bool is_mapping(const PickleValue& value) {
    if (value.is(PickleKind::kDict)) return true;
    if (!value.is(PickleKind::kObject)) return false;
    return value.entries() > 0 || value.global_name() == "collections.OrderedDict";
  }
  // A list that is worth going into; others are shown whole, as one value.
  static bool is_nest(const PickleValue& value) {
    if (!value.is(PickleKind::kList) && !value.is(PickleKind::kTuple)) return false;
    for (size_t i = 0; i < value.size(); ++i) {
      const PickleKind kind = value.item(i).kind();
      if (kind == PickleKind::kDict || kind == PickleKind::kList || kind == PickleKind::kTuple ||
          kind == PickleKind::kObject)
        return true;
    }
    return false;
  }
  static std::string joined(const std::string& name, std::string_view part) {
    return name.empty() ? std::string(part) : fmt::format("{}.{}", name, part);
  }

  Status visit_entries(const PickleValue& value, const std::string& name, size_t depth) {
    for (size_t i = 0; i < value.entries(); ++i) {
      const auto [key, item] = value.entry(i);
      std::string part;
      if (const auto text = key.string()) {
        part = *text;
      } else {
        PickleWalk shown(16);
        part = to_json(key, shown);
      }
      PLIANT_TRY(visit(item, joined(name, part), depth + 1));
    }
    return {};
  }
  Status visit_items(const PickleValue& value, const std::string& name, size_t depth) {
    for (size_t i = 0; i < value.size(); ++i)
      PLIANT_TRY(visit(value.item(i), joined(name, fmt::format("{}", i)), depth + 1));
    return {};
  }

  Status add_value(const std::string& name, std::string json) {
    contents.values.push_back({name, std::move(json)});
    return {};
  }

  // ('storage', <type>, '0', 'cpu', <elements>)
  struct Storage {
    const ZipEntry* entry = nullptr;
    std::optional<DType> dtype;  // none: untyped
  };
  Result<Storage> storage_of(const PickleValue& value, const std::string& name) const {
    const PickleValue reference = value.reference();
    const auto key = reference.item(2).string();
    if (reference.item(0).string() != "storage" || !key)
      return invalid(fmt::format("tensor '{}' has no storage that is known here", name));
    Storage storage;
    const std::string type = last_part(reference.item(1).global_name());
    if (type != "UntypedStorage") {
      storage.dtype = torch_storage_dtype(type);
      if (!storage.dtype)
        return invalid(fmt::format("tensor '{}' has a storage of type '{}', which is unknown here",
                                   name, type));
    }
    storage.entry = zip_.find(fmt::format("{}/data/{}", folder_, *key));
    if (storage.entry == nullptr)
      return invalid(
          fmt::format("the storage {}/data/{} of tensor '{}' is missing", folder_, *key, name));
    return storage;
  }

  Status add_tensor(const Rebuild& rebuild, const std::string& name) {
    const PickleValue& arguments = rebuild.arguments;
    const auto storage = storage_of(arguments.item(0), name);
    if (!storage.ok()) return storage.error();
    std::optional<DType> dtype = storage->dtype;
    if (rebuild.dtype) dtype = torch_dtype(last_part(rebuild.dtype->global_name()));
    if (!dtype) return invalid(fmt::format("tensor '{}' is of a dtype that is unknown here", name));
    auto shape = pickled_sizes(arguments.item(2));
    const auto strides = pickled_sizes(arguments.item(3));
    const auto first = arguments.item(1).integer();
    if (!shape || !strides || !first || *first < 0 || strides->size() != shape->size())
      return invalid(
          fmt::format("tensor '{}' has an offset, a shape or strides that cannot be: "
                      "negative, or of more than {} dimensions",
                      name, tensor::kDimsMax));
    TorchTensor found{.info = {name, *dtype, std::move(*shape)}};
    std::ranges::copy(*strides, found.strides.begin());
    PLIANT_TRY(place(found, *storage->entry, static_cast<uint64_t>(*first)));
    if (!names_.insert(name).second)
      return invalid(fmt::format("two tensors of the file come to be called '{}'", name));
    contents.tensors.push_back(std::move(found));
    return {};
  }

  // Checks that every element lies in the storage.
  static Status place(TorchTensor& found, const ZipEntry& entry, uint64_t first) {
    const TensorInfo& info = found.info;
    const auto total = size_in_bytes(info.dtype, info.shape);
    if (!total) return invalid(fmt::format("tensor '{}' is larger than 2^60 bytes", info.name));
    const uint64_t element = size_of(info.dtype);
    const uint64_t held = entry.size_bytes / element;
    uint64_t last = first;
    for (size_t d = 0; d < info.shape.size() && *total > 0; ++d) {
      const uint64_t steps = info.shape[d] - 1;
      if (steps > 0 && found.strides[d] > held / steps) {
        last = held;  // behind the end, and past doubt
        break;
      }
      last += steps * found.strides[d];
    }
    if (*total > 0 && (first >= held || last >= held))
      return invalid(
          fmt::format("tensor '{}' ends behind its storage '{}', which has {} bytes at "
                      "offset {}: the file is damaged",
                      info.name, entry.name, entry.size_bytes, entry.offset));
    if (*total > kRepeatFree && *total / kRepeatMax > entry.size_bytes)
      return invalid(
          fmt::format("tensor '{}' of {} repeats a storage of {}; save it with "
                      "contiguous()",
                      info.name, human_bytes(*total), human_bytes(entry.size_bytes)));
    found.offset = *total > 0 ? entry.offset + first * element : entry.offset;
    found.size_bytes = *total > 0 ? (last - first + 1) * element : 0;
    return {};
  }

  const ZipArchive& zip_;
  std::string folder_;  // all entries of the archive are in it
  PickleWalk walk_;
  PickleWalk shown_;  // of the values that are no tensors
  std::unordered_set<std::string> names_;
};

Result<const ZipEntry*> find_structure(const ZipArchive& zip) {
  constexpr std::string_view kName = "/data.pkl";
  for (const ZipEntry& entry : zip.entries()) {
    if (!entry.name.ends_with(kName)) continue;
    const std::string folder(entry.name.substr(0, entry.name.size() - kName.size()));
    if (folder.find('/') != std::string::npos) continue;
    if (zip.find(folder + "/constants.pkl") != nullptr)
      return invalid("it is a TorchScript program, not a file of torch.save: save a state_dict");
    return &entry;
  }
  return invalid("the zip archive has no data.pkl: it is no file of torch.save");
}

}  // namespace

std::string last_part(std::string_view dotted) {
  const size_t dot = dotted.rfind('.');
  return std::string(dot == std::string_view::npos ? dotted : dotted.substr(dot + 1));
}

std::optional<std::vector<uint64_t>> pickled_sizes(const PickleValue& value) {
  // torch.Size is a call with the tuple as its argument.
  const PickleValue list = value.is(PickleKind::kObject) ? value.arguments().item(0) : value;
  if (!list.is(PickleKind::kTuple) && !list.is(PickleKind::kList)) return std::nullopt;
  if (list.size() > tensor::kDimsMax) return std::nullopt;
  std::vector<uint64_t> sizes;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto size = list.item(i).integer();
    if (!size || *size < 0) return std::nullopt;
    sizes.push_back(static_cast<uint64_t>(*size));
  }
  return sizes;
}

std::optional<DType> torch_dtype(std::string_view name) {
  for (const TorchType& type : kTypes) {
    if (name == type.name) return type.dtype;
  }
  return std::nullopt;
}

std::optional<DType> torch_storage_dtype(std::string_view name) {
  for (const TorchType& type : kTypes) {
    if (type.storage != nullptr && name == type.storage) return type.dtype;
  }
  return std::nullopt;
}

bool looks_like_zip(Bytes file) {
  return file.size() >= 4 && std::memcmp(file.data(), "PK\x03\x04", 4) == 0;
}

bool looks_like_old_torch_file(Bytes file) {
  // A pickle of protocol 2 with nothing but torch's magic number, 0x1950a86a20f9469cfc6c.
  constexpr std::array<uint8_t, 5> kStart = {0x80, 0x02, 0x8a, 0x0a, 0x6c};
  return file.size() >= kStart.size() && std::memcmp(file.data(), kStart.data(), 5) == 0;
}

Result<TorchContents> decode_torch_file(Bytes file) {
  if (looks_like_old_torch_file(file))
    return invalid(
        "it was saved by torch before 1.6, or with _use_new_zipfile_serialization=False;"
        " load it in torch and save it again");
  const auto zip = ZipArchive::open(file);
  if (!zip.ok()) return zip.error();
  const auto structure = find_structure(*zip);
  if (!structure.ok()) return structure.error();
  const std::string folder((*structure)->name.substr(0, (*structure)->name.find('/')));
  if (const ZipEntry* order = zip->find(folder + "/byteorder")) {
    const Bytes text = zip->contents(*order);
    if (std::string_view(reinterpret_cast<const char*>(text.data()), text.size()) != "little")
      return invalid("it was saved on a big-endian machine, which is not supported");
  }
  const Bytes program = zip->contents(**structure);
  const auto pickle = Pickle::decode(program);
  if (!pickle.ok()) return invalid(fmt::format("data.pkl: {}", pickle.error().message));
  Flattener flattener(*zip, folder, pickle->values(), program.size());
  PLIANT_TRY(flattener.visit(pickle->root(), "", 0));
  return std::move(flattener.contents);
}

void append(TorchContents found, const std::string& name, uint32_t file, uint64_t offset,
            CheckpointContents& contents) {
  const auto full_name = [&](const std::string& part) {
    if (name.empty()) return part.empty() ? std::string("tensor") : part;
    return part.empty() ? name : name + "." + part;
  };
  for (StoredValue& value : found.values)
    contents.values.push_back({full_name(value.name), std::move(value.json)});
  for (TorchTensor& tensor : found.tensors) {
    tensor.info.name = full_name(tensor.info.name);
    StoredPiece piece{.box = tensor::whole(tensor.info.shape),
                      .file = file,
                      .offset = offset + tensor.offset,
                      .size_bytes = tensor.size_bytes,
                      .strides = tensor.strides};
    contents.tensors.push_back({std::move(tensor.info), {piece}});
  }
}

Status check_torch_file(Bytes file) {
  const auto zip = ZipArchive::open(file);
  if (!zip.ok()) return zip.error();
  for (const ZipEntry& entry : zip->entries()) PLIANT_TRY(zip->check(entry));
  return {};
}

}  // namespace pliant::store
