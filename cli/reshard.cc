#include "cli/reshard.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/job_client.h"
#include "cli/progress_line.h"
#include "cli/reshard_target.h"
#include "pliant/base/bytes.h"
#include "pliant/base/time.h"
#include "pliant/store/checkpoint.h"
#include "pliant/store/reshard_run.h"

namespace pliant::cli {
namespace {

constexpr const char* kExplanation = R"(Examples:
  pliant reshard model.safetensors tp4/ --model llama3-8b --to tp=4,pp=2
  pliant reshard run/ out/ --layout new.json       a layout in JSON: see docs/TENSORS.md
  pliant reshard tp4/ tp8/ --to tp=8               what was resharded before knows its layout
  pliant reshard run/ out/ --model gpt3-xl --to dp=4,tp=2,zero=1 --memory 64M --verify

Reads what `pliant convert` reads. The destination gets one file or more for each rank, with the
pieces that this rank holds (what several ranks hold is in the files of the first), layout.json, and
pliant_values.json if there are values that are no tensors. Stock torch loads and reshards it. Axes
that --to does not name have size 1. With --rank-files it gets rank-RRRRR.safetensors for every rank
instead: the arrays that this rank has in memory, replicas, flat ranges and padding included.
Until all is complete it is written to DESTINATION.partial. After an interruption, a crash or a full
disk the same command continues there; files that are complete are verified and kept. --force
replaces a destination that exists, in one step, at the very end.
Exit code 0: done; 1: it failed, and the destination is as it was; 2: usage, or a layout that does
not fit.
The JSON object has: source, destination, format_from, ranks, tensors, files, files_kept, bytes,
bytes_moved (what this run read and wrote), verified, seconds, warnings.)";

struct Arguments {
  std::string source;
  std::string destination;
  TargetArguments target;
  std::string max_shard = "5G";
  std::string memory = "256M";
  bool rank_files = false;
  bool verify = false;
  bool restart = false;
  bool force = false;
  bool json = false;
};

int show(const Arguments& arguments, const store::Checkpoint& from, const tensor::Layout& layout,
         const store::ReshardReport& done, double time) {
  if (arguments.json) {
    const nlohmann::ordered_json object = {{"source", arguments.source},
                                           {"destination", arguments.destination},
                                           {"format_from", to_string(from.format())},
                                           {"ranks", layout.mesh().size()},
                                           {"tensors", done.tensors},
                                           {"files", done.files},
                                           {"files_kept", done.files_kept},
                                           {"bytes", done.bytes},
                                           {"bytes_moved", done.bytes_moved},
                                           {"verified", arguments.verify},
                                           {"seconds", time},
                                           {"warnings", done.warnings}};
    const auto text = object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return print(text + "\n").ok() ? 0 : kFailed;
  }
  for (const std::string& warning : done.warnings)
    fmt::print(stderr, "pliant reshard: {}\n", printable(warning));
  std::string text =
      fmt::format("{}: {} tensors, {} for {} rank{} in {} file{}", arguments.destination,
                  done.tensors, human_bytes(done.bytes), layout.mesh().size(),
                  layout.mesh().size() == 1 ? "" : "s", done.files, done.files == 1 ? "" : "s");
  if (done.files_kept > 0) text += fmt::format(" ({} of them kept)", done.files_kept);
  text += fmt::format(", {:.1f} s{}\n", time, arguments.verify ? ", verified" : "");
  return print(text).ok() ? 0 : kFailed;
}

int reshard(const Arguments& arguments) {
  const auto max_shard = parse_bytes(arguments.max_shard);
  if (!max_shard.ok() || *max_shard == 0)
    return usage("reshard", "--max-shard takes a size, like 5G");
  const auto memory = parse_bytes(arguments.memory);
  if (!memory.ok()) return usage("reshard", "--memory takes a size, like 256M");
  const Instant began = now();
  auto from = store::Checkpoint::open(arguments.source);
  if (!from.ok()) return report(from.error());
  const auto layout = target_layout(arguments.target, **from);
  if (!layout.ok()) return usage("reshard", layout.error().message);
  std::optional<ProgressLine> line(std::in_place, "reshard");
  bool comparing = false;
  using Options = store::ReshardOptions;
  const Options options{
      .shard_bytes_max = *max_shard,
      .memory_bytes = *memory,
      .existing = arguments.force ? store::Existing::kReplace : store::Existing::kRefuse,
      .unfinished =
          arguments.restart ? Options::Unfinished::kRestart : Options::Unfinished::kContinue,
      .files = arguments.rank_files ? Options::Files::kArrays : Options::Files::kPieces,
      .verify = arguments.verify ? Options::Verify::kYes : Options::Verify::kNo,
      .written = [&](uint64_t bytes, uint64_t total) { line->show(bytes, total); },
      .compared =
          [&](uint64_t bytes, uint64_t total) {
            if (!std::exchange(comparing, true)) line.emplace("verify");
            line->show(bytes, total);
          }};
  const auto done = store::reshard(**from, *layout, arguments.destination, options);
  line.reset();
  if (!done.ok()) return report(done.error());
  return show(arguments, **from, *layout, *done, seconds(now() - began));
}

}  // namespace

void add_reshard(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("reshard", "Write a checkpoint on disk for another parallelism");
  command->footer(kExplanation);
  const auto arguments = std::make_shared<Arguments>();
  TargetArguments& target = arguments->target;
  command->add_option("source", arguments->source, "file or folder to read")->required();
  command->add_option("destination", arguments->destination, "folder to write")->required();
  command->add_option("--to", target.to, "sizes of axes: tp=4,pp=2");
  command->add_option("--model", target.model, "the model whose state it is");
  command->add_option("--layout", target.layout, "or a layout, as JSON");
  command->add_option("--slots", target.slots, "ranks on each host (default 8)");
  command->add_flag("--allow-missing", target.allow_missing,
                    "the model's tensors need not all be there");
  command->add_option("--max-shard", arguments->max_shard, "bytes of a file (default 5G)");
  command->add_option("--memory", arguments->memory, "bytes of memory (default 256M)");
  command->add_flag("--rank-files", arguments->rank_files,
                    "instead, for each rank a file of the arrays in its memory");
  command->add_flag("--verify", arguments->verify, "read everything again and compare");
  command->add_flag("--restart", arguments->restart, "give up what an interrupted run has done");
  command->add_flag("--force", arguments->force, "replace a destination that exists");
  command->add_flag("--json", arguments->json, "one JSON object instead of text");
  command->callback([arguments, &exit_code] { exit_code = reshard(*arguments); });
}

}  // namespace pliant::cli
