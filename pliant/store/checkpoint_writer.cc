#include "pliant/store/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "pliant/store/safetensors.h"
#include "pliant/store/safetensors_folder.h"

namespace pliant::store {
namespace {

constexpr uint64_t kMemoryBytesMin = uint64_t{1} << 20;
constexpr uint64_t kBufferBytesMax = uint64_t{32} << 20;  // more makes nothing faster
constexpr const char* kDcpVersion = "1.0";
// Cutting something smaller only makes headers longer.
constexpr uint64_t kCutBytesMin = uint64_t{64} << 10;

std::vector<PlannedFile> plan_sharded(const std::vector<TensorInfo>& tensors, uint64_t bytes_max) {
  std::vector<PlannedFile> files(1);
  uint64_t held = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].bytes();
    if (!files.back().pieces.empty() && (held > bytes_max || bytes > bytes_max - held)) {
      files.emplace_back();
      held = 0;
    }
    files.back().pieces.push_back({i, tensor::whole(tensors[i].shape)});
    held += bytes;
  }
  for (size_t i = 0; i < files.size(); ++i) files[i].name = sharded_name(i + 1, files.size());
  return files;
}

// As many files as are needed; tensors are cut along their first dimension, like torch.chunk does.
std::vector<PlannedFile> plan_pieces(const std::vector<TensorInfo>& tensors, uint64_t bytes_max) {
  constexpr uint64_t kFilesMax = 99'999;  // five digits
  uint64_t total = 0;
  for (const TensorInfo& info : tensors) total += info.bytes();
  const uint64_t shards = std::clamp<uint64_t>((total + bytes_max - 1) / bytes_max, 1, kFilesMax);
  std::vector<PlannedFile> files(shards);
  for (uint32_t i = 0; i < shards; ++i) files[i].name = dcp_shard_name(i + 1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& info = tensors[i];
    const Box all = tensor::whole(info.shape);
    if (info.bytes() < kCutBytesMin || info.shape.empty() || info.shape[0] < shards) {
      files[i % shards].pieces.push_back({i, all});
      continue;
    }
    const uint64_t rows = (info.shape[0] + shards - 1) / shards;
    for (uint64_t shard = 0; shard * rows < info.shape[0]; ++shard) {
      Box box = all;
      box.begin[0] = shard * rows;
      box.end[0] = std::min(info.shape[0], box.begin[0] + rows);
      files[shard].pieces.push_back({i, box});
    }
  }
  std::erase_if(files, [](const PlannedFile& file) { return file.pieces.empty(); });
  return files;
}

Status write_folder_files(PlannedFileWriter& writer, const WriteSource& source,
                          const std::string& folder, const std::vector<PlannedFile>& files,
                          CheckpointFormat format) {
  std::map<std::string, std::string> index;
  uint64_t total = 0;
  for (const PlannedFile& file : files) {
    auto metadata = format == CheckpointFormat::kDcpSafetensors
                        ? sharding_metadata(source, file)
                        : std::map<std::string, std::string>{{"format", "pt"}};
    PLIANT_TRY(
        writer.write_file(folder + "/" + file.name, file, std::move(metadata), Existing::kRefuse));
    for (const PlannedPiece& piece : file.pieces) {
      index.emplace(source.tensors[piece.tensor].name, file.name);
      total += tensor::volume(piece.box) * size_of(source.tensors[piece.tensor].dtype);
    }
  }
  const auto put = [&](const char* name, const std::string& text) {
    return write_file(folder + "/" + name, std::as_bytes(std::span(text)), Existing::kRefuse);
  };
  if (format == CheckpointFormat::kShardedSafetensors)
    PLIANT_TRY(put(kSafetensorsIndexName, encode_safetensors_index(index, total)));
  if (!source.values.empty()) PLIANT_TRY(put(kValuesFileName, encode_values(source.values)));
  return {};
}

}  // namespace

std::map<std::string, std::string> sharding_metadata(const WriteSource& source,
                                                     const PlannedFile& file) {
  std::map<std::string, std::vector<uint64_t>> offsets;
  for (const PlannedPiece& piece : file.pieces) {
    const auto& begin = piece.box.begin;
    offsets[source.tensors[piece.tensor].name].assign(begin.begin(),
                                                      begin.begin() + piece.box.dims);
  }
  return {{"format", "pt"},
          {"DCP_VERSION", kDcpVersion},
          {"DCP_SHARDING_INFO", encode_dcp_sharding(offsets)}};
}

// torch's reader knows these types of safetensors and takes every other for its default type.
std::vector<std::string> torch_warnings(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string> warnings;
  for (const TensorInfo& info : tensors) {
    switch (info.dtype) {
      case DType::kU16:
      case DType::kU32:
      case DType::kU64:
      case DType::kBool:
      case DType::kF8E4M3:
      case DType::kF8E5M2:
        warnings.push_back(
            fmt::format("tensor '{}' is {}, which torch's HuggingFaceStorageReader "
                        "(up to 2.11) does not know; other readers do",
                        info.name, to_string(info.dtype)));
        break;
      default: break;
    }
  }
  return warnings;
}

PlannedFileWriter::PlannedFileWriter(const WriteSource& source, const WriteOptions& options)
    : source_(source), options_(options) {
  for (const TensorInfo& info : source_.tensors) total_ += info.bytes();
  const uint64_t longest = std::min(options_.memory_bytes / 2, kBufferBytesMax);
  buffer_.resize(std::min(longest, std::max<uint64_t>(total_, sizeof(uint64_t))));
}

Status PlannedFileWriter::write_file(const std::string& path, const PlannedFile& file,
                                     std::map<std::string, std::string> metadata,
                                     Existing existing) {
  std::vector<TensorInfo> infos;
  std::map<std::string, const PlannedPiece*> pieces;
  for (const PlannedPiece& piece : file.pieces) {
    const TensorInfo& info = source_.tensors[piece.tensor];
    infos.push_back({info.name, info.dtype, tensor::extents_of(piece.box)});
    pieces.emplace(info.name, &piece);
  }
  auto header = plan_safetensors(std::move(infos), std::move(metadata));
  if (!header.ok()) return invalid(fmt::format("{}: {}", path, header.error().message));
  // Everything is written in the order in which it lies in the file.
  const std::string text = encode(*header);
  RunningChecksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  auto writer = SafetensorsWriter::create(path, std::move(*header), existing);
  if (!writer.ok()) return writer.error();
  const auto& entries = (*writer)->header().tensors;
  for (size_t i = 0; i < entries.size(); ++i)
    PLIANT_TRY(write_piece(**writer, i, *pieces.at(entries[i].info.name), checksum));
  file_checksum_ = checksum.finish();
  return (*writer)->finish();
}

Status PlannedFileWriter::write_piece(SafetensorsWriter& writer, size_t entry,
                                      const PlannedPiece& piece, RunningChecksum& checksum) {
  const uint64_t element = size_of(source_.tensors[piece.tensor].dtype);
  const auto copy = [&](const Box& box, uint64_t first) -> Status {
    const auto part = std::span(buffer_).first(tensor::volume(box) * element);
    PLIANT_TRY(source_.read(piece.tensor, box, part));
    PLIANT_TRY(writer.write(entry, first * element, part));
    checksum.add(part);
    done_ += part.size();
    if (options_.progress) options_.progress(done_, total_);
    return {};
  };
  return for_each_run(piece.box, buffer_.size() / element, copy);
}

std::vector<PlannedFile> plan_files(const std::vector<TensorInfo>& tensors, CheckpointFormat format,
                                    uint64_t shard_bytes_max) {
  shard_bytes_max = std::max<uint64_t>(shard_bytes_max, 1);
  if (format == CheckpointFormat::kShardedSafetensors)
    return plan_sharded(tensors, shard_bytes_max);
  if (format == CheckpointFormat::kDcpSafetensors) return plan_pieces(tensors, shard_bytes_max);
  PlannedFile file;
  for (size_t i = 0; i < tensors.size(); ++i)
    file.pieces.push_back({i, tensor::whole(tensors[i].shape)});
  return {file};
}

Result<WriteReport> write_checkpoint(const WriteSource& source, const std::string& path,
                                     const WriteOptions& options) {
  if (options.memory_bytes < kMemoryBytesMin)
    return invalid(fmt::format("{} of memory are too few; give at least {}",
                               human_bytes(options.memory_bytes), human_bytes(kMemoryBytesMin)));
  if (source.tensors.empty()) return invalid("there are no tensors to write");
  // Early, so that hours of work are not lost to it; what counts is decided when all is written.
  PLIANT_TRY(check_free(path, options.existing));
  const auto files = plan_files(source.tensors, options.format, options.shard_bytes_max);
  PlannedFileWriter writer(source, options);
  if (options.format == CheckpointFormat::kSafetensors) {
    auto metadata = metadata_of(source.values);
    metadata.try_emplace("format", "pt");  // some readers insist on it
    PLIANT_TRY(writer.write_file(path, files.front(), std::move(metadata), options.existing));
  } else if (options.format == CheckpointFormat::kShardedSafetensors ||
             options.format == CheckpointFormat::kDcpSafetensors) {
    auto folder = AtomicFolder::create(path, options.existing);
    if (!folder.ok()) return folder.error();
    PLIANT_TRY(write_folder_files(writer, source, (*folder)->temporary(), files, options.format));
    PLIANT_TRY((*folder)->commit());
  } else {
    return invalid(fmt::format("{} can be read, not written", to_string(options.format)));
  }
  WriteReport report{
      .files = files.size(), .tensors = source.tensors.size(), .bytes = writer.done()};
  if (options.format == CheckpointFormat::kDcpSafetensors)
    report.warnings = torch_warnings(source.tensors);
  return report;
}

}  // namespace pliant::store
