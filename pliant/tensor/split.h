// How one dimension of a tensor is divided among the ranks along some axes. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pliant/base/result.h"

namespace pliant::tensor {

struct Split {
  enum class Kind : uint8_t {
    kEven,      // equal parts; an error if there are none
    kCeil,      // all as large as the first, but for the last ones: torch's chunk and DTensor
    kBalanced,  // differ by one at most, the larger ones first: numpy's array_split
    kSizes,     // as given
  };
  Kind kind = Kind::kEven;
  uint64_t unit = 1;                 // no part is cut within a unit, such as an attention head
  std::vector<uint64_t> sizes = {};  // of kSizes, one for each part

  bool operator==(const Split&) const = default;
};

// Where the parts of `extent` elements begin, and, last, where they end: parts + 1 numbers.
Result<std::vector<uint64_t>> cut_into(const Split& split, uint64_t extent, uint32_t parts);

// One of several matrices that were fused along a dimension and are each divided on their own:
// query, key and value; gate and up.
struct Block {
  std::string name = {};
  uint64_t size = 0;
  // It consists of so many equal units that are never cut, such as heads (0: elements). Where there
  // are more ranks than units, each unit is on several ranks: keys and values of grouped queries.
  uint32_t units = 0;

  bool operator==(const Block&) const = default;
};

// A dimension's division, whole: see DimShard in rules.h.
struct DimDivision {
  Split split = {};
  std::vector<Block> blocks = {};
  uint32_t repeat = 1;  // the blocks follow each other so often
  uint64_t padded = 0;  // the extent to divide, if it is more than there is; 0: as there is
};

// What one rank has of a dimension: the elements [begin, end) of it are at `local` and following.
struct Segment {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t local = 0;

  bool operator==(const Segment&) const = default;
};

struct DimPart {
  std::vector<Segment> segments = {};
  uint64_t length = 0;  // of the local dimension, padding included

  bool operator==(const DimPart&) const = default;
};

inline constexpr size_t kSegmentsMax = size_t{1} << 18;  // of all parts together

// The parts of a dimension of `extent` elements. Every element is in one of them, or in several
// where a block has fewer units than there are parts.
Result<std::vector<DimPart>> divide(const DimDivision& division, uint64_t extent, uint32_t parts);

}  // namespace pliant::tensor
