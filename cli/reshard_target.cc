#include "cli/reshard_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "cli/plan_request.h"
#include "pliant/base/text.h"
#include "pliant/store/reshard.h"
#include "pliant/tensor/layout_json.h"

namespace pliant::cli {
namespace {

using tensor::Collection;
using tensor::LayoutSpec;
using tensor::TensorInfo;

std::vector<std::string> names_of(const std::vector<tensor::Axis>& axes) {
  std::vector<std::string> names;
  for (const tensor::Axis& axis : axes) names.push_back(axis.name);
  return names;
}

Result<tensor::Layout> make_layout(LayoutSpec spec, Collection collection) {
  return tensor::Layout::make(std::move(spec),
                              std::make_shared<const Collection>(std::move(collection)));
}

// The layout that was written beside a checkpoint, if there is one.
std::optional<std::string> layout_beside(const store::Checkpoint& source) {
  std::error_code ignored;
  std::string path = source.path() + "/" + store::kLayoutFileName;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return path;
}

Result<tensor::Layout> of_model(const TargetArguments& arguments, const store::Checkpoint& source) {
  const auto model = tensor::find_model(arguments.model);
  if (!model) return invalid("--model: " + model.error().message);
  if (arguments.to.empty()) return invalid("--model needs --to, the sizes of axes: --to tp=4,pp=2");
  const auto parallelism = tensor::parse_parallelism(arguments.to);
  if (!parallelism) return invalid("--to: " + parallelism.error().message);
  auto spec = tensor::make_spec(*model, *parallelism, arguments.slots);
  if (!spec) return invalid("--to: " + spec.error().message);
  auto tensors = in_order_of(*model, source.tensors(), arguments.allow_missing);
  if (!tensors) return invalid(fmt::format("{}: {}", source.path(), tensors.error().message));
  auto layout = make_layout(std::move(*spec), std::move(*tensors));
  if (!layout) return invalid("--to: " + layout.error().message);
  return layout;
}

Result<tensor::Layout> of_file(const std::string& path, const TargetArguments& arguments,
                               const store::Checkpoint& source) {
  const auto text = read_text(path);
  if (!text) return text.error();
  auto document = tensor::parse_layout(*text);
  if (!document) return invalid(fmt::format("{}: {}", path, document.error().message));
  if (!arguments.to.empty()) {
    const auto sizes = parse_axes(arguments.to);
    if (!sizes) return invalid("--to: " + sizes.error().message);
    auto spec = with_sizes(std::move(document->spec), *sizes, arguments.slots);
    if (!spec) return invalid(fmt::format("--to: {}: {}", path, spec.error().message));
    document->spec = std::move(*spec);
  }
  if (document->collection) {
    if (const Status same = store::check_same_tensors(*document->collection, source.tensors());
        !same.ok())
      return invalid(fmt::format("{} does not fit {}: {}; is a file of the checkpoint missing?",
                                 path, source.path(), same.error().message));
  }
  auto layout =
      make_layout(std::move(document->spec),
                  document->collection ? std::move(*document->collection) : source.tensors());
  if (!layout && !arguments.to.empty())
    return invalid(
        fmt::format("--to {}: {}: {}; give a layout of these sizes with --layout, or "
                    "--model",
                    arguments.to, path, layout.error().message));
  if (!layout) return invalid(fmt::format("{}: {}", path, layout.error().message));
  return layout;
}

}  // namespace

Result<std::vector<tensor::Axis>> parse_axes(std::string_view text) {
  std::vector<tensor::Axis> axes;
  for (const std::string& item : comma_separated(text)) {
    const size_t equals = item.find('=');
    uint32_t size = 0;
    const char* const end = item.data() + item.size();
    const char* const begin = equals == std::string::npos ? end : item.data() + equals + 1;
    const auto [stop, error] = std::from_chars(begin, end, size);
    if (equals == 0 || error != std::errc{} || stop != end || size == 0 ||
        size > tensor::Mesh::kRanksMax)
      return invalid(
          fmt::format("'{}' is no size of an axis; write it as in tp=4,pp=2", item.substr(0, 40)));
    axes.push_back({item.substr(0, equals), size});
    if (std::ranges::count(axes, axes.back().name, &tensor::Axis::name) > 1)
      return invalid(fmt::format("{} is given twice", axes.back().name));
  }
  return axes;
}

Result<LayoutSpec> with_sizes(LayoutSpec spec, const std::vector<tensor::Axis>& sizes,
                              uint32_t slots) {
  std::vector<tensor::Axis> axes = spec.mesh.axes();
  for (const tensor::Axis& given : sizes) {
    if (!spec.mesh.find(given.name))
      return invalid(
          fmt::format("it has no axis '{}', but {}; what is more than a size (zero, "
                      "interleave) changes with --model or --layout",
                      given.name, fmt::join(names_of(axes), ", ")));
  }
  for (tensor::Axis& axis : axes) {
    const auto given = std::ranges::find(sizes, axis.name, &tensor::Axis::name);
    const uint32_t size = given == sizes.end() ? 1 : given->size;
    if (spec.pipeline && spec.pipeline->axis == axis.name && axis.size != size) {
      const uint64_t runs = uint64_t{size} * spec.pipeline->interleave;
      const uint32_t layers = spec.pipeline->layers;
      if (runs > layers)
        return invalid(fmt::format("{} layers are too few for {} runs of layers", layers, runs));
      spec.pipeline->counts.clear();
      for (uint32_t run = 0; layers % runs != 0 && run < runs; ++run)
        spec.pipeline->counts.push_back(
            static_cast<uint32_t>(layers / runs + (run < layers % runs ? 1 : 0)));
    }
    axis.size = size;
  }
  auto mesh = tensor::Mesh::make(std::move(axes), slots);
  if (!mesh) return mesh.error();
  spec.mesh = std::move(*mesh);
  return spec;
}

Result<Collection> in_order_of(const tensor::Model& model, const Collection& checkpoint,
                               bool allow_missing) {
  // The state for short parameters has master copies besides, and is otherwise the same.
  const auto all = tensor::make_state(model, DType::kBF16);
  if (!all) return all.error();
  for (const TensorInfo& info : checkpoint.tensors()) {
    const auto place = all->find(info.name);
    if (!place)
      return invalid(
          fmt::format("tensor '{}' is none of the {} that {} has, which are called like '{}'; "
                      "describe the checkpoint with --layout, or give another --model",
                      info.name, all->size(), model.name, (*all)[0].name));
    if ((*all)[*place].shape != info.shape)
      return invalid(fmt::format("tensor '{}' is of shape {}, and in {} of {}", info.name,
                                 tensor::shape_text(info.shape), model.name,
                                 tensor::shape_text((*all)[*place].shape)));
  }
  const auto first = checkpoint.find((*all)[0].name);
  const bool is_long = first && checkpoint[*first].dtype == DType::kF32;
  const auto needed = tensor::make_state(model, is_long ? DType::kF32 : DType::kBF16);
  if (!needed) return needed.error();
  std::vector<TensorInfo> tensors;
  for (const TensorInfo& info : all->tensors()) {
    const auto place = checkpoint.find(info.name);
    if (place) tensors.push_back(checkpoint[*place]);
    if (!place && !allow_missing && needed->find(info.name))
      return invalid(
          fmt::format("tensor '{}' of {} is not there; if it is not wanted, say so with "
                      "--allow-missing",
                      info.name, model.name));
  }
  return Collection::make(std::move(tensors));
}

Result<tensor::Layout> target_layout(const TargetArguments& arguments,
                                     const store::Checkpoint& source) {
  if (!arguments.model.empty() && !arguments.layout.empty())
    return invalid("--model and --layout both say which layout; give one of them");
  if (!arguments.model.empty()) return of_model(arguments, source);
  if (!arguments.layout.empty()) return of_file(arguments.layout, arguments, source);
  if (arguments.to.empty())
    return invalid("say for which layout: --to tp=4,pp=2 --model NAME, or --layout FILE.json");
  const auto beside = layout_beside(source);
  if (!beside)
    return invalid(
        fmt::format("{} has no {} that says how its tensors are divided; name its model "
                    "with --model, or give --layout FILE.json",
                    source.path(), store::kLayoutFileName));
  return of_file(*beside, arguments, source);
}

}  // namespace pliant::cli
