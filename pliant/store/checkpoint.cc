#include "pliant/store/checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "pliant/store/dcp.h"
#include "pliant/store/safetensors_folder.h"
#include "pliant/store/torch_file.h"
#include "pliant/store/universal.h"

namespace pliant::store {
namespace {

namespace fs = std::filesystem;

// So much more may be mapped with a page that is touched: the folio that the kernel keeps it in.
constexpr uint64_t kFaultBytes = uint64_t{2} << 20;
constexpr const char* kIndexEnding = ".safetensors.index.json";

Result<CheckpointContents> open_file(const std::string& path) {
  if (path.ends_with(kIndexEnding)) {
    const fs::path file(path);
    const std::string folder = file.parent_path().string();
    return open_safetensors_index(folder.empty() ? "." : folder, file.filename().string());
  }
  const auto mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.error();
  const Bytes bytes = (*mapped)->bytes();
  if (!looks_like_zip(bytes) && !looks_like_old_torch_file(bytes))
    return open_safetensors_file(path);
  CheckpointContents contents;
  contents.format = CheckpointFormat::kTorchFile;
  PLIANT_TRY(add_torch_file(path, "", contents));
  return contents;
}

// What a folder holds that is a checkpoint.
Result<CheckpointContents> open_folder(const std::string& folder) {
  std::error_code code;
  if (fs::exists(folder + "/.metadata", code)) return open_dcp(folder);
  bool safetensors = false;
  std::vector<std::string> indexes;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(kIndexEnding)) indexes.push_back(name);
    safetensors = safetensors || name.ends_with(".safetensors");
  }
  if (code) return invalid(fmt::format("cannot list {}: {}", folder, code.message()));
  if (indexes.size() > 1)
    return invalid(
        fmt::format("{} has {} indexes of safetensors; name one of them", folder, indexes.size()));
  if (!indexes.empty()) return open_safetensors_index(folder, indexes.front());
  if (safetensors) return open_safetensors_folder(folder);
  if (fs::is_directory(folder + "/zero", code)) return open_universal(folder);
  if (fs::exists(folder + "/latest_universal", code) || fs::exists(folder + "/latest", code))
    return invalid(
        fmt::format("{} holds checkpoints of DeepSpeed; name one of its folders, made "
                    "universal by ds_to_universal.py",
                    folder));
  return invalid(
      fmt::format("{} is no checkpoint that is known here: it has no .metadata (torch "
                  "DCP), no safetensors files and no folder 'zero' (DeepSpeed "
                  "universal)",
                  folder));
}

}  // namespace

Checkpoint::Checkpoint(std::string path, CheckpointContents contents, tensor::Collection tensors)
    : path_(std::move(path)), contents_(std::move(contents)), tensors_(std::move(tensors)) {}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path) {
  std::error_code code;
  const auto status = fs::status(path, code);
  if (!fs::exists(status)) return invalid(fmt::format("{} does not exist", path));
  auto contents = fs::is_directory(status) ? open_folder(path) : open_file(path);
  if (!contents.ok()) {
    const std::string& message = contents.error().message;
    return message.find(path) != std::string::npos ? contents.error()
                                                   : invalid(fmt::format("{}: {}", path, message));
  }
  std::vector<TensorInfo> infos;
  infos.reserve(contents->tensors.size());
  for (const StoredTensor& tensor : contents->tensors) infos.push_back(tensor.info);
  auto tensors = tensor::Collection::make(std::move(infos));
  if (!tensors.ok()) return invalid(fmt::format("{}: {}", path, tensors.error().message));
  for (const StoredTensor& tensor : contents->tensors) {
    if (const Status covered = check_cover(tensor); !covered.ok())
      return invalid(fmt::format("{}: {}", path, covered.error().message));
  }
  return std::unique_ptr<Checkpoint>(
      new Checkpoint(path, std::move(*contents), std::move(*tensors)));
}

const std::vector<StoredPiece>& Checkpoint::pieces(size_t tensor) const {
  return contents_.tensors[tensor].pieces;
}

Error Checkpoint::about(const TensorInfo& info, const StoredPiece& piece,
                        const std::string& what) const {
  return invalid(fmt::format("{}: tensor '{}', piece {} at offset {}: {}",
                             contents_.files.path(piece.file), info.name,
                             tensor::to_string(piece.box), piece.offset, what));
}

Result<PieceView> Checkpoint::view(const TensorInfo& info, const StoredPiece& piece,
                                   std::shared_ptr<const MappedFile>& mapped) {
  auto opened = contents_.files.map(piece.file);
  if (!opened.ok()) return about(info, piece, opened.error().message);
  mapped = *opened;
  const Bytes bytes = mapped->bytes();
  if (piece.offset > bytes.size() || piece.size_bytes > bytes.size() - piece.offset)
    return about(info, piece,
                 fmt::format("its {} bytes end behind the file, which has {}: the file is cut",
                             piece.size_bytes, bytes.size()));
  const Bytes part = bytes.subspan(piece.offset, piece.size_bytes);
  if (piece.encoding == PieceEncoding::kElements) return PieceView{piece.box, piece.strides, part};
  const auto found = decode_torch_file(part);
  if (!found.ok()) return about(info, piece, found.error().message);
  if (found->tensors.size() != 1 || !found->values.empty())
    return about(info, piece, "something else than one tensor is stored there");
  const TorchTensor& tensor = found->tensors.front();
  bool fits = tensor.info.dtype == info.dtype && tensor.info.shape.size() == piece.box.dims;
  for (uint32_t d = 0; fits && d < piece.box.dims; ++d)
    fits = tensor.info.shape[d] == piece.box.extent(d);
  if (!fits) return about(info, piece, fmt::format("{} is stored there", to_string(tensor.info)));
  return PieceView{piece.box, tensor.strides, part.subspan(tensor.offset, tensor.size_bytes)};
}

// A narrow box of a wide piece touches nearly every page of it, and each of them is our memory
// until it is given back. So the box is halved until its elements lie close together.
void Checkpoint::copy_in_parts(const PieceView& from, const Box& to_box, std::span<std::byte> to,
                               size_t element_bytes) {
  std::vector<Box> rest = {tensor::intersect(from.box, to_box)};
  while (!rest.empty()) {
    const Box part = rest.back();
    rest.pop_back();
    uint64_t first = 0;
    uint64_t last = 0;
    uint32_t widest = 0;
    const auto reach = [&](uint32_t d) { return (part.extent(d) - 1) * from.strides[d]; };
    for (uint32_t d = 0; d < part.dims; ++d) {
      first += (part.begin[d] - from.box.begin[d]) * from.strides[d];
      last += reach(d);
      if (reach(d) > reach(widest)) widest = d;
    }
    const uint64_t touched = (last + 1) * element_bytes;
    if (touched > pages_bytes_max_ / 2 && last > 0) {
      Box second = part;
      second.begin[widest] += part.extent(widest) / 2;
      rest.push_back(second);
      rest.push_back(part);
      rest.back().end[widest] = second.begin[widest];
      continue;
    }
    copy_common({part, from.strides, from.elements.subspan(first * element_bytes)}, to_box, to,
                element_bytes);
    pages_bytes_ += touched + kFaultBytes;
    if (pages_bytes_ < pages_bytes_max_ / 2) continue;
    contents_.files.release_pages();
    pages_bytes_ = 0;
  }
}

Status Checkpoint::read(size_t tensor, const Box& box, std::span<std::byte> to) {
  const TensorInfo& info = tensors_[tensor];
  const size_t element_bytes = size_of(info.dtype);
  PLIANT_CHECK(box.dims == info.shape.size() && tensor::contains(tensor::whole(info.shape), box),
               "a box of the tensor is read");
  PLIANT_CHECK(to.size() == tensor::volume(box) * element_bytes, "the destination fits the box");
  if (tensor::is_empty(box)) return {};
  for (const StoredPiece& piece : contents_.tensors[tensor].pieces) {
    if (!tensor::overlap(piece.box, box) || tensor::is_empty(piece.box)) continue;
    std::shared_ptr<const MappedFile> mapped;
    const auto from = view(info, piece, mapped);
    if (!from.ok()) return from.error();
    copy_in_parts(*from, box, to, element_bytes);
  }
  return {};
}

Result<std::vector<std::byte>> Checkpoint::read_whole(size_t tensor) {
  std::vector<std::byte> bytes(tensors_[tensor].bytes());
  PLIANT_TRY(read(tensor, tensor::whole(tensors_[tensor].shape), bytes));
  return bytes;
}

Status Checkpoint::check_files() {
  const auto check = [&](uint32_t file, uint64_t offset, std::optional<uint64_t> size) -> Status {
    const auto mapped = contents_.files.map(file);
    if (!mapped.ok()) return mapped.error();
    const Bytes all = (*mapped)->bytes();
    const uint64_t length = size.value_or(all.size());
    if (offset > all.size() || length > all.size() - offset)
      return invalid(fmt::format("{} is cut: it has {} bytes, and one of its parts ends at {}",
                                 (*mapped)->path(), all.size(), offset + length));
    if (const Status good = check_torch_file(all.subspan(offset, length)); !good.ok())
      return invalid(
          fmt::format("{}, from offset {}: {}", (*mapped)->path(), offset, good.error().message));
    (*mapped)->release_pages();
    return {};
  };
  if (format() == CheckpointFormat::kTorchFile ||
      format() == CheckpointFormat::kDeepSpeedUniversal) {
    for (uint32_t file = 0; file < contents_.files.size(); ++file)
      PLIANT_TRY(check(file, 0, std::nullopt));
  }
  for (const StoredTensor& tensor : contents_.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      if (piece.encoding == PieceEncoding::kTorchSave)
        PLIANT_TRY(check(piece.file, piece.offset, piece.size_bytes));
    }
  }
  return {};
}

}  // namespace pliant::store
