#include "cli/store_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/job_client.h"
#include "cli/progress_line.h"
#include "cli/store_job.h"
#include "pliant/base/bytes.h"
#include "pliant/base/dtype.h"
#include "pliant/base/time.h"
#include "pliant/store/checkpoint.h"
#include "pliant/store/verify.h"
#include "pliant/tensor/pattern.h"

namespace pliant::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExplanation = R"(Examples:
  pliant store ls model.safetensors             tensors and values
  pliant store ls checkpoint/ --json            the same for programs
  pliant store stat checkpoint/                 how much of which type
  pliant store verify checkpoint/ --checksums   reads everything; equal checksums are equal tensors
  pliant store ls --job train /newest           what a running job keeps; see `pliant store get -h`

PATH is a safetensors file or folder, a file of torch.save, a torch DCP checkpoint or a DeepSpeed
universal checkpoint. Nothing in it is executed. Exit code 0: it is sound; 1: it cannot be read or
is damaged, and the message names the tensor, the file and the offset.)";

struct Arguments {
  std::string path;
  std::vector<std::string> select;
  bool json = false;
  bool checksums = false;
  bool not_numbers = false;
  StoreJobArguments job = {};
};

int put(const Json& object) {
  const auto text = object.dump(2, ' ', false, Json::error_handler_t::replace);
  return print(text + "\n").ok() ? 0 : kFailed;
}

Json head_of(const store::Checkpoint& checkpoint) {
  return {{"path", checkpoint.path()},
          {"format", to_string(checkpoint.format())},
          {"files", checkpoint.files()},
          {"bytes", checkpoint.tensors().bytes()}};
}

int list_json(const store::Checkpoint& checkpoint, const std::vector<size_t>& numbers) {
  Json object = head_of(checkpoint);
  object["tensors"] = Json::array();
  for (const size_t i : numbers) {
    const tensor::TensorInfo& info = checkpoint.tensors()[i];
    object["tensors"].push_back({{"name", info.name},
                                 {"dtype", to_string(info.dtype)},
                                 {"shape", info.shape},
                                 {"bytes", info.bytes()},
                                 {"pieces", checkpoint.pieces(i).size()}});
  }
  object["values"] = Json::object();
  for (const store::StoredValue& value : checkpoint.values())
    object["values"][value.name] = Json::parse(value.json, nullptr, false);
  return put(object);
}

int list(const Arguments& arguments) {
  const auto opened = store::Checkpoint::open(arguments.path);
  if (!opened.ok()) return report(opened.error());
  const store::Checkpoint& checkpoint = **opened;
  const auto numbers = tensor::select(checkpoint.tensors(), arguments.select);
  if (!numbers.ok()) return report(numbers.error());
  if (arguments.json) return list_json(checkpoint, *numbers);
  size_t widest = 4;
  for (const size_t i : *numbers) widest = std::max(widest, checkpoint.tensors()[i].name.size());
  std::string text =
      fmt::format("{:<{}}  {:<8}  {:>10}  {}\n", "NAME", widest, "DTYPE", "SIZE", "SHAPE");
  for (const size_t i : *numbers) {
    const tensor::TensorInfo& info = checkpoint.tensors()[i];
    text += fmt::format("{:<{}}  {:<8}  {:>10}  {}\n", printable(info.name), widest,
                        to_string(info.dtype), human_bytes(info.bytes()),
                        tensor::shape_text(info.shape));
  }
  constexpr size_t kShownMax = 100;
  for (const store::StoredValue& value : checkpoint.values()) {
    std::string shown = printable(value.json);
    if (shown.size() > kShownMax) shown = shown.substr(0, kShownMax) + "...";
    text += fmt::format("{} = {}\n", printable(value.name), shown);
  }
  return print(text).ok() ? 0 : kFailed;
}

struct Share {
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

int stat(const Arguments& arguments) {
  const auto opened = store::Checkpoint::open(arguments.path);
  if (!opened.ok()) return report(opened.error());
  const store::Checkpoint& checkpoint = **opened;
  std::array<Share, kDTypes> shares{};
  for (const tensor::TensorInfo& info : checkpoint.tensors().tensors()) {
    Share& share = shares[static_cast<size_t>(info.dtype)];
    ++share.tensors;
    share.elements += info.elements();
    share.bytes += info.bytes();
  }
  Json object = head_of(checkpoint);
  object["tensors"] = checkpoint.tensors().size();
  object["values"] = checkpoint.values().size();
  object["dtypes"] = Json::object();
  std::string text =
      fmt::format("{}: {}, {} file{}, {} tensors, {} values, {}\n", checkpoint.path(),
                  to_string(checkpoint.format()), checkpoint.files(),
                  checkpoint.files() == 1 ? "" : "s", checkpoint.tensors().size(),
                  checkpoint.values().size(), human_bytes(checkpoint.tensors().bytes()));
  for (size_t i = 0; i < shares.size(); ++i) {
    const Share& share = shares[i];
    if (share.tensors == 0) continue;
    const char* const name = to_string(static_cast<DType>(i));
    object["dtypes"][name] = {
        {"tensors", share.tensors}, {"elements", share.elements}, {"bytes", share.bytes}};
    text += fmt::format("{:<8}  {:>8} tensors  {:>16} elements  {:>10}\n", name, share.tensors,
                        share.elements, human_bytes(share.bytes));
  }
  if (arguments.json) return put(object);
  return print(text).ok() ? 0 : kFailed;
}

int show_verdicts(const store::Checkpoint& checkpoint, const Arguments& arguments,
                  const std::vector<store::TensorVerdict>& verdicts, double time) {
  store::NotNumbers all;
  Json object = head_of(checkpoint);
  object["tensors"] = Json::array();
  std::string text;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const std::string& name = checkpoint.tensors()[i].name;
    const store::NotNumbers& found = verdicts[i].not_numbers;
    all.nan += found.nan;
    all.infinite += found.infinite;
    const std::string checksum = fmt::format("{:016x}", verdicts[i].checksum);
    object["tensors"].push_back({{"name", name}, {"checksum", checksum}});
    if (arguments.not_numbers) {
      object["tensors"].back()["nan"] = found.nan;
      object["tensors"].back()["infinite"] = found.infinite;
    }
    if (arguments.checksums) text += fmt::format("{}  {}\n", checksum, printable(name));
    if (found.nan + found.infinite > 0)
      text += fmt::format("{}: {} NaN, {} infinite\n", printable(name), found.nan, found.infinite);
  }
  object["seconds"] = time;
  if (arguments.json) return put(object);
  text += fmt::format("{}: sound; {} tensors, {}, {:.1f} s\n", checkpoint.path(), verdicts.size(),
                      human_bytes(checkpoint.tensors().bytes()), time);
  if (arguments.not_numbers)
    text += fmt::format("{} NaN, {} infinite in all\n", all.nan, all.infinite);
  return print(text).ok() ? 0 : kFailed;
}

int verify(const Arguments& arguments) {
  const Instant began = now();
  const auto opened = store::Checkpoint::open(arguments.path);
  if (!opened.ok()) return report(opened.error());
  std::vector<store::TensorVerdict> verdicts;
  {
    ProgressLine line("verify");
    auto verified = store::verify(
        **opened, {.count_not_numbers = arguments.not_numbers,
                   .progress = [&](uint64_t done, uint64_t total) { line.show(done, total); }});
    if (!verified.ok()) return report(verified.error());
    verdicts = std::move(*verified);
  }
  return show_verdicts(**opened, arguments, verdicts, seconds(now() - began));
}

}  // namespace

void add_store(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("store", "Look at checkpoints on disk and at the store of a running job");
  command->require_subcommand(1);
  command->footer(kExplanation);
  const auto arguments = std::make_shared<Arguments>();
  const auto add = [&](const char* name, const char* what, int (*act)(const Arguments&),
                       int (*act_on_job)(const StoreJobArguments&)) {
    CLI::App* const part = command->add_subcommand(name, what);
    part->footer(kExplanation);
    part->add_option("path", arguments->path, "file or folder of a checkpoint")->required();
    part->add_flag("--json", arguments->json, "one JSON object instead of text");
    add_store_job_options(*part, arguments->job);
    part->callback([arguments, act, act_on_job, &exit_code] {
      arguments->job.path = arguments->path;
      arguments->job.json = arguments->json;
      exit_code = arguments->job.given() ? act_on_job(arguments->job) : act(*arguments);
    });
    return part;
  };
  add("ls", "List tensors and values", list, list_store)
      ->add_option("--select", arguments->select, "only tensors whose names match; repeatable")
      ->allow_extra_args(false);
  add("stat", "Show how much of which type there is", stat, stat_store);
  CLI::App* const verifying = add("verify", "Read everything and check it", verify, verify_store);
  verifying->add_flag("--checksums", arguments->checksums, "print one for each tensor");
  verifying->add_flag("--not-numbers", arguments->not_numbers, "count NaN and infinite elements");
  add_store_job_commands(*command, exit_code);
}

}  // namespace pliant::cli
