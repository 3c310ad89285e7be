#include "cli/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/job_client.h"
#include "cli/progress_line.h"
#include "pliant/base/bytes.h"
#include "pliant/base/time.h"
#include "pliant/store/checkpoint.h"
#include "pliant/store/checkpoint_writer.h"
#include "pliant/tensor/pattern.h"

namespace pliant::cli {
namespace {

using store::CheckpointFormat;

constexpr const char* kExplanation = R"(Examples:
  pliant convert model.pt model.safetensors                one file
  pliant convert run/ model/ --to sharded --max-shard 2G   files of whole tensors, and an index
  pliant convert run/ pieces/ --to dcp-safetensors         pieces that stock torch can reshard
  pliant convert run/ w.safetensors --select 'model.*'     some of the tensors

Reads: safetensors (one file, sharded with an index, or with torch DCP's sharding metadata), files
of torch.save, torch DCP checkpoints, DeepSpeed universal checkpoints. Nothing in them is executed.
Values that are no tensors are kept: in the metadata of a single safetensors file, otherwise in
pliant_values.json. The destination appears when it is complete; until then, and whatever fails,
what was there before stays. Exit code 0: done; 1: it failed, and nothing was changed; 2: usage.
The JSON object has: source, destination, format_from, format_to, files, tensors, bytes, seconds,
warnings.)";

struct Arguments {
  std::string source;
  std::string destination;
  std::string to = "safetensors";
  std::string max_shard = "5G";
  std::string memory = "256M";
  std::vector<std::string> select;
  bool force = false;
  bool json = false;
};

std::optional<CheckpointFormat> parse_format(const std::string& text) {
  if (text == "safetensors") return CheckpointFormat::kSafetensors;
  if (text == "sharded") return CheckpointFormat::kShardedSafetensors;
  if (text == "dcp-safetensors") return CheckpointFormat::kDcpSafetensors;
  return std::nullopt;
}

// The tensors of the source that are wanted, and how to read them by their new numbers.
Result<store::WriteSource> select(store::Checkpoint& from,
                                  const std::vector<std::string>& patterns) {
  auto numbers = tensor::select(from.tensors(), patterns);
  if (!numbers.ok())
    return invalid(
        fmt::format("--select: {}; see: pliant store ls {}", numbers.error().message, from.path()));
  store::WriteSource source;
  for (const size_t i : *numbers) source.tensors.push_back(from.tensors()[i]);
  if (source.tensors.empty()) return invalid(fmt::format("{} has no tensors", from.path()));
  source.values = from.values();
  source.read = [&from, numbers = std::move(*numbers)](size_t tensor, const tensor::Box& box,
                                                       std::span<std::byte> to) {
    return from.read(numbers[tensor], box, to);
  };
  return source;
}

int show(const Arguments& arguments, const store::Checkpoint& from, CheckpointFormat format,
         const store::WriteReport& done, double time) {
  if (arguments.json) {
    const nlohmann::ordered_json object = {{"source", arguments.source},
                                           {"destination", arguments.destination},
                                           {"format_from", to_string(from.format())},
                                           {"format_to", to_string(format)},
                                           {"files", done.files},
                                           {"tensors", done.tensors},
                                           {"bytes", done.bytes},
                                           {"seconds", time},
                                           {"warnings", done.warnings}};
    const auto text = object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return print(text + "\n").ok() ? 0 : kFailed;
  }
  for (const std::string& warning : done.warnings)
    fmt::print(stderr, "pliant convert: {}\n", printable(warning));
  const std::string text = fmt::format("{}: {} tensors, {} in {} file{}, {:.1f} s\n",
                                       arguments.destination, done.tensors, human_bytes(done.bytes),
                                       done.files, done.files == 1 ? "" : "s", time);
  return print(text).ok() ? 0 : kFailed;
}

int convert(const Arguments& arguments) {
  const auto format = parse_format(arguments.to);
  if (!format)
    return usage(
        "convert",
        fmt::format("--to takes safetensors, sharded or dcp-safetensors, not '{}'", arguments.to));
  const auto max_shard = parse_bytes(arguments.max_shard);
  if (!max_shard.ok() || *max_shard == 0)
    return usage("convert", "--max-shard takes a size, like 5G");
  const auto memory = parse_bytes(arguments.memory);
  if (!memory.ok()) return usage("convert", "--memory takes a size, like 256M");
  const Instant began = now();
  auto from = store::Checkpoint::open(arguments.source);
  if (!from.ok()) return report(from.error());
  const auto source = select(**from, arguments.select);
  if (!source.ok()) return report(source.error());
  ProgressLine line("convert");
  const auto done = store::write_checkpoint(
      *source, arguments.destination,
      {.format = *format,
       .shard_bytes_max = *max_shard,
       .memory_bytes = *memory,
       .existing = arguments.force ? store::Existing::kReplace : store::Existing::kRefuse,
       .progress = [&](uint64_t bytes, uint64_t total) { line.show(bytes, total); }});
  if (!done.ok()) return report(done.error());
  return show(arguments, **from, *format, *done, seconds(now() - began));
}

}  // namespace

void add_convert(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("convert", "Write a checkpoint on disk in another format");
  command->footer(kExplanation);
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("source", arguments->source, "file or folder to read")->required();
  command->add_option("destination", arguments->destination, "file or folder to write")->required();
  command->add_option("--to", arguments->to, "safetensors (default), sharded or dcp-safetensors");
  command->add_option("--max-shard", arguments->max_shard, "bytes of a file (default 5G)");
  command->add_option("--memory", arguments->memory, "bytes of memory (default 256M)");
  command->add_option("--select", arguments->select, "only tensors whose names match; repeatable")
      ->allow_extra_args(false);
  command->add_flag("--force", arguments->force, "replace a destination that exists");
  command->add_flag("--json", arguments->json, "one JSON object instead of text");
  command->callback([arguments, &exit_code] { exit_code = convert(*arguments); });
}

}  // namespace pliant::cli
