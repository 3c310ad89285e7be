#include "pliant/store/reshard_run.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "pliant/store/reshard.h"
#include "pliant/store/reshard_journal.h"
#include "pliant/store/reshard_local.h"
#include "pliant/store/safetensors_folder.h"
#include "pliant/store/verify.h"
#include "pliant/tensor/layout_json.h"

namespace pliant::store {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBufferBytesMax = uint64_t{32} << 20;  // more makes nothing faster

std::string without_slashes_at_end(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The path without links, as far as it exists.
std::string plain(const std::string& path) {
  std::error_code code;
  const fs::path found = fs::weakly_canonical(fs::absolute(path, code), code);
  return without_slashes_at_end(code ? path : found.string());
}

bool is_inside(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder == "/" ? folder : folder + "/");
}

// What a source looks like from outside; it changes when somebody writes to it.
uint64_t state_of(const std::string& path) {
  std::error_code code;
  const bool is_index = path.ends_with(".json");
  const fs::path root = is_index ? fs::path(path).parent_path() : fs::path(path);
  std::vector<std::string> lines;
  const auto add = [&](const fs::path& file) {
    struct stat about {};
    if (stat(file.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return;
    lines.push_back(fmt::format("{} {} {}.{}\n", file.string(), about.st_size, about.st_mtim.tv_sec,
                                about.st_mtim.tv_nsec));
  };
  if (!fs::is_directory(root, code)) add(root);
  for (fs::recursive_directory_iterator it(root, code), end; !code && it != end; it.increment(code))
    add(it->path());
  std::ranges::sort(lines);
  uint64_t digest = 0;
  for (const std::string& line : lines) digest = hash64(line, digest);
  return digest;
}

// RunningChecksum of a file, or nothing if it is not there or not of that size.
std::optional<uint64_t> checksum_of(const std::string& path, uint64_t size_bytes) {
  constexpr uint64_t kPartBytes = uint64_t{1} << 20;
  const auto file = MappedFile::open(path);
  if (!file.ok() || (*file)->bytes().size() != size_bytes) return std::nullopt;
  RunningChecksum checksum;
  for (uint64_t at = 0; at < size_bytes; at += kPartBytes) {
    checksum.add((*file)->bytes().subspan(at, std::min(kPartBytes, size_bytes - at)));
    (*file)->release_pages();
  }
  return checksum.finish();
}

class ReshardRun final {
 public:
  ReshardRun(Checkpoint& source, const tensor::Layout& layout, const std::string& destination,
             const ReshardOptions& options)
      : checkpoint_(source),
        layout_(layout),
        layout_text_(to_json(tensor::LayoutDocument{layout.spec(), layout.collection()})),
        destination_(without_slashes_at_end(destination)),
        folder_(destination_ + ".partial"),
        options_(options) {}

  ~ReshardRun() {
    // A folder in which nothing is complete is of no use.
    std::error_code ignored;
    if (journal_ && !published_ && kept_.empty() && written_files_ == 0)
      fs::remove_all(folder_, ignored);
  }
  ReshardRun(const ReshardRun&) = delete;
  ReshardRun& operator=(const ReshardRun&) = delete;

  Result<ReshardReport> run() {
    PLIANT_TRY(check());
    PLIANT_TRY(plan());
    for (size_t i = 0; i < layout_.collection().size(); ++i)
      numbers_.push_back(*checkpoint_.tensors().find(layout_.collection()[i].name));
    PLIANT_TRY(open_folder());
    if (const Status written = write(); !written.ok()) return with_hint(written.error());
    if (options_.verify == ReshardOptions::Verify::kYes)
      PLIANT_TRY(is_local() ? verify_arrays() : verify_tensors());
    PLIANT_TRY(publish_folder(folder_, destination_, options_.existing));
    published_ = true;
    std::error_code ignored;
    fs::remove(destination_ + "/" + kJournalName, ignored);
    return report();
  }

 private:
  struct File {
    PlannedFile plan;
    uint64_t bytes = 0;  // of elements
    Rank rank = 0;       // of arrays
  };

  Status check() {
    if (options_.memory_bytes < ReshardOptions::kMemoryBytesMin)
      return invalid(fmt::format("{} of memory are too few; give at least {}",
                                 human_bytes(options_.memory_bytes),
                                 human_bytes(ReshardOptions::kMemoryBytesMin)));
    if (layout_.collection().size() == 0) return invalid("there are no tensors to write");
    PLIANT_TRY(check_same_tensors(layout_.collection(), checkpoint_.tensors()));
    const std::string from = plain(checkpoint_.path());
    const std::string to = plain(destination_);
    // Both are cleared or replaced, and the source must not be in them.
    if (is_inside(from, to) || is_inside(from, plain(folder_)) || is_inside(to, from))
      return invalid(
          fmt::format("{} and {} lie in each other, or one is the unfinished other; choose another "
                      "destination",
                      checkpoint_.path(), destination_));
    PLIANT_TRY(check_free(destination_, options_.existing));
    std::error_code code;
    if (fs::exists(destination_, code) && !fs::is_directory(destination_, code))
      return invalid(fmt::format("{} is no folder; name another destination", destination_));
    return {};
  }

  bool is_local() const { return options_.files == ReshardOptions::Files::kArrays; }

  Status plan() {
    if (!is_local()) {
      auto files = plan_rank_files(layout_, options_.shard_bytes_max);
      if (!files.ok()) return files.error();
      for (PlannedFile& file : *files) {
        const uint64_t bytes = bytes_of(file);
        files_.push_back({std::move(file), bytes, 0});
      }
    }
    for (Rank rank = 0; is_local() && rank < static_cast<Rank>(layout_.mesh().size()); ++rank) {
      const auto local = LocalArrays::make(layout_, rank);
      if (!local.ok()) return local.error();
      files_.push_back({{local_file_name(rank), {}}, local->bytes(), rank});
    }
    for (const File& file : files_) total_ += file.bytes;
    return {};
  }

  ReshardRequest request() const {
    return {.source = plain(checkpoint_.path()),
            .source_state = state_of(checkpoint_.path()),
            .layout = hash64(layout_text_),
            .shard_bytes_max = options_.shard_bytes_max,
            .kind = is_local() ? "arrays" : "pieces"};
  }

  // Makes the folder, or finds in it what is complete.
  Status open_folder() {
    std::error_code code;
    if (!fs::create_directory(folder_, code)) {
      if (code) return invalid(fmt::format("cannot create {}: {}", folder_, code.message()));
      if (!fs::exists(folder_ + "/" + kJournalName, code) && !fs::is_empty(folder_, code))
        return invalid(fmt::format("{} is not of an interrupted reshard; move it away", folder_));
    }
    auto journal = ReshardJournal::open(folder_ + "/" + kJournalName);
    if (!journal.ok()) return journal.error();
    if (options_.unfinished == ReshardOptions::Unfinished::kRestart)
      PLIANT_TRY((*journal)->clear());
    const ReshardRequest wanted = request();
    if ((*journal)->text().empty()) {
      PLIANT_TRY((*journal)->append(encode(wanted)));
    } else {
      PLIANT_TRY(keep_files((*journal)->text(), wanted));
    }
    journal_ = std::move(*journal);
    return remove_others();
  }

  // An interrupted run has left files; those that are as they were written need not be written
  // again.
  Status keep_files(const std::string& text, const ReshardRequest& wanted) {
    const auto contents = decode_journal(text);
    if (!contents.ok())
      return invalid(fmt::format("{}/{}: {}; begin anew with --restart", folder_, kJournalName,
                                 contents.error().message));
    if (const std::string how = difference(contents->request, wanted); !how.empty())
      return invalid(
          fmt::format("{} is an interrupted reshard {}; finish it with the same arguments, or give "
                      "it up and begin anew with --restart",
                      folder_, how));
    std::map<std::string, WrittenFile> complete;
    for (const WrittenFile& file : contents->files) complete[file.name] = file;
    for (const auto& [file, bytes, rank] : files_) {
      const auto found = complete.find(file.name);
      if (found == complete.end()) continue;
      const WrittenFile& was = found->second;
      if (checksum_of(folder_ + "/" + file.name, was.size_bytes) == was.checksum) {
        kept_.insert(file.name);
      } else {
        warnings_.push_back(
            fmt::format("{}/{} is not as it was written; it is written again", folder_, file.name));
      }
    }
    return {};
  }

  // What was being written when the run before was interrupted.
  Status remove_others() {
    std::error_code code;
    std::vector<fs::path> others;
    for (fs::directory_iterator it(folder_, code), end; !code && it != end; it.increment(code)) {
      const std::string name = it->path().filename().string();
      if (name != kJournalName && !kept_.contains(name)) others.push_back(it->path());
    }
    for (const fs::path& path : others) {
      if (!code) fs::remove_all(path, code);
    }
    if (code) return invalid(fmt::format("cannot clear {}: {}", folder_, code.message()));
    return {};
  }

  uint64_t bytes_of(const PlannedFile& file) const {
    uint64_t bytes = 0;
    for (const PlannedPiece& piece : file.pieces)
      bytes += tensor::volume(piece.box) * size_of(layout_.collection()[piece.tensor].dtype);
    return bytes;
  }

  Status check_space(uint64_t needed) const {
    std::error_code code;
    const fs::space_info space = fs::space(folder_, code);
    if (code || space.available >= needed) return {};
    return invalid(fmt::format("{} needs {} more, and its file system has {} left", folder_,
                               human_bytes(needed), human_bytes(space.available)));
  }

  Status write() {
    for (const File& file : files_) kept_bytes_ += kept_.contains(file.plan.name) ? file.bytes : 0;
    PLIANT_TRY(check_space(total_ - kept_bytes_));
    checkpoint_.bound_pages(options_.memory_bytes / 2);
    PLIANT_TRY(is_local() ? write_arrays() : write_pieces());
    PLIANT_TRY(put(kLayoutFileName, layout_text_));
    const std::vector<StoredValue>& values = checkpoint_.values();
    if (!values.empty()) PLIANT_TRY(put(kValuesFileName, encode_values(values)));
    return {};
  }

  Status read_tensor(size_t tensor, const Box& box, std::span<std::byte> to) {
    return checkpoint_.read(numbers_[tensor], box, to);
  }

  WriteOptions write_options() {
    return {.memory_bytes = options_.memory_bytes / 2,
            .progress = [this, before = bytes_moved_](uint64_t done, uint64_t) {
              if (options_.written) options_.written(kept_bytes_ + before + done, total_);
            }};
  }

  Status write_pieces() {
    const WriteSource source{.tensors = layout_.collection().tensors(),
                             .read = [this](size_t tensor, const Box& box, auto to) {
                               return read_tensor(tensor, box, to);
                             }};
    const WriteOptions how = write_options();
    PlannedFileWriter writer(source, how);
    for (const File& file : files_) {
      if (kept_.contains(file.plan.name)) continue;
      PLIANT_TRY(write_one(writer, file, file.plan, sharding_metadata(source, file.plan)));
    }
    return {};
  }

  Status write_arrays() {
    for (const File& file : files_) {
      if (kept_.contains(file.plan.name)) continue;
      const auto local = LocalArrays::make(layout_, file.rank);
      if (!local.ok()) return local.error();
      const WriteSource source{.tensors = local->arrays(),
                               .read = [&](size_t array, const Box& box, auto to) {
                                 return read_array(*local, array, box, to);
                               }};
      PlannedFile all{.name = file.plan.name, .pieces = {}};
      for (size_t i = 0; i < source.tensors.size(); ++i)
        all.pieces.push_back({i, tensor::whole(source.tensors[i].shape)});
      const WriteOptions how = write_options();
      PlannedFileWriter writer(source, how);
      PLIANT_TRY(write_one(writer, file, all,
                           {{"format", "pt"}, {"pliant_rank", std::to_string(file.rank)}}));
    }
    return {};
  }

  // A run of an array in row-major order.
  Status read_array(const LocalArrays& local, size_t array, const Box& run,
                    std::span<std::byte> to) {
    const Coordinates strides = tensor::strides_of(local.arrays()[array].shape);
    uint64_t first = 0;
    for (uint32_t d = 0; d < run.dims; ++d) first += run.begin[d] * strides[d];
    return local.read(array, first, to, [this](size_t tensor, const Box& box, auto part) {
      return read_tensor(tensor, box, part);
    });
  }

  Status write_one(PlannedFileWriter& writer, const File& file, const PlannedFile& plan,
                   std::map<std::string, std::string> metadata) {
    const std::string path = folder_ + "/" + plan.name;
    PLIANT_TRY(writer.write_file(path, plan, std::move(metadata), Existing::kReplace));
    std::error_code code;
    const uint64_t size_bytes = fs::file_size(path, code);
    if (code) return invalid(fmt::format("cannot look at {}: {}", path, code.message()));
    PLIANT_TRY(
        journal_->append(encode(WrittenFile{plan.name, size_bytes, writer.file_checksum()})));
    ++written_files_;
    bytes_moved_ += file.bytes;
    return {};
  }

  Status put(const char* name, const std::string& text) const {
    return write_file(folder_ + "/" + name, std::as_bytes(std::span(text)), Existing::kReplace);
  }

  Error with_hint(Error error) const {
    if (!kept_.empty() || written_files_ > 0)
      error.message += fmt::format(
          "; {} of {} files are complete in {}: the same command continues there (it needs {})",
          kept_.size() + written_files_, files_.size(), folder_,
          human_bytes(total_ - kept_bytes_ - bytes_moved_));
    return error;
  }

  // Compares what two functions read of a tensor, or of an array.
  using ReadPart = std::function<Status(const Box& box, std::span<std::byte> to)>;
  Status compare(const TensorInfo& info, const ReadPart& wanted, const ReadPart& found) {
    if (buffer_.empty())
      buffer_.resize(
          std::min({kBufferBytesMax, options_.memory_bytes / 4, std::max<uint64_t>(total_, 8)}));
    RunningChecksum before;
    RunningChecksum after;
    const auto add = [&](const Box& box, uint64_t) -> Status {
      const auto part = std::span(buffer_).first(tensor::volume(box) * size_of(info.dtype));
      PLIANT_TRY(wanted(box, part));
      before.add(part);
      PLIANT_TRY(found(box, part));
      after.add(part);
      compared_ += part.size();
      if (options_.compared) options_.compared(compared_, total_);
      return {};
    };
    PLIANT_TRY(for_each_run(tensor::whole(info.shape), buffer_.size() / size_of(info.dtype), add));
    if (before.finish() == after.finish()) return {};
    return invalid(
        fmt::format("tensor '{}' differs between {} and what was written to {}; is a disk failing? "
                    "Begin anew with --restart",
                    info.name, checkpoint_.path(), folder_));
  }

  Result<std::unique_ptr<Checkpoint>> open_written(const std::string& path) {
    auto written = Checkpoint::open(path);
    checkpoint_.bound_pages(options_.memory_bytes / 4);
    if (written.ok()) (*written)->bound_pages(options_.memory_bytes / 4);
    return written;
  }

  Result<size_t> find(const Checkpoint& written, const TensorInfo& info) const {
    const auto number = written.tensors().find(info.name);
    if (!number || written.tensors()[*number] != info)
      return invalid(
          fmt::format("{} has no tensor '{}', {}", written.path(), info.name, to_string(info)));
    return *number;
  }

  // Reads the new files as anybody would, and compares each tensor with the source.
  Status verify_tensors() {
    const auto written = open_written(folder_);
    if (!written.ok()) return written.error();
    for (size_t i = 0; i < layout_.collection().size(); ++i) {
      const TensorInfo& info = layout_.collection()[i];
      const auto number = find(**written, info);
      if (!number.ok()) return number.error();
      PLIANT_TRY(compare(
          info, [&](const Box& box, auto to) { return read_tensor(i, box, to); },
          [&](const Box& box, auto to) { return (*written)->read(*number, box, to); }));
    }
    return {};
  }

  Status verify_arrays() {
    for (const File& file : files_) {
      const auto local = LocalArrays::make(layout_, file.rank);
      if (!local.ok()) return local.error();
      const auto written = open_written(folder_ + "/" + file.plan.name);
      if (!written.ok()) return written.error();
      for (size_t i = 0; i < local->arrays().size(); ++i) {
        const TensorInfo& info = local->arrays()[i];
        const auto number = find(**written, info);
        if (!number.ok()) return number.error();
        PLIANT_TRY(compare(
            info, [&](const Box& box, auto to) { return read_array(*local, i, box, to); },
            [&](const Box& box, auto to) { return (*written)->read(*number, box, to); }));
      }
    }
    return {};
  }

  ReshardReport report() {
    ReshardReport report{.tensors = layout_.collection().size(),
                         .files = files_.size(),
                         .files_kept = kept_.size(),
                         .bytes = total_,
                         .bytes_moved = bytes_moved_,
                         .warnings = std::move(warnings_)};
    if (!is_local())
      std::ranges::move(torch_warnings(layout_.collection().tensors()),
                        std::back_inserter(report.warnings));
    return report;
  }

  Checkpoint& checkpoint_;
  const tensor::Layout& layout_;
  const std::string layout_text_;
  const std::string destination_;
  const std::string folder_;
  const ReshardOptions& options_;

  std::vector<File> files_;
  std::vector<size_t> numbers_;  // in the checkpoint, of each tensor of the layout
  std::unique_ptr<ReshardJournal> journal_;
  std::set<std::string> kept_;
  uint64_t written_files_ = 0;
  uint64_t total_ = 0;  // bytes of all files
  uint64_t kept_bytes_ = 0;
  uint64_t bytes_moved_ = 0;
  uint64_t compared_ = 0;
  std::vector<std::byte> buffer_;
  bool published_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace

Result<ReshardReport> reshard(Checkpoint& source, const tensor::Layout& layout,
                              const std::string& destination, const ReshardOptions& options) {
  return ReshardRun(source, layout, destination, options).run();
}

}  // namespace pliant::store
