#include "pliant/tensor/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pliant::tensor {
namespace {

// An axis is named on command lines, between commas and before an equals sign.
bool is_axis_name(std::string_view name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && name.size() <= 32 && is_letter(name[0]) &&
         std::ranges::all_of(
             name, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

// The number of ranks.
Result<uint32_t> check_axes(const std::vector<Axis>& axes) {
  if (axes.size() > Mesh::kAxesMax)
    return invalid(fmt::format("a mesh of {} axes; the limit is {}", axes.size(), Mesh::kAxesMax));
  uint64_t size = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    if (!is_axis_name(axis.name))
      return invalid(
          fmt::format("axis {} of the mesh is named '{}'; use lower-case letters, "
                      "digits and underscores, a letter first",
                      i, axis.name.substr(0, 40)));
    for (size_t before = 0; before < i; ++before)
      if (axes[before].name == axis.name)
        return invalid(fmt::format("the mesh has axis '{}' twice", axis.name));
    if (axis.size == 0)
      return invalid(fmt::format("axis '{}' of the mesh has size 0; it is 1 at least", axis.name));
    size *= axis.size;
    if (size > Mesh::kRanksMax)
      return invalid(
          fmt::format("the mesh has {} ranks or more; the limit is {}", size, Mesh::kRanksMax));
  }
  return static_cast<uint32_t>(size);
}

}  // namespace

Result<Mesh> Mesh::make(std::vector<Axis> axes, uint32_t ranks_per_host) {
  const auto size = check_axes(axes);
  if (!size) return size.error();
  std::vector<uint32_t> hosts(*size, 0);
  if (ranks_per_host != 0)
    for (uint32_t rank = 0; rank < *size; ++rank) hosts[rank] = rank / ranks_per_host;
  return make_on(std::move(axes), std::move(hosts));
}

Result<Mesh> Mesh::make_on(std::vector<Axis> axes, std::vector<uint32_t> hosts) {
  const auto size = check_axes(axes);
  if (!size) return size.error();
  if (hosts.size() != *size)
    return invalid(
        fmt::format("the mesh has {} ranks, but the hosts of {} are given; give one for "
                    "each rank",
                    *size, hosts.size()));
  Mesh made;
  for (const uint32_t host : hosts) {
    if (host >= kRanksMax)
      return invalid(
          fmt::format("host {} has too large a number; the limit is {}", host, kRanksMax - 1));
    made.hosts_end_ = std::max(made.hosts_end_, host + 1);
  }
  made.strides_.resize(axes.size());
  uint32_t stride = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    made.strides_[i] = stride;
    stride *= axes[i].size;
  }
  made.axes_ = std::move(axes);
  made.hosts_ = std::move(hosts);
  return made;
}

std::optional<uint32_t> Mesh::find(std::string_view axis) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == axis) return static_cast<uint32_t>(i);
  return std::nullopt;
}

AxisGroup::AxisGroup(const Mesh& mesh, std::span<const uint32_t> axes) {
  for (const uint32_t axis : axes) {
    steps_.push_back({mesh.stride(axis), mesh.axes()[axis].size});
    size_ *= mesh.axes()[axis].size;
  }
}

}  // namespace pliant::tensor
