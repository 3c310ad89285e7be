// A Mesh: the members of a layout as a grid of named axes. The last axis is the one along which
// ranks are neighbours. It also says on which host each rank runs.
//
// Immutable once made; values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"

namespace pliant::tensor {

struct Axis {
  std::string name;
  uint32_t size = 1;

  bool operator==(const Axis&) const = default;
};

class Mesh {
 public:
  static constexpr uint32_t kAxesMax = 16;
  static constexpr uint32_t kRanksMax = 1u << 16;

  Mesh() : hosts_{0} {}
  // `ranks_per_host` 0: all on one host.
  static Result<Mesh> make(std::vector<Axis> axes, uint32_t ranks_per_host);
  // The host of each rank, given one by one.
  static Result<Mesh> make_on(std::vector<Axis> axes, std::vector<uint32_t> hosts);

  uint32_t size() const { return static_cast<uint32_t>(hosts_.size()); }
  const std::vector<Axis>& axes() const { return axes_; }
  std::optional<uint32_t> find(std::string_view axis) const;
  uint32_t stride(uint32_t axis) const { return strides_[axis]; }
  uint32_t coordinate(Rank rank, uint32_t axis) const {
    return static_cast<uint32_t>(rank) / strides_[axis] % axes_[axis].size;
  }
  const std::vector<uint32_t>& hosts() const { return hosts_; }
  uint32_t host_of(Rank rank) const { return hosts_[static_cast<size_t>(rank)]; }
  // One more than the largest number of a host.
  uint32_t hosts_end() const { return hosts_end_; }

  bool operator==(const Mesh&) const = default;

 private:
  std::vector<Axis> axes_;
  std::vector<uint32_t> strides_;
  std::vector<uint32_t> hosts_;
  uint32_t hosts_end_ = 1;
};

// Some axes of a mesh taken as one, the last the fastest: the index of a rank among them.
class AxisGroup {
 public:
  AxisGroup() = default;
  AxisGroup(const Mesh& mesh, std::span<const uint32_t> axes);

  uint32_t size() const { return size_; }
  uint32_t index_of(Rank rank) const {
    uint32_t index = 0;
    for (const Step& step : steps_)
      index = index * step.size + static_cast<uint32_t>(rank) / step.stride % step.size;
    return index;
  }
  // How much larger the rank with this index is than the one with index 0 beside it.
  Rank offset_of(uint32_t index) const {
    uint32_t offset = 0;
    for (size_t i = steps_.size(); i-- > 0; index /= steps_[i].size)
      offset += index % steps_[i].size * steps_[i].stride;
    return static_cast<Rank>(offset);
  }

 private:
  struct Step {
    uint32_t stride = 1;
    uint32_t size = 1;
  };
  std::vector<Step> steps_;
  uint32_t size_ = 1;
};

}  // namespace pliant::tensor
