#include "pliant/store/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace pliant::store {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";

struct Name {
  DType dtype;
  const char* text;
};
constexpr std::array<Name, kDTypes> kNames = {{
    {DType::kI8, "I8"},
    {DType::kI16, "I16"},
    {DType::kI32, "I32"},
    {DType::kI64, "I64"},
    {DType::kU8, "U8"},
    {DType::kU16, "U16"},
    {DType::kU32, "U32"},
    {DType::kU64, "U64"},
    {DType::kBool, "BOOL"},
    {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},
    {DType::kF32, "F32"},
    {DType::kF64, "F64"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kF8E5M2, "F8_E5M2"},
}};

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One tensor of the header, as it is being read.
struct Draft {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Hears the header word by word, so that nothing is built that the format does not have, and
// nothing is lost that a tree of JSON would drop: a key that occurs twice.
class HeaderSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Draft> tensors;
  std::map<std::string, std::string> metadata;
  std::string fault;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (list_ == nullptr) return unexpected("a number");
    if (list_->size() > kListMax) return fail(fmt::format("{} has a long '{}'", where(), key_));
    list_->push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ != 2 || list_ != nullptr) return unexpected("a text");
    if (in_metadata_) {
      if (!metadata.emplace(key_, value).second)
        return fail(fmt::format("{} has '{}' twice", kMetadataKey, key_));
      return true;
    }
    if (key_ != "dtype") return unexpected("a text");
    if (tensors.back().dtype) return twice();
    tensors.back().dtype = value;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 2 || list_ != nullptr) return unexpected("an object");
    if (depth_ == 1) {
      in_metadata_ = name_ == kMetadataKey;
      if (in_metadata_ && std::exchange(had_metadata_, true))
        return fail(fmt::format("{} is there twice", kMetadataKey));
      if (!in_metadata_)
        tensors.push_back({.name = name_, .dtype = {}, .shape = {}, .offsets = {}});
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool key(string_t& value) override {
    (depth_ == 1 ? name_ : key_) = value;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr) return unexpected("a list");
    auto& list = key_ == "shape" ? tensors.back().shape : tensors.back().offsets;
    if (key_ != "shape" && key_ != "data_offsets") return unexpected("a list");
    if (list) return twice();
    list_ = &list.emplace();
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("the header is no JSON: see offset {}", kLengthBytes + position));
  }

 private:
  static constexpr size_t kListMax = 64;

  std::string where() const {
    if (depth_ == 0) return "the header";
    if (depth_ == 1) return fmt::format("'{}'", name_);
    return in_metadata_ ? std::string(kMetadataKey) : fmt::format("tensor '{}'", name_);
  }
  bool fail(std::string why) {
    if (fault.empty()) fault = std::move(why);
    return false;
  }
  bool unexpected(const char* what) {
    return fail(depth_ == 2
                    ? fmt::format("{} has {} for '{}'", where(), what, key_)
                    : fmt::format("{} is {}, which is no safetensors header", where(), what));
  }
  bool twice() { return fail(fmt::format("{} has '{}' twice", where(), key_)); }

  int depth_ = 0;
  std::string name_;
  std::string key_;
  bool in_metadata_ = false;
  bool had_metadata_ = false;
  std::vector<uint64_t>* list_ = nullptr;  // the one that is open
};

Result<SafetensorsEntry> entry_of(Draft& draft, uint64_t data_offset, uint64_t data_bytes) {
  const auto fault = [&](const std::string& what) {
    return invalid(fmt::format("tensor '{}' {}", draft.name, what));
  };
  if (!draft.dtype || !draft.shape || !draft.offsets)
    return fault("lacks its dtype, shape or data_offsets");
  const auto dtype = safetensors_dtype(*draft.dtype);
  if (!dtype) return fault(fmt::format("is of dtype '{}', which is unknown here", *draft.dtype));
  const auto bytes = size_in_bytes(*dtype, *draft.shape);
  if (!bytes)
    return fault(fmt::format("of shape {} has more than {} dimensions or 2^60 bytes",
                             tensor::shape_text(*draft.shape), tensor::kDimsMax));
  if (draft.offsets->size() != 2) return fault("has no two data_offsets");
  const uint64_t begin = (*draft.offsets)[0];
  const uint64_t end = (*draft.offsets)[1];
  if (begin > end || end > data_bytes)
    return fault(
        fmt::format("lies at offsets {} to {} of {} bytes of elements: the file is cut or "
                    "its header is wrong",
                    begin, end, data_bytes));
  if (end - begin != *bytes)
    return fault(fmt::format(
        "of shape {} and dtype {} needs {} bytes, and its offsets {} to {} "
        "hold {}",
        tensor::shape_text(*draft.shape), *draft.dtype, *bytes, begin, end, end - begin));
  return SafetensorsEntry{{std::move(draft.name), *dtype, std::move(*draft.shape)},
                          data_offset + begin};
}

Status check_names(const std::vector<SafetensorsEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsEntry& entry : tensors) names.push_back(entry.info.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) return invalid(fmt::format("tensor '{}' is there twice", *twice));
  return {};
}

// Every byte belongs to exactly one tensor.
Status check_places(const SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t at = header.data_offset;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.offset < at)
      return invalid(
          fmt::format("tensor '{}', at offset {}, overlaps the one before it, which ends "
                      "at {}",
                      entry.info.name, entry.offset, at));
    if (entry.offset > at)
      return invalid(fmt::format("there is a hole of {} bytes at offset {}, before tensor '{}'",
                                 entry.offset - at, at, entry.info.name));
    at += entry.info.bytes();
  }
  if (at != file_bytes)
    return invalid(
        fmt::format("the last tensor ends at offset {}, and the file at {}", at, file_bytes));
  return {};
}

}  // namespace

uint64_t SafetensorsHeader::file_bytes() const {
  return tensors.empty() ? data_offset : tensors.back().offset + tensors.back().info.bytes();
}

const char* safetensors_name(DType dtype) {
  for (const Name& name : kNames) {
    if (name.dtype == dtype) return name.text;
  }
  return "?";
}

std::optional<DType> safetensors_dtype(std::string_view text) {
  for (const Name& name : kNames) {
    if (name.text == text) return name.dtype;
  }
  return std::nullopt;
}

Result<SafetensorsHeader> decode_safetensors(Bytes start, uint64_t file_bytes) {
  if (start.size() < kLengthBytes)
    return invalid(fmt::format("{} bytes are too few for a safetensors file", start.size()));
  uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  if (length > kSafetensorsHeaderBytesMax)
    return invalid(
        fmt::format("the header is said to have {} bytes, and {} are allowed: it is no "
                    "safetensors file, or damaged at offset 0",
                    length, kSafetensorsHeaderBytesMax));
  if (length > start.size() - kLengthBytes)
    return invalid(
        fmt::format("the header is said to have {} bytes, and the file has {}: it is "
                    "cut, or no safetensors file",
                    length, file_bytes));
  const std::string_view text(reinterpret_cast<const char*>(start.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{')
    return invalid("the header does not begin with '{': it is no safetensors file");
  HeaderSax sax;
  if (!nlohmann::json::sax_parse(text, &sax))
    return invalid(sax.fault.empty() ? "the header cannot be read" : sax.fault);
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  header.metadata = std::move(sax.metadata);
  header.tensors.reserve(sax.tensors.size());
  for (Draft& draft : sax.tensors) {
    auto entry = entry_of(draft, header.data_offset, file_bytes - header.data_offset);
    if (!entry.ok()) return entry.error();
    header.tensors.push_back(std::move(*entry));
  }
  PLIANT_TRY(check_names(header.tensors));
  std::ranges::stable_sort(header.tensors, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.offset, entry.info.bytes());
  });
  PLIANT_TRY(check_places(header, file_bytes));
  return header;
}

std::string encode(const SafetensorsHeader& header) {
  Json object = Json::object();
  if (!header.metadata.empty()) object[kMetadataKey] = header.metadata;
  for (const SafetensorsEntry& entry : header.tensors) {
    const uint64_t begin = entry.offset - header.data_offset;
    object[entry.info.name] = {{"dtype", safetensors_name(entry.info.dtype)},
                               {"shape", entry.info.shape},
                               {"data_offsets", {begin, begin + entry.info.bytes()}}};
  }
  std::string text = dumped(object);
  // The elements begin where eight-byte numbers may lie; readers allow blanks at the end.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

Result<SafetensorsHeader> plan_safetensors(std::vector<TensorInfo> tensors,
                                           std::map<std::string, std::string> metadata) {
  auto collection = tensor::Collection::make(tensors);
  if (!collection.ok()) return collection.error();
  if (collection->find(kMetadataKey))
    return invalid(fmt::format("no tensor can be called {} in a safetensors file", kMetadataKey));
  for (const TensorInfo& info : tensors) {
    // The header is JSON, whose text is UTF-8; anything else would become another name.
    if (Json::parse(dumped(info.name)) != info.name)
      return invalid(
          fmt::format("the name of tensor '{}' is no UTF-8 and cannot be written", info.name));
  }
  std::ranges::stable_sort(tensors, std::greater<>(),
                           [](const TensorInfo& info) { return size_of(info.dtype); });
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  uint64_t at = 0;
  for (TensorInfo& info : tensors) {
    const uint64_t bytes = info.bytes();
    header.tensors.push_back({std::move(info), at});
    at += bytes;
  }
  header.data_offset = encode(header).size();
  if (header.data_offset > kSafetensorsHeaderBytesMax)
    return invalid(
        fmt::format("{} tensors need a header of {}, and safetensors allows {}: write "
                    "several files",
                    header.tensors.size(), human_bytes(header.data_offset),
                    human_bytes(kSafetensorsHeaderBytesMax)));
  for (SafetensorsEntry& entry : header.tensors) entry.offset += header.data_offset;
  return header;
}

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<AtomicFile> file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)) {
  for (const SafetensorsEntry& entry : header_.tensors) missing_.push_back(entry.info.bytes());
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(const std::string& path,
                                                                     SafetensorsHeader header,
                                                                     Existing existing) {
  auto file = AtomicFile::create(path, header.file_bytes(), existing);
  if (!file.ok()) return file.error();
  const std::string text = encode(header);
  PLIANT_CHECK(text.size() == header.data_offset, "a header is planned before it is written");
  PLIANT_TRY((*file)->write(std::as_bytes(std::span(text)), 0));
  return std::unique_ptr<SafetensorsWriter>(
      new SafetensorsWriter(std::move(*file), std::move(header)));
}

Status SafetensorsWriter::write(size_t tensor, uint64_t offset, Bytes bytes) {
  PLIANT_CHECK(tensor < missing_.size() && bytes.size() <= missing_[tensor],
               "each byte of a tensor is written once");
  PLIANT_CHECK(offset + bytes.size() <= header_.tensors[tensor].info.bytes(),
               "a tensor is written within its bounds");
  PLIANT_TRY(file_->write(bytes, header_.tensors[tensor].offset + offset));
  missing_[tensor] -= bytes.size();
  return {};
}

Status SafetensorsWriter::finish() {
  for (size_t i = 0; i < missing_.size(); ++i) {
    if (missing_[i] != 0)
      return invalid(fmt::format("{} bytes of tensor '{}' were not written", missing_[i],
                                 header_.tensors[i].info.name));
  }
  return file_->commit();
}

}  // namespace pliant::store
