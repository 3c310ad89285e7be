#include "cli/store_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/job_client.h"
#include "cli/progress_line.h"
#include "pliant/base/bytes.h"
#include "pliant/base/checksum.h"
#include "pliant/runtime/job_report.h"
#include "pliant/runtime/store_client.h"
#include "pliant/runtime/store_gather.h"
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

The path is /STEP/TENSOR; STEP is a number, or newest. Each host of the job has a store of its own:
without --host, ls, stat and verify ask all of them, get takes what it needs from wherever it is,
and put goes to the first.)";

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

// A host of the job and the way to its store; nothing if its agent is not there.
struct JobHost {
  std::string name;
  std::optional<StoreClient> client;
};

Error gone(const std::string& host) {
  return {Code::kPeerLost, fmt::format("host '{}' is gone, or has not come yet", host), {}, {}};
}

// Where the stores of other machines are, and those of this one for readers of several.
Result<std::vector<StoreReport>> ask_stores(const JobEntry& job) {
  const auto body = ask(job, "GET", "/v1/stores");
  if (!body) return body.error();
  return parse_stores(*body);
}

// All hosts, or the one that was asked for, which is then there.
Result<std::vector<JobHost>> hosts_for(const StoreJobArguments& arguments) {
  const auto job = choose({.job = arguments.job, .endpoint = ""});
  if (!job) return job.error();
  std::vector<std::string> names;
  std::vector<JobStore> chosen;
  for (const JobStore& store : job->stores) {
    names.push_back(store.host);
    if (arguments.host.empty() || arguments.host == store.host) chosen.push_back(store);
  }
  if (chosen.empty())
    return invalid(fmt::format("job {} has no host '{}'; it has {}", job->job, arguments.host,
                               fmt::join(names, ", ")));
  const bool here = chosen.size() == 1 && !chosen[0].name.empty();
  const auto reports =
      here ? Result<std::vector<StoreReport>>(std::vector<StoreReport>()) : ask_stores(*job);
  if (!reports) return reports.error();
  std::vector<JobHost> hosts;
  for (const JobStore& store : chosen) {
    JobHost& host = hosts.emplace_back(JobHost{store.host, std::nullopt});
    StorePlace place{store.name, store.job, store.token, store.number, "", store.host};
    for (const StoreReport& report : *reports)
      if (report.host == store.number) place.endpoint = report.transfer;
    if (!place.name.empty() || !place.endpoint.empty()) host.client.emplace(std::move(place));
  }
  if (hosts.size() == 1 && !hosts[0].client) return gone(hosts[0].name);
  return hosts;
}

// What each host answers. Those that cannot be asked are named on standard error; an error if none
// answers.
template <typename T>
Result<std::vector<std::pair<std::string, T>>> ask_each(
    const StoreJobArguments& arguments, const std::function<Result<T>(const StoreClient&)>& call) {
  const auto hosts = hosts_for(arguments);
  if (!hosts) return hosts.error();
  std::vector<std::pair<std::string, T>> answers;
  std::vector<Error> problems;
  for (const JobHost& host : *hosts) {
    auto answer = host.client ? call(*host.client) : Result<T>(gone(host.name));
    if (answer) {
      answers.emplace_back(host.name, std::move(*answer));
    } else {
      problems.push_back(answer.error());
    }
  }
  if (answers.empty()) return problems.front();
  // One that has no such version is not missing.
  for (const Error& problem : problems)
    if (problem.code != Code::kInvalid) report(problem);
  return answers;
}

// These ranges, or all of it, of the version that the path names, from the hosts that have it.
Result<Version::Shared> fetch(const StoreJobArguments& arguments, const StorePath& path,
                              std::span<const StoreRange> wanted) {
  const auto hosts = hosts_for(arguments);
  if (!hosts) return hosts.error();
  const uint64_t step = path.step.value_or(Vault::kNewest);
  if (hosts->size() == 1 && hosts->front().client->place().endpoint.empty())
    return hosts->front().client->fetch(step, now() + kCallDeadline);
  std::vector<StoreClient> clients;
  for (const JobHost& host : *hosts)
    if (host.client) clients.push_back(*host.client);
  return gather({.step = step,
                 .wanted = wanted,
                 .base = nullptr,
                 .own = nullptr,
                 .others = clients,
                 .deadline = now() + kCallDeadline});
}

int show(const std::string& text) { return print(text).ok() ? 0 : kFailed; }

int list_versions(const StoreJobArguments& arguments) {
  const auto answers = ask_each<std::vector<StoreSummary>>(
      arguments, [](const StoreClient& client) { return client.list(now() + kCallDeadline); });
  if (!answers) return report(answers.error());
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text = fmt::format("{:>12}  {:>6}  {:>6}  {:>8}  {:>10}  {}\n", "STEP", "EPOCH",
                                 "PARTS", "TENSORS", "MEMORY", "HOST");
  for (const auto& [host, versions] : *answers) {
    for (const StoreSummary& version : versions) {
      list.push_back(to_json(host, version));
      text += fmt::format("{:>12}  {:>6}  {:>6}  {:>8}  {:>10}  {}\n", version.step, version.epoch,
                          version.parts, version.tensors, human_bytes(version.memory_bytes),
                          printable(host));
    }
  }
  return show(arguments.json ? list.dump(2) + "\n" : text);
}

// Of one host an object, of several a list of them.
std::string json_text(const std::vector<VersionOutline>& versions) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const VersionOutline& version : versions) list.push_back(to_json(version));
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  return (versions.size() == 1 ? list[0] : list).dump(-1, ' ', false, replace) + "\n";
}

// What each host has of the version; of one tensor alone if the path names one, which some has.
Result<std::vector<VersionOutline>> outlines(const StoreJobArguments& arguments,
                                             const StorePath& path) {
  const auto answers = ask_each<StoreLook>(arguments, [&](const StoreClient& client) {
    return client.look(path.step.value_or(Vault::kNewest), now() + kCallDeadline);
  });
  if (!answers) return answers.error();
  std::vector<VersionOutline> versions;
  bool found = path.tensor.empty();
  for (const auto& [host, look] : *answers) {
    VersionOutline version = outline_of(host, look);
    if (!path.tensor.empty())
      std::erase_if(version.tensors,
                    [&](const auto& tensor) { return tensor.info.name != path.tensor; });
    found = found || !version.tensors.empty();
    versions.push_back(std::move(version));
  }
  if (!found)
    return invalid(fmt::format("step {} has no tensor '{}'", versions[0].step, path.tensor));
  return versions;
}

int list_tensors(const std::vector<VersionOutline>& versions) {
  size_t widest = 4;
  for (const VersionOutline& version : versions)
    for (const auto& tensor : version.tensors) widest = std::max(widest, tensor.info.name.size());
  constexpr const char* kRow = "{:<{}}  {:<8}  {:>10}  {:>6}  {:>12}  {:<12}  {}\n";
  std::string text = fmt::format(fmt::runtime(kRow), "NAME", widest, "DTYPE", "SIZE", "PIECES",
                                 "STEP", "HOST", "SHAPE");
  for (const VersionOutline& version : versions)
    for (const auto& tensor : version.tensors)
      text += fmt::format(fmt::runtime(kRow), printable(tensor.info.name), widest,
                          to_string(tensor.info.dtype), human_bytes(tensor.info.bytes()),
                          tensor.pieces.size(), version.step, printable(version.host),
                          tensor::shape_text(tensor.info.shape));
  return show(text);
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

// The range that is wanted, for which the tensor's shape must be known, of the newest step that has
// the tensor, if the path does not say which.
Result<StoreRange> range_of(const StoreJobArguments& arguments, StorePath& path) {
  const auto versions = outlines(arguments, path);
  if (!versions) return versions.error();
  const VersionOutline* newest = nullptr;
  const auto age = [](const VersionOutline& v) { return std::pair(v.epoch, v.step); };
  for (const VersionOutline& version : *versions)
    if (!version.tensors.empty() && (newest == nullptr || age(version) > age(*newest)))
      newest = &version;
  path.step = newest->step;
  StoreRange range{path.tensor};
  if (arguments.box.empty()) return range;
  const auto box = parse_box(arguments.box, newest->tensors[0].info);
  if (!box) return box.error();
  range.box = *box;
  return range;
}

int get(const StoreJobArguments& arguments) {
  auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  std::vector<StoreRange> wanted;
  if (!path->tensor.empty()) {
    auto range = range_of(arguments, *path);
    if (!range) return report(range.error());
    wanted.push_back(std::move(*range));
  }
  const auto version = fetch(arguments, *path, wanted);
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
  const auto hosts = hosts_for(arguments);
  if (!hosts) return report(hosts.error());
  const JobHost& host = hosts->front();
  if (!host.client) return report(gone(host.name));
  const auto checkpoint = store::Checkpoint::open(arguments.file);
  if (!checkpoint) return report(checkpoint.error());
  const auto part = part_of(**checkpoint);
  if (!part) return report(part.error());
  const Status put = host.client->hand_over({.step = *path->step}, *part, now() + kPutDeadline);
  return put.ok() ? 0 : report(put.error());
}

std::string stat_text(const VersionOutline& version) {
  uint64_t bytes = 0;
  for (const auto& tensor : version.tensors) bytes += tensor.info.bytes();
  return fmt::format("step {} on host {}: epoch {}, {} parts, {} tensors of {}, {} of memory\n",
                     version.step, printable(version.host), version.epoch, version.parts,
                     version.tensors.size(), human_bytes(bytes), human_bytes(version.memory_bytes));
}

// The part of a tensor that the pieces hold, in elements.
uint64_t covered(const VersionOutline::Tensor& tensor) {
  std::vector<Box> rest = {tensor::whole(tensor.info.shape)};
  for (const auto& piece : tensor.pieces) {
    std::vector<Box> next;
    for (const Box& part : rest) subtract(part, piece.box, next);
    std::swap(rest, next);
  }
  uint64_t missing = 0;
  for (const Box& part : rest) missing += volume(part);
  return tensor.info.elements() - missing;
}

std::string pieces_text(const VersionOutline& version) {
  std::string text;
  for (const auto& tensor : version.tensors) {
    text += fmt::format("{}: {}, {}, {} of {} elements on host {}\n", printable(tensor.info.name),
                        to_string(tensor.info), human_bytes(tensor.info.bytes()), covered(tensor),
                        tensor.info.elements(), printable(version.host));
    for (const auto& piece : tensor.pieces)
      text += fmt::format("{:016x}  {:>10}  {}\n", piece.checksum, human_bytes(piece.bytes),
                          to_string(piece.box));
  }
  return text;
}

struct Verified {
  VersionOutline outline;
  Status sound;
  double seconds = 0;
};

// Of another machine's store piece by piece, so that no more than one is here at a time; each is
// compared with its checksum when it arrives.
Status verify_pieces(const StoreClient& client, const StoreLook& look) {
  uint32_t number = 0;
  for (const StoreOutline& part : look.parts) {
    if (!part.held) continue;
    for (uint32_t i = 0; i < part.manifest.pieces.size(); ++i) {
      const auto pulled =
          client.pull({look.step, look.epoch, {{number, i}}}, now() + kCallDeadline);
      if (!pulled) return pulled.error();
      if (pulled->manifest.pieces[0].checksum != part.manifest.pieces[i].checksum)
        return invalid(fmt::format("step {} has been replaced meanwhile", look.step));
    }
    ++number;
  }
  return {};
}

Result<Verified> verify_on(const StoreClient& client, uint64_t step) {
  const Instant began = now();
  const auto look = client.look(step, now() + kCallDeadline);
  if (!look) return look.error();
  Verified verified{outline_of("", *look), {}, 0};
  if (client.place().endpoint.empty()) {
    const auto version = client.fetch(look->step, now() + kCallDeadline);
    if (!version) return version.error();
    verified.sound = (*version)->verify();
  } else {
    verified.sound = verify_pieces(client, *look);
  }
  verified.seconds = seconds(now() - began);
  return verified;
}

}  // namespace

int list_store(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  if (!path->step) return list_versions(arguments);
  const auto versions = outlines(arguments, *path);
  if (!versions) return report(versions.error());
  return arguments.json ? show(json_text(*versions)) : list_tensors(*versions);
}

int stat_store(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  const auto versions = outlines(arguments, *path);
  if (!versions) return report(versions.error());
  if (arguments.json) return show(json_text(*versions));
  std::string text;
  for (const VersionOutline& version : *versions)
    text += path->tensor.empty() ? stat_text(version) : pieces_text(version);
  return show(text);
}

int verify_store(const StoreJobArguments& arguments) {
  const auto path = parse_path(arguments.path);
  if (!path) return report(path.error());
  const uint64_t step = path->step.value_or(Vault::kNewest);
  const auto answers = ask_each<Verified>(
      arguments, [&](const StoreClient& client) { return verify_on(client, step); });
  if (!answers) return report(answers.error());
  std::string text;
  for (const auto& [host, verified] : *answers) {
    if (!verified.sound.ok()) return report(verified.sound.error());
    text += fmt::format("step {} on host {}: sound; {} tensors, {}, {:.1f} s\n",
                        verified.outline.step, printable(host), verified.outline.tensors.size(),
                        human_bytes(verified.outline.memory_bytes), verified.seconds);
  }
  return show(text);
}

void add_store_job_options(CLI::App& command, StoreJobArguments& arguments) {
  auto* const job = command.add_option("--job", arguments.job,
                                       "Name of a running job or pid of its launcher; the path is "
                                       "then one in its store: /, /STEP or /STEP/TENSOR");
  command
      .add_option("--host", arguments.host,
                  "Host of that job (default: all of them; put: the first)")
      ->needs(job);
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
