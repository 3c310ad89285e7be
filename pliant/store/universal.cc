#include "pliant/store/universal.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "pliant/store/torch_file.h"

namespace pliant::store {
namespace {

namespace fs = std::filesystem;

// The names in a folder, in order.
Result<std::vector<std::string>> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    names.push_back(it->path().filename().string());
  if (code) return invalid(fmt::format("cannot list {}: {}", folder, code.message()));
  std::ranges::sort(names);
  return names;
}

std::string without_ending(const std::string& name) { return name.substr(0, name.rfind('.')); }

Status add_values(const std::string& path, const std::string& name, CheckpointContents& contents) {
  CheckpointContents all;
  PLIANT_TRY(add_torch_file(path, name, all));
  std::ranges::move(all.values, std::back_inserter(contents.values));
  return {};
}

// {"param": the tensor, "cat_dim": 0}: the name of the state is enough for the tensor.
void shorten_names(const std::string& name, size_t first, CheckpointContents& contents) {
  for (size_t i = first; i < contents.tensors.size(); ++i) {
    std::string& full = contents.tensors[i].info.name;
    if (full == name + ".param") full = name;
  }
}

Status add_parameter(const std::string& folder, const std::string& parameter,
                     CheckpointContents& contents) {
  const auto states = names_in(folder);
  if (!states.ok()) return states.error();
  for (const std::string& state : *states) {
    if (!state.ends_with(".pt")) continue;
    const std::string name = fmt::format("{}.{}", parameter, without_ending(state));
    const size_t first = contents.tensors.size();
    PLIANT_TRY(add_torch_file(folder + "/" + state, name, contents));
    shorten_names(name, first, contents);
  }
  return {};
}

}  // namespace

Status add_torch_file(const std::string& path, const std::string& name,
                      CheckpointContents& contents) {
  const uint32_t file = contents.files.add(path);
  const auto mapped = contents.files.map(file);
  if (!mapped.ok()) return mapped.error();
  auto found = decode_torch_file((*mapped)->bytes());
  if (!found.ok()) return invalid(fmt::format("{}: {}", path, found.error().message));
  append(std::move(*found), name, file, 0, contents);
  return {};
}

Result<CheckpointContents> open_universal(const std::string& folder) {
  CheckpointContents contents;
  contents.format = CheckpointFormat::kDeepSpeedUniversal;
  const std::string zero = folder + "/zero";
  const auto parameters = names_in(zero);
  if (!parameters.ok()) return parameters.error();
  for (const std::string& parameter : *parameters) {
    const std::string path = zero + "/" + parameter;
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      PLIANT_TRY(add_parameter(path, parameter, contents));
    } else if (parameter.ends_with(".pt")) {
      PLIANT_TRY(add_values(path, without_ending(parameter), contents));
    }
  }
  const auto others = names_in(folder);
  if (!others.ok()) return others.error();
  for (const std::string& name : *others) {
    if (name.starts_with("mp_rank_") && name.ends_with(".pt"))
      PLIANT_TRY(add_values(folder + "/" + name, without_ending(name), contents));
  }
  return contents;
}

}  // namespace pliant::store
