#include "cli/plan_request.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "pliant/base/bytes.h"
#include "pliant/base/dtype.h"
#include "pliant/base/text.h"
#include "pliant/tensor/layout_json.h"
#include "pliant/tensor/mesh.h"
#include "pliant/tensor/presets.h"

namespace pliant::cli {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;

Result<Rank> parse_rank(std::string_view text) {
  Rank rank = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc{} || stop != text.data() + text.size() || rank < 0 ||
      static_cast<uint32_t>(rank) >= tensor::Mesh::kRanksMax)
    return invalid(fmt::format("'{}' is no rank", text.substr(0, 40)));
  return rank;
}

Result<tensor::LayoutDocument> load_document(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return text.error();
  auto document = tensor::parse_layout(*text);
  if (!document) return invalid(fmt::format("{}: {}", path, document.error().message));
  return document;
}

using SharedCollection = std::shared_ptr<const tensor::Collection>;

Result<tensor::Layout> make_layout(tensor::LayoutSpec spec, const SharedCollection& collection,
                                   const std::string& where) {
  auto layout = tensor::Layout::make(std::move(spec), collection);
  if (!layout) return invalid(fmt::format("{}: {}", where, layout.error().message));
  return layout;
}

Result<PlanLayouts> load_files(const std::vector<std::string>& files) {
  auto from = load_document(files[0]);
  if (!from) return from.error();
  auto to = load_document(files[1]);
  if (!to) return to.error();
  if (!from->collection && !to->collection)
    return invalid(
        fmt::format("neither {} nor {} says which tensors there are; give 'tensors' or "
                    "'model' in one of them",
                    files[0], files[1]));
  const auto share = [](const std::optional<tensor::Collection>& own,
                        const std::optional<tensor::Collection>& other) {
    return std::make_shared<const tensor::Collection>(own ? *own : *other);
  };
  auto old_layout =
      make_layout(std::move(from->spec), share(from->collection, to->collection), files[0]);
  if (!old_layout) return old_layout.error();
  auto new_layout =
      make_layout(std::move(to->spec), share(to->collection, from->collection), files[1]);
  if (!new_layout) return new_layout.error();
  return PlanLayouts{std::move(*old_layout), std::move(*new_layout)};
}

Result<tensor::LayoutSpec> spec_of(const tensor::Model& model, const std::string& sizes,
                                   uint32_t slots) {
  const auto parallelism = tensor::parse_parallelism(sizes);
  if (!parallelism) return parallelism.error();
  return tensor::make_spec(model, *parallelism, slots);
}

Result<PlanLayouts> load_model(const PlanArguments& arguments) {
  const auto model = tensor::find_model(arguments.model);
  if (!model) return invalid("--model: " + model.error().message);
  const auto dtype = parse_dtype(arguments.dtype);
  if (!dtype) return invalid("--dtype: " + dtype.error().message);
  auto state = tensor::make_state(*model, *dtype);
  if (!state) return invalid("--dtype: " + state.error().message);
  if (arguments.from.empty() || arguments.to.empty())
    return invalid(
        "--model needs --from and --to, the sizes of axes: --from dp=8,tp=8 --to "
        "dp=8,tp=16");
  const auto collection = std::make_shared<const tensor::Collection>(std::move(*state));
  auto from = spec_of(*model, arguments.from, arguments.slots);
  if (!from) return invalid("--from: " + from.error().message);
  auto to = spec_of(*model, arguments.to, arguments.slots);
  if (!to) return invalid("--to: " + to.error().message);
  auto old_layout = make_layout(std::move(*from), collection, "--from");
  if (!old_layout) return old_layout.error();
  auto new_layout = make_layout(std::move(*to), collection, "--to");
  if (!new_layout) return new_layout.error();
  return PlanLayouts{std::move(*old_layout), std::move(*new_layout)};
}

}  // namespace

Result<std::vector<Rank>> parse_ranks(std::string_view text) {
  std::vector<Rank> ranks;
  for (const std::string& item : comma_separated(text)) {
    const size_t dash = item.find('-');
    const auto first = parse_rank(std::string_view(item).substr(0, dash));
    if (!first) return first.error();
    const auto last = parse_rank(dash == std::string::npos ? item : item.substr(dash + 1));
    if (!last) return last.error();
    if (*last < *first) return invalid(fmt::format("'{}' ends before it begins", item));
    for (Rank rank = *first; rank <= *last; ++rank) ranks.push_back(rank);
    if (ranks.size() > tensor::Mesh::kRanksMax) return invalid("more ranks than there can be");
  }
  return ranks;
}

Result<std::vector<Rank>> parse_members(std::string_view text) {
  std::vector<Rank> members;
  for (const std::string& item : comma_separated(text)) {
    if (item == "-") {
      members.push_back(tensor::kNewcomer);
      continue;
    }
    const auto rank = parse_rank(item);
    if (!rank) return rank.error();
    members.push_back(*rank);
  }
  return members;
}

Result<std::string> read_text(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return invalid(fmt::format("{} is a folder; give a file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) return system_error(path);
  file.seekg(0, std::ios::end);
  const auto end = static_cast<int64_t>(file.tellg());
  file.seekg(0);
  if (end < 0 || static_cast<uint64_t>(end) > kFileBytesMax)
    return invalid(
        fmt::format("{} is larger than {}, or no plain file", path, human_bytes(kFileBytesMax)));
  std::string text(static_cast<size_t>(end), '\0');
  file.read(text.data(), end);
  if (file.gcount() != end) return invalid(fmt::format("{} could not be read to its end", path));
  return text;
}

Result<PlanLayouts> load_layouts(const PlanArguments& arguments) {
  const bool is_model = !arguments.model.empty();
  const bool has_sizes = !arguments.from.empty() || !arguments.to.empty();
  if (is_model == !arguments.files.empty() || (!is_model && has_sizes))
    return invalid("give two layouts, A.json B.json, or --model with --from and --to");
  if (is_model) return load_model(arguments);
  if (arguments.files.size() != 2) return invalid("give two layouts: the old one and the new one");
  return load_files(arguments.files);
}

Result<tensor::PlanOptions> plan_options(const PlanArguments& arguments) {
  tensor::PlanOptions options;
  if (arguments.remap && !arguments.members.empty())
    return invalid("--remap chooses what --members gives; use one of them");
  if (arguments.remap) options.choice = tensor::PlanOptions::Members::kChosen;
  if (arguments.relay) options.wire = tensor::PlanOptions::Wire::kOnceAHost;
  if (!arguments.members.empty()) {
    auto members = parse_members(arguments.members);
    if (!members) return invalid("--members: " + members.error().message);
    options.members = std::move(*members);
  }
  if (!arguments.lost.empty()) {
    auto lost = parse_ranks(arguments.lost);
    if (!lost) return invalid("--lost: " + lost.error().message);
    options.lost = std::move(*lost);
  }
  if (!(arguments.network_gbit > 0) || !(arguments.copy_gbyte > 0))
    return invalid("--network and --copy are more than zero");
  options.speeds.network = arguments.network_gbit * 1e9 / 8;
  options.speeds.host = arguments.copy_gbyte * 1e9;
  return options;
}

}  // namespace pliant::cli
