#include "pliant/tensor/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace pliant::tensor {
namespace {

Result<std::vector<uint64_t>> cut_by_sizes(const std::vector<uint64_t>& sizes, uint64_t extent,
                                           uint32_t parts) {
  if (sizes.size() != parts)
    return invalid(
        fmt::format("{} sizes are given for {} parts; give one for each", sizes.size(), parts));
  std::vector<uint64_t> bounds = {0};
  for (const uint64_t size : sizes) {
    if (size > extent - bounds.back())
      return invalid(
          fmt::format("the sizes cover more than the {} elements that there are", extent));
    bounds.push_back(bounds.back() + size);
  }
  if (bounds.back() != extent)
    return invalid(fmt::format("the sizes cover {} of {} elements; they must cover all",
                               bounds.back(), extent));
  return bounds;
}

std::string block_name(const Block& block, size_t index) {
  return block.name.empty() ? fmt::format("block {}", index)
                            : fmt::format("block '{}'", block.name);
}

// Which elements of a block each part has.
Result<std::vector<Segment>> cut_block(const Split& split, const Block& block, uint32_t parts) {
  std::vector<Segment> segments;
  if (block.units != 0 && block.size % block.units != 0)
    return invalid(fmt::format("{} elements are not {} equal units", block.size, block.units));
  if (block.units != 0 && block.units < parts) {
    if (parts % block.units != 0)
      return invalid(
          fmt::format("{} ranks cannot share {} units evenly; the one must divide the "
                      "other",
                      parts, block.units));
    const uint64_t unit = block.size / block.units;
    for (uint32_t part = 0; part < parts; ++part) {
      const uint64_t begin = part / (parts / block.units) * unit;
      segments.push_back({begin, begin + unit, 0});
    }
    return segments;
  }
  Split in_units = split;
  if (block.units != 0) in_units.unit = std::max<uint64_t>(block.size / block.units, 1);
  const auto bounds = cut_into(in_units, block.size, parts);
  if (!bounds) return bounds.error();
  for (uint32_t part = 0; part < parts; ++part)
    segments.push_back({(*bounds)[part], (*bounds)[part + 1], 0});
  return segments;
}

Result<std::vector<DimPart>> divide_blocks(const DimDivision& division, uint64_t extent,
                                           uint32_t parts) {
  if (division.split.kind == Split::Kind::kSizes)
    return invalid("sizes cannot be given for blocks; use 'even', 'ceil' or 'balanced'");
  if (division.padded != 0) return invalid("a dimension of blocks cannot be padded");
  if (division.repeat == 0) return invalid("blocks that repeat 0 times cover nothing");
  uint64_t sum = 0;
  for (const Block& block : division.blocks) {
    if (block.size > extent) return invalid("a block is larger than the dimension");
    sum += block.size;
  }
  if (sum > extent || sum * division.repeat != extent)
    return invalid(fmt::format(
        "the blocks cover {} elements{}, but the dimension has {}", sum,
        division.repeat == 1 ? "" : fmt::format(", {} times", division.repeat), extent));
  if (uint64_t{division.repeat} * division.blocks.size() * parts > kSegmentsMax)
    return invalid(fmt::format("more than {} blocks over all ranks", kSegmentsMax));
  std::vector<DimPart> made(parts);
  uint64_t start = 0;
  for (uint32_t turn = 0; turn < division.repeat; ++turn) {
    for (size_t i = 0; i < division.blocks.size(); ++i) {
      const Block& block = division.blocks[i];
      const auto segments = cut_block(division.split, block, parts);
      if (!segments)
        return invalid(fmt::format("{}: {}", block_name(block, i), segments.error().message));
      for (uint32_t part = 0; part < parts; ++part) {
        const Segment& segment = (*segments)[part];
        if (segment.begin == segment.end) continue;
        DimPart& to = made[part];
        to.segments.push_back({start + segment.begin, start + segment.end, to.length});
        to.length += segment.end - segment.begin;
      }
      start += block.size;
    }
  }
  return made;
}

}  // namespace

Result<std::vector<uint64_t>> cut_into(const Split& split, uint64_t extent, uint32_t parts) {
  if (parts == 0) return invalid("there are no parts to divide into");
  if (split.kind == Split::Kind::kSizes) return cut_by_sizes(split.sizes, extent, parts);
  if (split.unit == 0) return invalid("a unit has one element at least");
  if (extent % split.unit != 0)
    return invalid(
        fmt::format("{} elements are not a multiple of the unit of {}", extent, split.unit));
  const uint64_t units = extent / split.unit;
  if (split.kind == Split::Kind::kEven && units % parts != 0)
    return invalid(
        fmt::format("{} {} cannot be divided evenly by {}; pad them, or use the split "
                    "'ceil', 'balanced' or a list of sizes",
                    units, split.unit == 1 ? "elements" : "units", parts));
  std::vector<uint64_t> bounds;
  bounds.reserve(parts + 1);
  const uint64_t floor = units / parts;
  const uint64_t larger = units % parts;
  const uint64_t ceil = floor + (larger == 0 ? 0 : 1);
  for (uint64_t part = 0; part <= parts; ++part) {
    const uint64_t begin = split.kind == Split::Kind::kCeil ? std::min(part * ceil, units)
                                                            : part * floor + std::min(part, larger);
    bounds.push_back(begin * split.unit);
  }
  return bounds;
}

Result<std::vector<DimPart>> divide(const DimDivision& division, uint64_t extent, uint32_t parts) {
  if (!division.blocks.empty()) return divide_blocks(division, extent, parts);
  const uint64_t padded = division.padded == 0 ? extent : division.padded;
  if (padded < extent)
    return invalid(
        fmt::format("it is to be padded to {} elements, but has {} already", padded, extent));
  const auto bounds = cut_into(division.split, padded, parts);
  if (!bounds) return bounds.error();
  std::vector<DimPart> made(parts);
  for (uint32_t part = 0; part < parts; ++part) {
    const uint64_t begin = (*bounds)[part];
    const uint64_t end = (*bounds)[part + 1];
    made[part].length = end - begin;
    if (begin < std::min(end, extent))
      made[part].segments.push_back({begin, std::min(end, extent), 0});
  }
  return made;
}

}  // namespace pliant::tensor
