#include "pliant/runtime/store_http.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "pliant/base/checksum.h"
#include "pliant/base/text.h"

namespace pliant {
namespace {

using Json = nlohmann::ordered_json;
using store::Box;
using store::TensorInfo;
using store::Vault;
using store::Version;

constexpr std::string_view kRoot = "/v1/store";
constexpr std::string_view kNewestName = "newest";

std::string text_of(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpAnswer json_answer(const Json& object) {
  return {.status = 200, .body = text_of(object) + "\n", .fields = {}, .on_stream = {}};
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc{} || read.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

Json box_json(const Box& box) {
  Json ranges = Json::array();
  for (uint32_t d = 0; d < box.dims; ++d) ranges.push_back({box.begin[d], box.end[d]});
  return ranges;
}

Json tensor_json(const VersionOutline::Tensor& tensor) {
  Json pieces = Json::array();
  for (const VersionOutline::Piece& piece : tensor.pieces)
    pieces.push_back({{"box", box_json(piece.box)},
                      {"bytes", piece.bytes},
                      {"checksum", fmt::format("{:016x}", piece.checksum)}});
  return {{"name", tensor.info.name},
          {"dtype", to_string(tensor.info.dtype)},
          {"shape", tensor.info.shape},
          {"bytes", tensor.info.bytes()},
          {"pieces", std::move(pieces)}};
}

StoreLook look_at(const Version& version) {
  StoreLook look{version.step(), version.epoch(), {}};
  for (const store::VaultPart& part : version.parts())
    look.parts.push_back({0, true, part.manifest});
  return look;
}

StoreSummary summary_of(const Version& version) {
  return {version.step(), version.epoch(), static_cast<uint32_t>(version.parts().size()),
          version.tensors().size(), version.memory_bytes()};
}

// A part of a tensor's bytes in row-major order.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// "bytes=0-99", "bytes=100-", "bytes=-100"; nothing if it is none of these, or several, in which
// case the standard has us answer as if it were not there.
std::optional<ByteRange> parse_range(std::string_view field, uint64_t size_bytes) {
  constexpr std::string_view kUnit = "bytes=";
  if (!field.starts_with(kUnit)) return std::nullopt;
  field.remove_prefix(kUnit.size());
  const size_t dash = field.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = parse_number(field.substr(0, dash));
  const auto last = parse_number(field.substr(dash + 1));
  if (dash == 0) {
    if (!last) return std::nullopt;
    return ByteRange{size_bytes - std::min(*last, size_bytes), size_bytes};
  }
  if (!first || (!last && dash + 1 < field.size()) || (last && *last < *first)) return std::nullopt;
  return ByteRange{*first, last && *last < size_bytes ? *last + 1 : size_bytes};
}

HttpAnswer too_large(uint64_t bytes) {
  return http_error(413, fmt::format("{} are more than {} at once; ask for a box or a range",
                                     human_bytes(bytes), human_bytes(kStoreAnswerBytesMax)));
}

HttpAnswer bytes_answer(const TensorInfo& info, std::string body) {
  std::string shape;
  for (const uint64_t extent : info.shape)
    shape += fmt::format("{}{}", shape.empty() ? "" : ",", extent);
  return {.status = 200,
          .type = "application/octet-stream",
          .body = std::move(body),
          .fields = {{"Accept-Ranges", "bytes"},
                     {"X-Pliant-Dtype", to_string(info.dtype)},
                     {"X-Pliant-Shape", shape}},
          .on_stream = {}};
}

HttpAnswer give_box(const Version& version, size_t number, const Box& box) {
  const TensorInfo& info = version.tensors()[number];
  const uint64_t bytes = volume(box) * size_of(info.dtype);
  if (bytes > kStoreAnswerBytesMax) return too_large(bytes);
  std::string body(bytes, '\0');
  const Status read = version.read(number, box, std::as_writable_bytes(std::span(body)));
  if (!read.ok()) return http_error(404, read.error().message);
  return bytes_answer(info, std::move(body));
}

// Whole elements that contain the range, cut to it.
HttpAnswer give_range(const Version& version, size_t number, ByteRange range) {
  const TensorInfo& info = version.tensors()[number];
  if (range.begin >= range.end) {
    HttpAnswer refusal = http_error(416, fmt::format("tensor '{}' ends before this", info.name));
    refusal.fields.emplace_back("Content-Range", fmt::format("bytes */{}", info.bytes()));
    return refusal;
  }
  if (range.end - range.begin > kStoreAnswerBytesMax) return too_large(range.end - range.begin);
  const uint64_t size = size_of(info.dtype);
  const uint64_t first = range.begin / size;
  const uint64_t last = (range.end + size - 1) / size;
  std::vector<Box> boxes;
  append_flat_range(info.shape, first, last, boxes);
  std::string body((last - first) * size, '\0');
  auto rest = std::as_writable_bytes(std::span(body));
  for (const Box& box : boxes) {
    const uint64_t bytes = volume(box) * size;
    const Status read = version.read(number, box, rest.first(bytes));
    if (!read.ok()) return http_error(404, read.error().message);
    rest = rest.subspan(bytes);
  }
  body = body.substr(range.begin - first * size, range.end - range.begin);
  HttpAnswer answer = bytes_answer(info, std::move(body));
  answer.status = 206;
  answer.fields.emplace_back(
      "Content-Range", fmt::format("bytes {}-{}/{}", range.begin, range.end - 1, info.bytes()));
  return answer;
}

HttpAnswer give_tensor(const Version& version, const std::string& name,
                       const HttpRequest& request) {
  const auto number = version.find(name);
  if (!number) return http_error(404, number.error().message);
  const TensorInfo& info = version.tensors()[*number];
  if (const auto text = request.query.find("box"); text != request.query.end()) {
    const auto box = parse_box(text->second, info);
    if (!box) return http_error(400, box.error().message);
    return give_box(version, *number, *box);
  }
  if (const auto range = parse_range(request.field("range"), info.bytes()))
    return give_range(version, *number, *range);
  return give_box(version, *number, tensor::whole(info.shape));
}

Json list_json(const Vault& vault, const std::string& host) {
  Json object = {{"host", host}, {"memory_bytes", vault.memory_bytes()}};
  object["versions"] = Json::array();
  for (const Version::Shared& version : vault.versions())
    object["versions"].push_back(to_json(host, summary_of(*version)));
  return object;
}

// ---- Putting ----------------------------------------------------------------------------------

// What a PUT wants to make.
struct Wanted {
  uint64_t step = 0;
  TensorInfo info;
};

Result<std::vector<uint64_t>> parse_shape(std::string_view text) {
  std::vector<uint64_t> shape;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    const auto extent = parse_number(word);
    const bool ends_in_comma = text.size() == word.size() + 1;
    if (!extent || ends_in_comma)
      return invalid("shape is the tensor's extents with commas between them, as in 4,6");
    shape.push_back(*extent);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return shape;
}

HttpAnswer not_allowed(const HttpRequest& request, const char* allowed) {
  HttpAnswer refusal =
      http_error(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method));
  refusal.fields.emplace_back("Allow", allowed);
  return refusal;
}

// The manifest of one tensor; refuses names, shapes and sizes that no collection has.
Result<store::Manifest> manifest_of(const TensorInfo& info) {
  const auto collection = tensor::Collection::make({info});
  if (!collection) return collection.error();
  store::Manifest manifest;
  manifest.tensors = {info};
  manifest.pieces = {{0, tensor::whole(info.shape), 0, 0}};
  PLIANT_TRY(place_pieces(manifest));
  PLIANT_TRY(check(manifest));
  return manifest;
}

// All that can be said of a PUT without its body.
std::variant<Wanted, HttpAnswer> read_put(const Vault& vault, const HttpRequest& request) {
  std::string_view path = request.path;
  path.remove_prefix(std::min(path.size(), kRoot.size() + 1));
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos || slash + 1 == path.size())
    return not_allowed(request, "GET");
  const auto step = parse_number(path.substr(0, slash));
  if (!step || *step == Vault::kNewest)
    return http_error(400, fmt::format("'{}' is no step", path.substr(0, slash)));
  const auto asked = [&](const char* name) -> std::optional<std::string> {
    const auto at = request.query.find(name);
    return at == request.query.end() ? std::nullopt : std::optional(at->second);
  };
  const auto dtype = parse_dtype(asked("dtype").value_or(""));
  if (!dtype) return http_error(400, "dtype: " + dtype.error().message);
  if (!asked("shape")) return http_error(400, "shape is missing; that of a scalar is empty");
  auto shape = parse_shape(*asked("shape"));
  if (!shape) return http_error(400, shape.error().message);
  Wanted wanted{*step, {std::string(path.substr(slash + 1)), *dtype, std::move(*shape)}};
  const auto manifest = manifest_of(wanted.info);
  if (!manifest) return http_error(400, manifest.error().message);
  const auto length = parse_number(request.field("content-length"));
  if (!length) return http_error(411, "send the elements with a Content-Length");
  if (*length != wanted.info.bytes())
    return http_error(400, fmt::format("{} has {} bytes, not {}", to_string(wanted.info),
                                       wanted.info.bytes(), *length));
  if (vault.find(*step))
    return http_error(409, fmt::format("there is a version of step {} already", *step));
  return wanted;
}

Status keep_tensor(Vault& vault, const Wanted& wanted, Bytes elements) {
  auto manifest = manifest_of(wanted.info);
  if (!manifest) return manifest.error();
  auto draft = store::VaultDraft::make(manifest->memory_bytes);
  if (!draft) return draft.error();
  PLIANT_TRY(draft->write(manifest->pieces[0].offset, elements));
  auto memory = draft->seal();
  if (!memory) return memory.error();
  manifest->pieces[0].checksum = checksum64(elements);
  return vault.add({.step = wanted.step}, {std::move(*manifest), std::move(*memory)});
}

HttpAnswer put_tensor(Vault& vault, const std::string& host, const HttpRequest& request) {
  const auto read = read_put(vault, request);
  if (const auto* refusal = std::get_if<HttpAnswer>(&read)) return *refusal;
  const Wanted& wanted = std::get<Wanted>(read);
  const Status kept = keep_tensor(vault, wanted, std::as_bytes(std::span(request.body)));
  if (!kept.ok() && kept.code() == Code::kOverloaded) return http_error(507, kept.error().message);
  // Members of the job are writing this step.
  if (!kept.ok()) return http_error(409, kept.error().message);
  HttpAnswer answer = json_answer(to_json(host, summary_of(**vault.find(wanted.step))));
  answer.status = 201;
  return answer;
}

}  // namespace

std::optional<HttpAnswer> refuse_store_body(const Vault& vault, const HttpRequest& head) {
  if (head.method != "PUT" || !head.path.starts_with(kRoot)) return std::nullopt;
  auto read = read_put(vault, head);
  if (auto* refusal = std::get_if<HttpAnswer>(&read)) return std::move(*refusal);
  return std::nullopt;
}

VersionOutline outline_of(std::string host, const StoreLook& look) {
  VersionOutline outline{
      .host = std::move(host), .step = look.step, .epoch = look.epoch, .tensors = {}};
  std::unordered_map<std::string_view, size_t> numbers;
  for (const StoreOutline& part : look.parts) {
    if (!part.held) continue;
    ++outline.parts;
    outline.memory_bytes += part.manifest.memory_bytes;
    for (const TensorInfo& info : part.manifest.tensors)
      if (numbers.emplace(info.name, outline.tensors.size()).second)
        outline.tensors.push_back({info, {}});
    for (const store::ManifestPiece& piece : part.manifest.pieces)
      outline.tensors[numbers.at(part.manifest.tensors[piece.tensor].name)].pieces.push_back(
          {piece.box, part.manifest.piece_bytes(piece), piece.checksum});
  }
  return outline;
}

Json to_json(const std::string& host, const StoreSummary& version) {
  return {{"host", host},
          {"step", version.step},
          {"epoch", version.epoch},
          {"parts", version.parts},
          {"tensors", version.tensors},
          {"memory_bytes", version.memory_bytes}};
}

Json to_json(const VersionOutline& version) {
  Json object =
      to_json(version.host, {version.step, version.epoch, static_cast<uint32_t>(version.parts),
                             version.tensors.size(), version.memory_bytes});
  object["tensors"] = Json::array();
  for (const VersionOutline::Tensor& tensor : version.tensors)
    object["tensors"].push_back(tensor_json(tensor));
  return object;
}

Result<uint64_t> parse_step(std::string_view text) {
  if (text == kNewestName) return Vault::kNewest;
  if (const auto step = parse_number(text)) return *step;
  return invalid(fmt::format("'{}' is no step: it is a number, or newest", text));
}

Result<Box> parse_box(std::string_view text, const TensorInfo& info) {
  const Error wrong = invalid(
      fmt::format("'{}' is no box of tensor '{}', which is {}: write begin:end for each dimension, "
                  "with commas between them, as in 0:4,8:16",
                  text, info.name, to_string(info)));
  Box box = tensor::whole(info.shape);
  if (box.dims == 0) return text.empty() ? Result<Box>(box) : Result<Box>(wrong);
  for (uint32_t d = 0; d < box.dims; ++d) {
    const size_t comma = text.find(',');
    if ((comma == std::string_view::npos) != (d + 1 == box.dims)) return wrong;
    const std::string_view range = text.substr(0, comma);
    text.remove_prefix(std::min(text.size(), range.size() + 1));
    const size_t colon = range.find(':');
    if (colon == std::string_view::npos) return wrong;
    const auto begin =
        colon == 0 ? std::optional(uint64_t{0}) : parse_number(range.substr(0, colon));
    const auto end = colon + 1 == range.size() ? std::optional(info.shape[d])
                                               : parse_number(range.substr(colon + 1));
    if (!begin || !end || *begin > *end || *end > info.shape[d]) return wrong;
    box.begin[d] = *begin;
    box.end[d] = *end;
  }
  return box;
}

HttpAnswer answer_store(Vault& vault, const std::string& host, const HttpRequest& request) {
  std::string_view path = request.path;
  if (!path.starts_with(kRoot) || (path.size() > kRoot.size() && path[kRoot.size()] != '/'))
    return http_error(404, "there is nothing at " + request.path);
  if (request.method == "PUT") return put_tensor(vault, host, request);
  if (request.method != "GET") return not_allowed(request, "GET, PUT");
  path.remove_prefix(std::min(path.size(), kRoot.size() + 1));
  if (path.empty()) return json_answer(list_json(vault, host));
  const size_t slash = path.find('/');
  const auto step = parse_step(path.substr(0, slash));
  if (!step) return http_error(400, step.error().message);
  const auto version = vault.find(*step);
  if (!version) return http_error(404, version.error().message);
  if (slash == std::string_view::npos || slash + 1 == path.size())
    return json_answer(to_json(outline_of(host, look_at(**version))));
  return give_tensor(**version, std::string(path.substr(slash + 1)), request);
}

}  // namespace pliant
