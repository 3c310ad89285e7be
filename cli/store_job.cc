#include "cli/store_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/job_client.h"
#include "cli/progress_line.h"
#include "pliant/base/bytes.h"
#include "pliant/base/checksum.h"
#include "pliant/runtime/store_client.h"
#include "pliant/runtime/store_http.h"
#include "pliant/store/atomic_file.h"
#include "pliant/store/checkpoint.h"
#include "pliant/store/checkpoint_writer.h"
#include "pliant/store/vault.h"

namespace pliant::cli {
namespace {

using store::Box;
using store::TensorInfo;
using store::Vault;
using store::Version;

constexpr uint64_t kCopyBytesMax = uint64_t{16} << 20;
// For a version to be handed over; nobody else writes to it.
constexpr Duration kPutDeadline = std::chrono::seconds(60);

constexpr const char* kExplanation = R"(Examples:
  pliant store ls --job train /                              versions
  pliant store ls --job train /newest                        tensors of one
  pliant store get --job train /120/model.weight > weight    its elements, row-major
  pliant store get --job train /120/model.weight --box 0:4,8:16 -o part
  pliant store get --job train /newest -o model.safetensors  all tensors of a version
  pliant store put --job train /121 model.safetensors        a version out of a checkpoint

The path is /STEP/TENSOR; STEP is a number, or newest. Only commands on the job's own machine reach
its store. With -H, or --host here, each host has one of its own.)";

// "/120/model.weight"
struct StorePath {
  std::optional<uint64_t> step;
  std::string tensor;
};

Result<StorePath> parse_path(const std::string& text) {
  if (!text.starts_with('/'))
    return invalid(
        fmt::format("'{}' is no path in the store of a job: write /, /STEP or /STEP/TENSOR", text));
  StorePath path;
  const size_t slash = text.find('/', 1);
  const std::string step = text.substr(1, slash == std::string::npos ? slash : slash - 1);
  if (step.empty()) {
    if (text.size() > 1) return invalid(fmt::format("'{}' names no step", text));
    return path;
  }
  const auto number = parse_step(step);
  if (!number) return number.error();
  path.step = *number;
  if (slash != std::string::npos) path.tensor = text.substr(slash + 1);
  return path;
}

Result<StoreClient> client_for(const StoreJobArguments& arguments) {
  const auto job = choose({.job = arguments.job, .endpoint = ""});
  if (!job) return job.error();
  std::vector<std::string> hosts;
  for (const JobStore& store : job->stores) {
    if (arguments.host.empty() || arguments.host == store.host)
      return StoreClient(StorePlace{store.name, store.job, store.token, store.number});
    hosts.push_back(store.host);
  }
  if (hosts.empty())
    return invalid(fmt::format("job {} has no host on this machine; ask on its hosts", job->job));
  return invalid(fmt::format("job {} has no host '{}' on this machine; it has {}", job->job,
                             arguments.host, fmt::join(hosts, ", ")));
}

// The version that the path names; the newest if it names none.
Result<Version::Shared> fetch(const StoreJobArguments& arguments, const StorePath& path) {
  const auto client = client_for(arguments);
  if (!client) return client.error();
  return client->fetch(path.step.value_or(Vault::kNewest), now() + kCallDeadline);
}

int list_versions(const StoreJobArguments& arguments) {
  const auto client = client_for(arguments);
  if (!client) return report(client.error());
  const auto versions = client->list(now() + kCallDeadline);
  if (!versions) return report(versions.error());
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text = fmt::format("{:>12}  {:>6}  {:>6}  {:>8}  {:>10}\n", "STEP", "EPOCH", "PARTS",
                                 "TENSORS", "MEMORY");
  for (const StoreSummary& version : *versions) {
    list.push_back({{"step", version.step},
                    {"epoch", version.epoch},
                    {"parts", version.parts},
                    {"tensors", version.tensors},
                    {"memory_bytes", version.memory_bytes}});
    text += fmt::format("{:>12}  {:>6}  {:>6}  {:>8}  {:>10}\n", version.step, version.epoch,
                        version.parts, version.tensors, human_bytes(version.memory_bytes));
  }
  return print(arguments.json ? list.dump(2) + "\n" : text).ok() ? 0 : kFailed;
}

int list_tensors(const Version& version, const std::string& only) {
  size_t widest = 4;
  for (const TensorInfo& info : version.tensors().tensors())
    widest = std::max(widest, info.name.size());
  std::string text = fmt::format("{:<{}}  {:<8}  {:>10}  {:>6}  {}\n", "NAME", widest, "DTYPE",
                                 "SIZE", "PIECES", "SHAPE");
  for (size_t i = 0; i < version.tensors().size(); ++i) {
    const TensorInfo& info = version.tensors()[i];
    if (!only.empty() && info.name != only) continue;
    text += fmt::format("{:<{}}  {:<8}  {:>10}  {:>6}  {}\n", printable(info.name), widest,
                        to_string(info.dtype), human_bytes(info.bytes()), version.pieces(i).size(),
                        tensor::shape_text(info.shape));
  }
  return print(text).ok() ? 0 : kFailed;
}

// Where elements go: a file that appears when it is complete, or standard output.
class Sink final {
 public:
  static Result<Sink> open(const StoreJobArguments& arguments, uint64_t bytes) {
    Sink sink;
    if (arguments.file.empty() || arguments.file == "-") return sink;
    auto file = store::AtomicFile::create(
        arguments.file, bytes,
        arguments.force ? store::Existing::kReplace : store::Existing::kRefuse);
    if (!file) return file.error();
    sink.file_ = std::move(*file);
    return sink;
  }
  Status write(uint64_t offset, Bytes bytes) {
    if (file_) return file_->write(bytes, offset);
    return print({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  Status finish() { return file_ ? file_->commit() : Status(); }

 private:
  std::unique_ptr<store::AtomicFile> file_;
};

Status get_tensor(const StoreJobArguments& arguments, const Version& version,
                  const std::string& name) {
  const auto number = version.find(name);
  if (!number) return number.error();
  const TensorInfo& info = version.tensors()[*number];
  auto box = arguments.box.empty() ? Result<Box>(tensor::whole(info.shape))
                                   : parse_box(arguments.box, info);
  if (!box) return box.error();
  if (arguments.file.empty() && isatty(STDOUT_FILENO) == 1)
    return invalid("elements are not for a terminal: give -o FILE, or send them on with > or |");
  const uint64_t size = size_of(info.dtype);
  auto sink = Sink::open(arguments, volume(*box) * size);
  if (!sink) return sink.error();
  std::vector<std::byte> buffer;
  const auto copy = [&](const Box& run, uint64_t place) -> Status {
    buffer.resize(volume(run) * size);
    PLIANT_TRY(version.read(*number, run, buffer));
    return sink->write(place * size, buffer);
  };
  PLIANT_TRY(store::for_each_run(*box, kCopyBytesMax / size, copy));
  return sink->finish();
}

Status get_version(const StoreJobArguments& arguments, const Version& version) {
  if (arguments.file.empty() || arguments.file == "-" || !arguments.box.empty())
    return invalid("a whole version goes into a safetensors file: give -o FILE, or a tensor");
  store::WriteSource source;
  source.tensors = version.tensors().tensors();
  source.read = [&](size_t number, const Box& box, std::span<std::byte> to) {
    return version.read(number, box, to);
  };
  ProgressLine line("get");
  const auto written = store::write_checkpoint(
      source, arguments.file,
      {.existing = arguments.force ? store::Existing::kReplace : store::Existing::kRefuse,
       .progress = [&](uint64_t done, uint64_t total) { line.show(done, total); }});
  if (!written) return written.error();
  return {};
}

int get(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  const auto version = fetch(arguments, *path);
  if (!version) return report(version.error());
  const Status got = path->tensor.empty() ? get_version(arguments, **version)
                                          : get_tensor(arguments, **version, path->tensor);
  return got.ok() ? 0 : report(got.error());
}

// All tensors of a checkpoint in one block of memory.
Result<store::VaultPart> part_of(store::Checkpoint& checkpoint) {
  store::VaultPart part;
  part.manifest.tensors = checkpoint.tensors().tensors();
  for (uint32_t i = 0; i < part.manifest.tensors.size(); ++i)
    part.manifest.pieces.push_back({i, tensor::whole(part.manifest.tensors[i].shape), 0, 0});
  PLIANT_TRY(place_pieces(part.manifest));
  PLIANT_TRY(check(part.manifest));
  auto draft = store::VaultDraft::make(part.manifest.memory_bytes);
  if (!draft) return draft.error();
  std::vector<std::byte> buffer;
  ProgressLine line("put");
  for (const store::ManifestPiece& piece : part.manifest.pieces) {
    const uint64_t size = size_of(part.manifest.tensors[piece.tensor].dtype);
    const auto copy = [&](const Box& run, uint64_t place) -> Status {
      buffer.resize(volume(run) * size);
      PLIANT_TRY(checkpoint.read(piece.tensor, run, buffer));
      line.show(piece.offset + place * size, part.manifest.memory_bytes);
      return draft->write(piece.offset + place * size, buffer);
    };
    PLIANT_TRY(store::for_each_run(piece.box, kCopyBytesMax / size, copy));
  }
  auto memory = draft->seal();
  if (!memory) return memory.error();
  part.memory = std::move(*memory);
  for (store::ManifestPiece& piece : part.manifest.pieces)
    piece.checksum =
        checksum64(part.memory->bytes().subspan(piece.offset, part.manifest.piece_bytes(piece)));
  return part;
}

int put(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  if (!path->step || *path->step == Vault::kNewest || !path->tensor.empty())
    return report(invalid("put makes a whole version: the path is /STEP, with a number"));
  const auto client = client_for(arguments);
  if (!client) return report(client.error());
  const auto checkpoint = store::Checkpoint::open(arguments.file);
  if (!checkpoint) return report(checkpoint.error());
  const auto part = part_of(**checkpoint);
  if (!part) return report(part.error());
  const Status put = client->hand_over({.step = *path->step}, *part, now() + kPutDeadline);
  return put.ok() ? 0 : report(put.error());
}

}  // namespace

int list_store(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  if (!path->step) return list_versions(arguments);
  const auto version = fetch(arguments, *path);
  if (!version) return report(version.error());
  if (!path->tensor.empty())
    if (const auto found = (*version)->find(path->tensor); !found) return report(found.error());
  if (arguments.json) return print(version_json(**version, true) + "\n").ok() ? 0 : kFailed;
  return list_tensors(**version, path->tensor);
}

int stat_store(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  const auto fetched = fetch(arguments, *path);
  if (!fetched) return report(fetched.error());
  const Version& version = **fetched;
  if (path->tensor.empty()) {
    if (arguments.json) return print(version_json(version, false) + "\n").ok() ? 0 : kFailed;
    return print(fmt::format("step {}: epoch {}, {} parts, {} tensors of {}, {} of memory\n",
                             version.step(), version.epoch(), version.parts().size(),
                             version.tensors().size(), human_bytes(version.tensors().bytes()),
                             human_bytes(version.memory_bytes())))
                   .ok()
               ? 0
               : kFailed;
  }
  const auto number = version.find(path->tensor);
  if (!number) return report(number.error());
  const auto covered = version.covered(*number);
  if (!covered) return report(covered.error());
  const TensorInfo& info = version.tensors()[*number];
  std::string text =
      fmt::format("{}: {}, {}, {} of {} elements on this host\n", printable(info.name),
                  to_string(info), human_bytes(info.bytes()), *covered, info.elements());
  for (const Version::Piece& piece : version.pieces(*number))
    text += fmt::format("{:016x}  {:>10}  {}\n", piece.checksum, human_bytes(piece.elements.size()),
                        to_string(piece.box));
  return print(text).ok() ? 0 : kFailed;
}

int verify_store(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  const auto version = fetch(arguments, *path);
  if (!version) return report(version.error());
  const Instant began = now();
  const Status sound = (*version)->verify();
  if (!sound.ok()) return report(sound.error());
  return print(fmt::format("step {}: sound; {} tensors, {}, {:.1f} s\n", (*version)->step(),
                           (*version)->tensors().size(), human_bytes((*version)->memory_bytes()),
                           seconds(now() - began)))
                 .ok()
             ? 0
             : kFailed;
}

void add_store_job_options(CLI::App& command, StoreJobArguments& arguments) {
  auto* const job = command.add_option("--job", arguments.job,
                                       "Name of a running job or pid of its launcher; the path is "
                                       "then one in its store: /, /STEP or /STEP/TENSOR");
  command.add_option("--host", arguments.host, "Host of that job (default: the first)")->needs(job);
}

void add_store_job_commands(CLI::App& store, int& exit_code) {
  const auto arguments = std::make_shared<StoreJobArguments>();
  const auto add = [&](const char* name, const char* what, int (*act)(const StoreJobArguments&)) {
    CLI::App* const part = store.add_subcommand(name, what);
    part->footer(kExplanation);
    add_store_job_options(*part, *arguments);
    part->get_option("--job")->required();
    part->add_option("path", arguments->path, "/STEP or /STEP/TENSOR")->required();
    part->callback([arguments, act, &exit_code] { exit_code = act(*arguments); });
    return part;
  };
  CLI::App* const getting = add("get", "Copy a tensor or a version out of a running job", get);
  getting->add_option("-o,--output", arguments->file, "File to write (default: standard output)");
  getting->add_option("--box", arguments->box, "Only this range, as in 0:4,8:16");
  getting->add_flag("--force", arguments->force, "Replace the file if there is one");
  add("put", "Make a version in a running job out of a checkpoint", put)
      ->add_option("file", arguments->file, "File or folder of a checkpoint")
      ->required();
}

}  // namespace pliant::cli
